"""What there is to plan on: every node with what it has free."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from distributed_grid.model.nodes import NodeName, NodeTable
from distributed_grid.model.resources import ResourceVector


@dataclass(frozen=True, slots=True)
class InventoryNode:
    name: NodeName
    free: ResourceVector
    total: ResourceVector
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    closed: str = ""
    """Why nothing can be put there; empty: it is usable."""
    lends: ResourceVector = field(default_factory=ResourceVector)
    """What it could lend to other nodes, by its limits; a part of what is free."""
    gpu_parts: tuple[int, ...] = ()
    """Parts of GPUs of which it is known that others hold them; each is on one device."""

    def with_more(self, more: ResourceVector) -> "InventoryNode":
        return replace(self, free=self.free + more, total=self.total + more)


class Inventory(Mapping[NodeName, InventoryNode]):
    """The nodes by name, in name order."""

    def __init__(self, nodes: Iterable[InventoryNode] = ()) -> None:
        self._nodes = {node.name: node for node in sorted(nodes, key=lambda node: node.name)}

    @classmethod
    def of_nodes(cls, nodes: NodeTable, lends: Mapping[NodeName, ResourceVector] | None = None) -> "Inventory":
        """From what an observer sees."""
        could = lends or {}
        return cls(
            InventoryNode(
                node.name,
                (node.free - node.in_use.withheld).at_least_zero(),
                node.total,
                node.labels,
                "" if node.alive else "it is not connected to the cluster",
                could.get(node.name, ResourceVector()),
                node.gpu_parts,
            )
            for node in nodes.values()
        )

    def __getitem__(self, name: NodeName) -> InventoryNode:
        return self._nodes[name]

    def __iter__(self) -> Iterator[NodeName]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def with_more(self, more: Mapping[NodeName, ResourceVector]) -> "Inventory":
        """The same with so much more (or, below zero, less) on some nodes."""
        return Inventory(n.with_more(more[n.name]) if n.name in more else n for n in self._nodes.values())
