"""One node of the fake cluster: what it has, what runs and waits on it, and what it has told of itself.

Amounts are whole numbers, as inside Ray.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from distributed_grid.execution.port import RayMap
from distributed_grid.model.nodes import NodeId, NodeName
from distributed_grid.model.resources import ResourceVector

STEPS: Final = 10_000  # Ray counts everything in ten-thousandths

Amounts = dict[str, int]


@dataclass
class FakeWork:
    pid: int
    what: str
    needs: Amounts
    is_actor: bool
    began: float = 0.0
    group: str | None = None
    blocked: bool = False

    @property
    def holds(self) -> Amounts:
        """A task that waits in `ray.get` lends its CPUs to others meanwhile."""
        return {k: v for k, v in self.needs.items() if not (self.blocked and k == "CPU")}


@dataclass
class FakeBundle:
    needs: Amounts
    node_id: NodeId
    placed: bool = True


@dataclass
class FakeGroup:
    """When a node dies, its bundle loses its place for good; work in the others goes on."""

    id: str
    name: str
    bundles: list[FakeBundle]

    @property
    def placed(self) -> bool:
        return all(bundle.placed for bundle in self.bundles)


@dataclass
class FakeNode:
    name: NodeName
    id: NodeId
    base: Amounts
    total: Amounts
    alive: bool = True
    running: dict[int, FakeWork] = field(default_factory=dict)
    queue: deque[FakeWork] = field(default_factory=deque)
    groups: dict[str, list[FakeBundle]] = field(default_factory=dict)
    """By group, its bundles here."""
    gate: bool = False
    shown: tuple[Amounts, Amounts] = field(default_factory=lambda: ({}, {}))
    report_at: float | None = None
    on_its_way: deque[tuple[float, tuple[Amounts, Amounts]]] = field(default_factory=deque)

    def next_event(self) -> float | None:
        """When the control service hears of this node again, or the node next takes stock to tell it."""
        arrives = self.on_its_way[0][0] if self.on_its_way else None
        return min((at for at in (arrives, self.report_at) if at is not None), default=None)

    @property
    def bundles(self) -> list[FakeBundle]:
        return [bundle for group in self.groups.values() for bundle in group]

    def used(self, name: str) -> int:
        plain = sum(w.holds.get(name, 0) for w in self.running.values() if w.group is None)
        return plain + sum(bundle.needs.get(name, 0) for bundle in self.bundles)

    def free(self, name: str) -> int:
        return self.total.get(name, 0) - self.used(name)

    def fits(self, needs: Amounts) -> bool:
        return all(self.free(name) >= amount for name, amount in needs.items())


def extension_name(name: str, group_id: str) -> str:
    """What a group has on a node beside its bundles is named like a bundle's part there."""
    return f"{name}_group_9999_{group_id}"


def extended_by(name: str) -> str:
    """The group of such a resource; empty for any other."""
    return name.partition("_group_9999_")[2]


def fixed(amounts: RayMap, *, zeros: bool = False) -> Amounts:
    return {name: round(amount * STEPS) for name, amount in amounts.items() if amount or zeros}


def floats(amounts: Amounts) -> dict[str, float]:
    return {name: amount / STEPS for name, amount in amounts.items()}


def vector(amounts: Amounts) -> ResourceVector:
    return ResourceVector.from_ray(floats(amounts))
