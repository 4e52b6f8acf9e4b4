"""Listening: on loopback; elsewhere only with TLS, or if the person who starts grid allows it without."""

import hashlib
import re
import socket
import ssl
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from distributed_grid.errors import InvalidRequest, PortTaken
from distributed_grid.model.listening import Listening, check_host_name, is_loopback

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def checked(listening: Listening) -> Listening:
    """The same with absolute paths; or `InvalidRequest` with what to do instead. Called before anything is started."""
    if bool(listening.tls_cert) != bool(listening.tls_key):
        raise InvalidRequest("A certificate and its key go together", try_next="Give both --tls-cert and --tls-key.")
    names = tuple(check_host_name(name) for name in listening.allow_hosts)
    addresses = _addresses(listening.host)
    if listening.tls_cert:
        cert, key = (str(Path(path).expanduser().absolute()) for path in (listening.tls_cert, listening.tls_key))
        _check_certificate(cert, key)
        return replace(listening, tls_cert=cert, tls_key=key, allow_hosts=names)
    if not listening.insecure and not all(is_loopback(address) for address in addresses):
        raise InvalidRequest(
            f"Beyond loopback, grid listens only with TLS, and --host {listening.host} is {', '.join(addresses)}",
            because=["without it, anyone on the network path can read the tokens and use them"],
            try_next="Give --tls-cert FILE --tls-key FILE; or leave --host out and forward the port with ssh -L; "
            "or, in a network that you trust: --insecure",
        )
    return replace(listening, allow_hosts=names)


def _addresses(host: str) -> list[str]:
    """The addresses that a name or an address means on this machine; at least one."""
    try:
        if not host:
            raise OSError("it is empty; for all addresses of this machine: 0.0.0.0")
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidRequest(f"--host {host!r}: {error.strerror or error}") from None
    return sorted({str(entry[4][0]) for entry in found})


def _check_certificate(cert: str, key: str) -> None:
    def no_password() -> str:
        raise InvalidRequest(f"The key {key} is encrypted", try_next="Give an unencrypted key that only you can read.")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, no_password)
    except OSError as error:  # includes the errors of ssl
        why = error.strerror if not isinstance(error, ssl.SSLError) and error.strerror else "not a pair in PEM format"
        raise InvalidRequest(f"The certificate {cert} with the key {key} cannot be used: {why}") from None


def fingerprint(cert: str) -> str:
    """SHA-256 of the certificate that will be shown; clients with this GRID_HOME recognise the controller by it."""
    first = _CERTIFICATE.search(Path(cert).read_text())
    if first is None:
        raise InvalidRequest(f"{cert} has no certificate in PEM format")
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first[0])).hexdigest()


def listen(host: str, port: int, *, or_another: bool = True) -> socket.socket:
    """A socket that listens there; if the port is taken, at another port, or `PortTaken` without `or_another`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in (port, 0) if or_another else (port,):
        # The protocol is named because asyncio turns Nagle's algorithm off only then; it costs 40 ms per answer.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, candidate))
        except OSError as error:
            with closing(listening):
                if candidate == 0:
                    raise
            if not or_another:
                raise PortTaken(
                    f"Port {port} of {host} is not available: {error.strerror}",
                    try_next="Use another --port, end the program that listens there, or omit --port.",
                ) from error
            continue
        listening.listen(1024)
        listening.setblocking(False)
        return listening
    raise AssertionError("unreachable")


def url_of(listening: socket.socket, *, tls: bool, own_address: str) -> str:
    """The URL of the controller: with `own_address` if it listens on all addresses."""
    host, port = listening.getsockname()[:2]
    host = own_address if host in ("0.0.0.0", "::") else host
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
