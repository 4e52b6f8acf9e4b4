"""Which raylet is which configured node: by label, then host name, then IP address."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from distributed_grid.model.nodes import NodeId, NodeName

NAME_LABEL = "grid/name"


@dataclass(frozen=True, slots=True)
class Raylet:
    """A live raylet as Ray lists it. `base` is what it started with."""

    node_id: NodeId
    labels: Mapping[str, str]
    host: str
    ip: str
    base: Mapping[str, float]
    is_head: bool = False
    manager_port: int = 0


@dataclass(frozen=True, slots=True)
class ConfiguredName:
    name: NodeName
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Naming:
    raylets: Mapping[NodeName, Raylet]
    missing: tuple[NodeName, ...]
    """Configured names without a live raylet."""
    problems: tuple[str, ...] = field(default=())


def name_raylets(raylets: Sequence[Raylet], configured: Sequence[ConfiguredName]) -> Naming:
    """Give every raylet a name: a configured one where it fits, else its label or its host name."""
    left = sorted(raylets, key=lambda r: r.node_id)
    named: dict[NodeName, Raylet] = {}
    problems: list[str] = []
    for matches in (_by_label, _by_host, _by_ip):
        for wanted in configured:
            if wanted.name in named:
                continue
            found = [r for r in left if matches(r, wanted)]
            if len(found) > 1 and matches is not _by_label:
                # Several raylets on one machine: only labels distinguish them.
                problems.append(
                    f"{wanted.name}: {len(found)} raylets have that host; start them with --labels {NAME_LABEL}=NAME"
                )
                continue
            if found:
                named[wanted.name] = found[0]
                left.remove(found[0])
    missing = tuple(c.name for c in configured if c.name not in named)
    hosts = Counter(r.labels.get(NAME_LABEL) or r.host or r.ip for r in left)
    for raylet in left:
        name = raylet.labels.get(NAME_LABEL) or raylet.host or raylet.ip
        free = hosts[name] == 1 and name not in named and name not in missing
        unique = name if free else f"{name}-{raylet.node_id[:6]}"
        named[unique] = raylet
    return Naming(named, missing, tuple(dict.fromkeys(problems)))


def _by_label(raylet: Raylet, wanted: ConfiguredName) -> bool:
    return raylet.labels.get(NAME_LABEL) == wanted.name


def _by_host(raylet: Raylet, wanted: ConfiguredName) -> bool:
    if NAME_LABEL in raylet.labels or not raylet.host:
        return False
    return _short(raylet.host) in {wanted.name, _short(wanted.host or wanted.name)}


def _short(host: str) -> str:
    """A host's name without its domain; an address is kept whole."""
    return host if host.replace(".", "").isdigit() or ":" in host else host.split(".")[0]


def _by_ip(raylet: Raylet, wanted: ConfiguredName) -> bool:
    return NAME_LABEL not in raylet.labels and wanted.host is not None and raylet.ip == wanted.host
