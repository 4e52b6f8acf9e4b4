"""Where a caller can make grid connect: a holder's hook, and the head of a private Ray.

The caller that asks for a boost gives a URL, and the controller calls it. The caller that wants a private Ray gives an
address, and a raylet of the lender joins it. Without bounds, a caller could reach places that only grid can reach.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

from distributed_grid.errors import InvalidRequest
from distributed_grid.model.leases import WATCHED
from distributed_grid.model.listening import why_no_address
from distributed_grid.model.nodes import NodeName

_LONGEST: Final = 2000
_PORTS: Final = {"http": 80, "https": 443}
_TRY = "Use http://127.0.0.1:PORT/PATH, or the address or name of a node of this cluster instead of 127.0.0.1."

Addresses = Mapping[NodeName, str]
"""Each node of the cluster, with the address that Ray has for it."""


@dataclass(frozen=True, slots=True)
class HookPlace:
    """A hook's URL, parsed; `address` is called, no name is looked up."""

    is_tls: bool
    address: str
    port: int
    host: str
    path: str


def check_hook(hook: str | None, nodes: Addresses) -> str | None:
    """A `reclaim_hook` that can be called or is watched; otherwise raises `InvalidRequest`."""
    if hook is not None and hook != WATCHED:
        hook_place(hook, nodes)
    return hook


def hook_place(url: str, nodes: Addresses) -> HookPlace:
    """Where and what to call; raises `InvalidRequest` if it is no URL, or leads out of the cluster."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _refused("it cannot be parsed") from None
    if len(url) > _LONGEST or not url.isascii() or any(c <= " " or c == "\x7f" for c in url):
        raise _refused(f"a URL has at most {_LONGEST} characters, all of them visible ASCII")
    if parts.scheme not in _PORTS:
        raise _refused("only http:// and https:// are called")
    if parts.username is not None or parts.password is not None:
        raise _refused("it contains a user name; put a secret into the path instead")
    if host is None or port == 0:
        raise _refused("it has no host and port")
    address = _address(host, nodes)
    if address is None:
        raise _refused(f"{host[:80]} is neither this machine's loopback nor a node of this cluster")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return HookPlace(parts.scheme == "https", address, port or _PORTS[parts.scheme], parts.netloc, path)


def private_head(address: str, *, lender: NodeName, nodes: Addresses, caller: Collection[str], shared_head: str) -> str:
    """The head of a private Ray that a raylet on the lender may join; raises `InvalidRequest` if it may not.

    The head must be on a node of this cluster, or on the caller's machine (`caller`: its addresses). It must not be the
    head of this cluster: such a raylet would offer once more what the lease has reserved. No name is looked up.
    """
    if why := why_no_address(address):
        raise _refused_head(address, why)
    host, _, port = address.rpartition(":")
    found = _address(host.strip("[]").lower(), nodes)
    callers = {_plain(one) for one in caller}
    try:
        at = _plain(found or host.strip("[]"))
    except ValueError:
        if found is None:
            raise _refused_head(address, "its host is neither an address nor the name of a node") from None
        return f"{found}:{port}"  # Ray itself knows the node by a name
    known = _known(nodes)
    beside_the_caller = _known({lender: nodes[lender]} if lender in nodes else {})
    if at.is_loopback and at not in known and not (beside_the_caller and beside_the_caller[0] in callers):
        raise _refused_head(address, f"on {lender}, that address is not your machine")
    if not at.is_loopback and at not in known and at not in callers:
        raise _refused_head(address, "it is neither on a node of this cluster nor on the caller's machine")
    shared, _, shared_port = shared_head.rpartition(":")
    heads = _known({"": shared.strip("[]")})
    same_machine = at.is_loopback or at in heads or (at in callers and any(head in callers for head in heads))
    if port == shared_port and same_machine:
        raise _refused_head(address, "it is the head of this cluster itself")
    return f"[{at}]:{port}" if at.version == 6 else f"{at}:{port}"


def _refused_head(address: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"{address[:80]!r} cannot be the head of a private Ray",
        because=[why],
        try_next="Start it on a node of this cluster or on your own machine, and give its IP address: HOST:PORT.",
    )


def _address(host: str, nodes: Addresses) -> str | None:
    if host == "localhost":
        return "127.0.0.1"
    try:
        wanted = _plain(host)
    except ValueError:
        by_name = {name.lower(): address for name, address in nodes.items()}  # urlsplit lower-cases host names
        return by_name.get(host) or None
    if wanted.is_loopback or any(wanted == known for known in _known(nodes)):
        return str(wanted)
    return None


def _known(nodes: Addresses) -> list[IPv4Address | IPv6Address]:
    found = []
    for address in nodes.values():
        try:
            found.append(_plain(address))
        except ValueError:
            continue  # Ray knows the node by a name; only the node's own name leads to it
    return found


def _plain(text: str) -> IPv4Address | IPv6Address:
    """An address; an IPv4 address in IPv6 notation counts as IPv4."""
    address = ip_address(text)
    return getattr(address, "ipv4_mapped", None) or address


def _refused(why: str) -> InvalidRequest:
    """A refusal without the URL: its path may be a secret, and refusals are in the audit log."""
    return InvalidRequest("That reclaim URL cannot be used", because=[why], try_next=_TRY)
