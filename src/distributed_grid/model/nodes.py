"""Nodes as seen at one instant."""

from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, TypeVar

from distributed_grid.errors import SourceNotFound, TargetNotFound
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.resources import CPU, GPU, MEMORY, ResourceVector, scale

T = TypeVar("T")

NodeName = str
NodeId = str


@dataclass(frozen=True, slots=True)
class SharingLimits:
    """The limits on lending that a node's owner sets. None: no limit beyond the free capacity."""

    can_share: bool = True
    max_share_cpu: int | None = None
    max_share_memory: int | None = None
    max_share_gpu: int | None = None
    priority: float = 1.0

    def limit(self, kind: str) -> int | None:
        if kind == CPU:
            return self.max_share_cpu
        if kind == MEMORY:
            return self.max_share_memory
        return self.max_share_gpu if kind == GPU else None


LIMIT_KEYS: Final = {CPU: "max_share_cpu", MEMORY: "max_share_memory_gb", GPU: "max_share_gpu"}
"""By kind: the key of the configuration that sets a node's limit."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """The real capacity of a node's machine, if it was examined."""

    cpus: float
    memory: int


@dataclass(frozen=True, slots=True)
class MeasuredUse:
    """Measured use on a node that Ray does not know of."""

    crowded: Mapping[str, str] = field(default_factory=dict)
    """By kind (cpu, memory): how busy the node's machine is, in words; left out if it is not busy."""
    gpus: tuple[str, ...] = ()
    """In words: each device that programs outside the node's Ray use."""
    withheld: ResourceVector = field(default_factory=ResourceVector)
    """The capacity that is free for Ray but not lent for that reason."""
    refuses: Mapping[RefusalCode, str] = field(default_factory=dict)
    """Why the node lends nothing at all, in words."""

    @property
    def warnings(self) -> tuple[str, ...]:
        return (*self.crowded.values(), *self.gpus, *self.refuses.values())


NOT_IN_USE: Final = MeasuredUse()


@dataclass(frozen=True, slots=True)
class Node:
    """One raylet: what it started with, advertises and has free. Amounts are exact; `free` may be a moment old."""

    name: NodeName
    node_id: NodeId
    base: ResourceVector
    total: ResourceVector
    free: ResourceVector
    alive: bool = True
    is_head: bool = False
    limits: SharingLimits = field(default_factory=SharingLimits)
    hardware: Hardware | None = None
    ip: str = ""
    host: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    silent: str | None = None
    """Why there is no recent measurement: its probe has stopped answering. None: it answers, or there is no probe."""
    gpu_parts: tuple[int, ...] = ()
    """The parts of GPUs that placement groups hold there; each is on one device."""
    in_use: MeasuredUse = NOT_IN_USE

    @property
    def machine(self) -> tuple[str, str]:
        """Equal for nodes on the same machine."""
        return (self.ip, self.host) if self.ip else (self.node_id, "")

    def reserving(self, resources: ResourceVector) -> "Node":
        """The node when one reservation more holds these resources there."""
        part = gpu_part(resources)
        parts = tuple(sorted((*self.gpu_parts, part))) if part else self.gpu_parts
        return replace(self, free=self.free - resources, gpu_parts=parts)

    def freeing(self, resources: ResourceVector) -> "Node":
        """The node when a reservation that held these resources there is gone."""
        parts = list(self.gpu_parts)
        if (part := gpu_part(resources)) in parts:
            parts.remove(part)
        return replace(self, free=self.free + resources, gpu_parts=tuple(parts))

    def is_crowded_for(self, target: "Node", kind: str) -> bool:
        """Whether its machine is too busy to carry that node's work; never for nodes on one machine: the work stays
        there.
        """
        return kind in self.in_use.crowded and self.machine != target.machine


def in_words(names: Sequence[str]) -> str:
    """ "gpu1", "gpu1 and gpu2", "gpu1, gpu2 and 3 more"."""
    if len(names) > 3:
        return f"{', '.join(names[:2])} and {len(names) - 2} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def gpu_part(resources: ResourceVector) -> int:
    """The part of a GPU that a reservation of these resources holds on one device; 0 if it holds whole GPUs or none."""
    return resources[GPU] if resources[GPU] < scale(GPU) else 0


def node_named(nodes: Mapping[NodeName, T], name: NodeName, *, is_source: bool = False) -> T:
    """The entry of a node; raises `TargetNotFound`, or `SourceNotFound`, if there is none."""
    if name in nodes:
        return nodes[name]
    error, what = (SourceNotFound, "Source") if is_source else (TargetNotFound, "Target")
    raise error(
        f"{what} node not found in cluster",
        because=[f"no node is named {name!r}"],
        try_next=f"Nodes: {', '.join(nodes) or 'none'}",
    )


def connected(nodes: Mapping[NodeName, Node], name: NodeName) -> Node:
    """A node that is up; raises `TargetNotFound` if it is unknown or down."""
    node = node_named(nodes, name)
    if not node.alive:
        raise TargetNotFound(
            "Target node not found in cluster",
            because=[f"{name} is configured but not connected to the cluster"],
            try_next="See which nodes are up: grid cluster status",
        )
    return node


class NodeTable(Mapping[NodeName, Node]):
    """The nodes of the cluster by name, in name order."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._nodes = {n.name: n for n in sorted(nodes, key=lambda n: n.name)}
        self._shareable: dict[str, int] = {}

    def __getitem__(self, name: NodeName) -> Node:
        return self._nodes[name]

    def __iter__(self) -> Iterator[NodeName]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def items(self) -> ItemsView[NodeName, Node]:
        return self._nodes.items()  # same as Mapping's, several times as fast

    @cached_property
    def lenders(self) -> tuple[Node, ...]:
        """The nodes that may lend at all, in name order."""
        return tuple(n for n in self._nodes.values() if n.alive and n.silent is None and n.limits.can_share)

    @cached_property
    def in_use(self) -> tuple[Node, ...]:
        """The lenders with measured use that Ray does not count."""
        return tuple(n for n in self.lenders if n.in_use is not NOT_IN_USE)

    def shareable(self, kind: str) -> int:
        """All that the nodes' owners let others have of a kind, lent or not."""
        if kind not in self._shareable:
            self._shareable[kind] = sum(
                node.base[kind] if (limit := node.limits.limit(kind)) is None else min(limit, node.base[kind])
                for node in self.alive
                if node.limits.can_share
            )
        return self._shareable[kind]

    @property
    def alive(self) -> "tuple[Node, ...]":
        return tuple(n for n in self._nodes.values() if n.alive)
