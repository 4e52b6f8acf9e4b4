"""Addresses: where a Ray head is, and where the controller answers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from distributed_grid.errors import InvalidRequest

AUTO: Final = "auto"
"""Ray itself looks for a head on this machine."""


def why_no_address(address: str) -> str:
    """What keeps a text from being the HOST:PORT of a head; empty if nothing does."""
    if "://" in address:
        return "that is the address of a Ray client server, not of the head itself"
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit():
        return "that is not HOST:PORT"
    if not 0 < int(port) < 2**16:
        return f"{port} is not a port"
    return ""


@dataclass(frozen=True, slots=True)
class Listening:
    """What `grid start` and `grid cluster start` say of it; it travels to the controller as JSON."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: the one that the last controller had, or any."""
    tls_cert: str = ""
    tls_key: str = ""
    insecure: bool = False
    """Off loopback in clear text: somebody said so."""
    allow_hosts: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Listening":
        return cls(**{**data, "allow_hosts": tuple(data["allow_hosts"])})


def plain_host(host: str) -> str:
    """The name or address in a Host header: without port, brackets, case and a final dot."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".") if host.count(":") <= 1 else host


def check_host_name(name: str) -> str:
    """A name given with --allow-host, as it is compared; or `InvalidRequest`."""
    plain = plain_host(name)
    if not plain or any(character in plain for character in "/*@ ") or plain != name.strip().lower().rstrip("."):
        raise InvalidRequest(
            f"--allow-host {name!r} is not a host name", try_next="Give the bare name: --allow-host head.example.org"
        )
    return plain
