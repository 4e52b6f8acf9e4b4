"""Addresses: where a Ray head is, and where the controller listens."""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Final

from distributed_grid.errors import InvalidRequest
from distributed_grid.model.codec import PLAIN

AUTO: Final = "auto"
"""Ray looks for a head on this machine."""


def why_no_address(address: str) -> str:
    """Why a text is not the HOST:PORT of a head; empty if it is."""
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
    """The listening options of `grid start` and `grid cluster start`; they travel to the controller as JSON."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: the last controller's port, or any free one."""
    tls_cert: str = ""
    tls_key: str = ""
    insecure: bool = False
    """The user explicitly allowed clear text beyond loopback."""
    allow_hosts: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        return PLAIN.encode(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> "Listening":
        return PLAIN.decode(cls, data)


def plain_host(host: str) -> str:
    """The name or address in a Host header: without port, brackets, case and a final dot."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".") if host.count(":") <= 1 else host


def check_host_name(name: str) -> str:
    """A name given with --allow-host, normalised for comparison; or `InvalidRequest`."""
    plain = plain_host(name)
    if not plain or any(character in plain for character in "/*@ ") or plain != name.strip().lower().rstrip("."):
        raise InvalidRequest(
            f"--allow-host {name!r} is not a host name", try_next="Give the bare name: --allow-host head.example.org"
        )
    return plain


def is_loopback(address: str) -> bool:
    try:
        found = ip_address(address)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback
