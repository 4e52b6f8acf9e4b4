"""An inventory of nodes, the placement of a workload or why it does not fit, and what a run holds of a node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import compress
from typing import TYPE_CHECKING, Final

from distributed_grid import errors
from distributed_grid.model.leases import Delivery
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.requests import Ask, command, request_body
from distributed_grid.model.resources import GPU, MEMORY, ResourceVector, amount_of, describe, scale, total

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import BoostRequest
    from distributed_grid.wire.nodes import NodeList


@dataclass(frozen=True, slots=True)
class InventoryNode:
    name: NodeName
    free: ResourceVector
    total: ResourceVector
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    closed: str = ""
    """Why the node cannot be used; empty if it can."""
    lends: ResourceVector = field(default_factory=ResourceVector)
    """The part of the free capacity that it could lend to other nodes, by its limits."""
    gpu_parts: tuple[int, ...] = ()
    """Parts of GPUs that others are known to hold; each is on one device."""
    withheld: ResourceVector = field(default_factory=ResourceVector)
    """What programs outside Ray use although Ray has it free; `free` is without it."""

    def without(self, withheld: ResourceVector) -> InventoryNode:
        """The same node if this much of what Ray has free is in use outside Ray."""
        return replace(self, free=(self.free - withheld).at_least_zero(), withheld=withheld)

    def with_more(self, more: ResourceVector) -> InventoryNode:
        return replace(self, free=self.free + more, total=self.total + more)


class Inventory(Mapping[NodeName, InventoryNode]):
    """The nodes by name, in name order."""

    def __init__(self, nodes: Iterable[InventoryNode] = ()) -> None:
        self._nodes = {node.name: node for node in sorted(nodes, key=lambda node: node.name)}

    def __getitem__(self, name: NodeName) -> InventoryNode:
        return self._nodes[name]

    def __iter__(self) -> Iterator[NodeName]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def with_more(self, more: Mapping[NodeName, ResourceVector]) -> Inventory:
        """The same inventory with more (or, below zero, less) on some nodes."""
        return Inventory(n.with_more(more[n.name]) if n.name in more else n for n in self._nodes.values())


def live_inventory(nodes: NodeList) -> Inventory:
    """The running cluster as its controller describes it in the answer about nodes."""
    return Inventory(
        InventoryNode(
            name=node["name"],
            free=_units(node["free"]),
            total=_units(node["total"]),
            labels=node["labels"],
            closed=node["closed"] or "",
            lends=_units(node["lendable"]),
            gpu_parts=tuple(round(part * scale(GPU)) for part in node["gpu_parts"]),
        ).without(_units(node["withheld"]))
        for node in nodes["nodes"]
    )


def _units(amounts: Mapping[str, float]) -> ResourceVector:
    """Amounts come rounded to four digits; memory that rounding may have added is not planned on."""
    found = {}
    for kind, amount in amounts.items():
        steps = round(amount * 10_000) - (kind == MEMORY and amount != int(amount))
        found[kind] = max(0, steps) * scale(kind) // 10_000
    return ResourceVector(found)


_MOST_REASONS: Final = 10


class UnitKind(StrEnum):
    ACTOR = "actor"
    PROCESS = "process"
    """One actor that hosts an instance of each of its roles."""
    BUNDLE = "bundle"
    """An actor for each role, all in one bundle."""


@dataclass(frozen=True, slots=True)
class Member:
    """One instance of a role."""

    role: str
    index: int
    resources: ResourceVector
    """Its own needs; in a process, the unit costs less than its members together."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Members that are placed as one; a unit becomes one bundle of a placement group."""

    node: NodeName
    kind: UnitKind
    members: tuple[Member, ...]
    resources: ResourceVector
    pool: str | None = None

    @property
    def index(self) -> int:
        return self.members[0].index


@dataclass(frozen=True, slots=True)
class Placement:
    """A place for every actor. The indexes of a role start at 0 and run node by node in name order."""

    workload: str
    units: tuple[Unit, ...]
    """In the workload's order of roles, then by index."""

    @property
    def by_node(self) -> dict[NodeName, tuple[Unit, ...]]:
        """The nodes that carry units, by name."""
        found: dict[NodeName, list[Unit]] = {}
        for unit in self.units:
            found.setdefault(unit.node, []).append(unit)
        return {name: tuple(found[name]) for name in sorted(found)}

    @property
    def counts(self) -> dict[str, int]:
        """How many members each role has; a role that scales may have more than its least."""
        found: dict[str, int] = {}
        for unit in self.units:
            for member in unit.members:
                found[member.role] = found.get(member.role, 0) + 1
        return found

    @property
    def used_by_pool(self) -> dict[str, ResourceVector]:
        pools = sorted({unit.pool for unit in self.units if unit.pool is not None})
        return {name: total([unit.resources for unit in self.units if unit.pool == name]) for name in pools}

    def nodes_of(self, role: str) -> tuple[NodeName, ...]:
        """The nodes of its members, by index."""
        found = {m.index: unit.node for unit in self.units for m in unit.members if m.role == role}
        return tuple(found[index] for index in sorted(found))


@dataclass(frozen=True, slots=True)
class Missing:
    """An amount that is missing."""

    where: str
    """The name of a node or a pool."""
    kind: str
    units: int
    in_pool: bool = False

    def describe(self) -> str:
        return f"{describe(self.kind, self.units)} more {'in the pool' if self.in_pool else 'on'} {self.where}"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why some actors of a role, or units of a colocation group, have no place."""

    roles: tuple[str, ...]
    asked: int
    placed: int
    detail: str

    def describe(self) -> str:
        return f"{'+'.join(self.roles)}: {self.placed} of {self.asked} placed: {self.detail}"


@dataclass(frozen=True, slots=True)
class SuggestedBoost:
    """Capacity that would have to move from one node to another."""

    target: NodeName
    source: NodeName
    kind: str
    units: int

    @property
    def command(self) -> str:
        """A transfer, since the target's own capacity has to grow."""
        request = Ask(self.target, self.kind, self.units, sources=(self.source,), delivery=Delivery.TRANSFER)
        return command(request) or ""

    def body(self) -> BoostRequest:
        """The same boost as the API's request body."""
        amounts = {self.kind: amount_of(self.kind, self.units)}
        return request_body(self.target, amounts, source_node=self.source, delivery=Delivery.TRANSFER)


class RemedyKind(StrEnum):
    ADD = "add"
    SHRINK = "shrink"
    BOOST = "boost"


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that the planner tried, and with which everything fits."""

    kind: RemedyKind
    text: str
    missing: tuple[Missing, ...] = ()
    boosts: tuple[SuggestedBoost, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict, hash=False)
    """The roles to shrink, and their new counts."""

    @property
    def commands(self) -> tuple[str, ...]:
        return tuple(boost.command for boost in self.boosts)


@dataclass(frozen=True, slots=True)
class DoesNotFit:
    workload: str
    reasons: tuple[Reason, ...]
    remedies: tuple[Remedy, ...]
    certain: bool
    """False: no way was found, but there may be one."""

    @property
    def missing(self) -> tuple[Missing, ...]:
        """The smallest addition that was found to make it fit; empty if none was."""
        return next((remedy.missing for remedy in self.remedies if remedy.kind is RemedyKind.ADD), ())

    @property
    def headline(self) -> str:
        return f"The workload {self.workload} does not fit" + ("" if self.certain else ": no placement was found")

    def with_remedies(self, good: Sequence[bool]) -> DoesNotFit:
        """The same result with only the remedies marked as good."""
        return replace(self, remedies=tuple(compress(self.remedies, good)))

    def error(self) -> errors.DoesNotFit:
        """For callers that have to stop here."""
        first = next(iter(self.remedies), None)
        return errors.DoesNotFit(
            self.headline,
            because=[reason.describe() for reason in self.reasons[:_MOST_REASONS]],
            try_next=None if first is None else "; ".join([first.text, *first.commands]),
        )


@dataclass(frozen=True, slots=True)
class Holding:
    """Capacity that a run gets and returns as one: it is free again once the last of its units has ended."""

    node: NodeName
    pool: str | None
    resources: ResourceVector
    """The sum of its units. Empty if they need nothing, and then there is nothing to hold."""
    units: tuple[Unit, ...]
