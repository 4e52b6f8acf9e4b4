"""HTTP to one controller, by the standard library: it imports fast and adds little to a call.

A client verifies that it speaks to its own controller. This check cannot be turned off.
"""

import hashlib
import http.client
import json
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import urlencode, urlsplit

import orjson

from distributed_grid.errors import CertificateUntrusted, InvalidRequest

_CONNECT_S: Final = 5.0
ANSWER_S: Final = 30.0
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Trust:
    """The system's own authorities, unless one of these is given."""

    ca: str = ""
    """Certificates of authorities, in PEM format: one of them must have signed for the host's name."""
    sha256: str = ""
    """The controller's own certificate: the controller wrote this itself, to a file that only its owner can write."""

    def context(self) -> ssl.SSLContext:
        if self.sha256:
            # The certificate itself is compared, which is stricter than any name or signature.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            return context
        if not self.ca:
            return ssl.create_default_context()
        try:
            return ssl.create_default_context(cadata=self.ca)
        except (ssl.SSLError, ValueError):
            raise InvalidRequest("The file given with --ca has no certificate in PEM format") from None


class PinnedConnection(http.client.HTTPSConnection):
    """Sends nothing to a server that does not show exactly this certificate."""

    def __init__(self, host: str, port: int | None, sha256: str, context: ssl.SSLContext, timeout: float) -> None:
        super().__init__(host, port, context=context, timeout=timeout)
        self._sha256 = sha256

    def connect(self) -> None:
        super().connect()
        shown = self.sock.getpeercert(binary_form=True) or b""
        if not compare_digest(hashlib.sha256(shown).hexdigest(), self._sha256):
            self.close()
            raise ssl.SSLCertVerificationError("it is not the one in controller.json")


def why_untrusted(host: str, error: ssl.SSLCertVerificationError) -> CertificateUntrusted:
    return CertificateUntrusted(
        f"The certificate that {host} shows is not trusted",
        because=[getattr(error, "verify_message", "") or str(error)],
        try_next="Log in by the name that is in the certificate; if an authority of your own signed it: "
        "grid login URL --ca FILE",
    )


class Unreachable(Exception):
    """No answer came, or the answer broke off."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        return orjson.loads(self.body)


@dataclass(frozen=True, slots=True)
class Call(Generic[T_co]):
    """One call of the API; the JSON of its answer is a `T_co`, which the caller's return type names."""

    method: str
    path: str
    body: Mapping[str, object] | None = None
    params: Mapping[str, object] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    answer_s: float = ANSWER_S
    """How long the answer may take."""
    as_it_is: bool = False
    """The answer has the output of a process, which is shown as it is."""

    @property
    def query(self) -> str:
        return urlencode(self.params or {})

    @property
    def content(self) -> bytes:
        """The body as JSON, also NaN: the controller says why not."""
        return b"" if self.body is None else json.dumps(self.body).encode()

    def all_headers(self, own: Mapping[str, str]) -> dict[str, str]:
        """With those that every call of a channel has."""
        return {**own, **self.headers, **({} if self.body is None else {"Content-Type": "application/json"})}


class Channel(Protocol):
    """Carries calls to a controller."""

    def ask(self, call: Call[object]) -> Answer: ...

    def close(self) -> None: ...


class Connections:
    """Open connections to one place, for any number of threads: each call has one for itself."""

    def __init__(self, url: str, headers: Mapping[str, str], trust: Trust | None = None) -> None:
        place = urlsplit(url)
        self._host, self._port = place.hostname or "", place.port
        self._trust = (trust or Trust()) if place.scheme == "https" else None
        self._context: ssl.SSLContext | None = None
        self._headers = {**headers, "Accept": "application/json"}
        self._idle: deque[http.client.HTTPConnection] = deque()

    def ask(self, call: Call[object]) -> Answer:
        """One call and its answer. Raises `Unreachable`, or `CertificateUntrusted`."""
        while self._idle:
            # The server may have closed an idle connection meanwhile: that is no reason to give up.
            try:
                return self._ask(self._idle.pop(), call)
            except IndexError:
                break
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
                continue
            except (OSError, http.client.HTTPException) as error:
                raise Unreachable(_reason(error)) from error
        try:
            return self._ask(self._new(), call)
        except ssl.SSLCertVerificationError as error:
            raise why_untrusted(self._host, error) from error
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(_reason(error)) from error

    def _new(self) -> http.client.HTTPConnection:
        if self._trust is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=_CONNECT_S)
        self._context = self._context or self._trust.context()
        if self._trust.sha256:
            return PinnedConnection(self._host, self._port, self._trust.sha256, self._context, _CONNECT_S)
        return http.client.HTTPSConnection(self._host, self._port, timeout=_CONNECT_S, context=self._context)

    def _ask(self, connection: http.client.HTTPConnection, call: Call[object]) -> Answer:
        target = f"{call.path}?{call.query}" if call.params else call.path
        try:
            if connection.sock is None:
                connection.connect()
            connection.sock.settimeout(call.answer_s)
            connection.request(call.method, target, call.content or None, call.all_headers(self._headers))
            response = connection.getresponse()
            answer = Answer(response.status, response.read())
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            self._idle.append(connection)
        return answer

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


def listens(address: str, within_s: float = 1.0) -> bool:
    """Whether anything accepts connections at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=within_s).close()
    except (OSError, ValueError):
        return False
    return True


def _reason(error: Exception) -> str:
    match error:
        case http.client.RemoteDisconnected():  # a subclass of the next one, with a good message
            return str(error)
        case http.client.BadStatusLine():
            return "its answer is not HTTP"  # it may be anything, including control sequences for a terminal
        case ssl.SSLError(reason="WRONG_VERSION_NUMBER"):
            return "it does not speak TLS; perhaps its URL begins with http://"
        case _:
            return str(error) or type(error).__name__
