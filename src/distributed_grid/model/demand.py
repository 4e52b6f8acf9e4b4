"""Pending demand in Ray's queues: shapes of tasks, actors and placement groups, and why they wait."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import ResourceVector, total


@dataclass(frozen=True, slots=True, order=True)
class LabelConstraint:
    """Allows a node if its label is one of the values or, if negated, if it is none of them."""

    key: str
    values: tuple[str, ...]
    is_in: bool = True

    def allows(self, labels: Mapping[str, str]) -> bool:
        return (labels.get(self.key) in self.values) is self.is_in

    def describe(self) -> str:
        sign = "=" if self.is_in else "!="
        return f"{self.key}{sign}{'|'.join(self.values)}"


Selector = tuple[LabelConstraint, ...]
"""A node must satisfy all of them."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A restriction to some nodes, other than by labels."""

    by: str
    """The cause: "accelerator_type:H200", "its scheduling strategy"."""
    nodes: tuple[NodeName, ...] = field(compare=False)
    """The nodes that it may still run on, as far as Ray reports. Not part of its identity, since nodes come and go."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Amounts that must be on one node, and the nodes that qualify."""

    needs: ResourceVector
    selectors: tuple[Selector, ...] = ()
    """Any one of them is enough; if there are none, any node will do."""
    pin: Pin | None = None

    @property
    def is_pinned(self) -> bool:
        return bool(self.selectors) or self.pin is not None

    def allows_node(self, name: NodeName, labels: Mapping[str, str]) -> bool:
        return (self.pin is None or name in self.pin.nodes) and self.allows(labels)

    def allows(self, labels: Mapping[str, str]) -> bool:
        for selector in self.selectors:  # plain loops: this runs for every node and every shape
            for constraint in selector:
                if not constraint.allows(labels):
                    break
            else:
                return True
        return not self.selectors

    def describe(self) -> str:
        where = " or ".join(" and ".join(c.describe() for c in selector) for selector in self.selectors)
        pinned = f" pinned by {self.pin.by}" if self.pin else ""
        return f"{self.needs.describe()}{f' where {where}' if where else ''}{pinned}"


@dataclass(frozen=True, slots=True)
class Shape:
    """The needs of one pending request. A placement group has several bundles, a task or actor just one."""

    bundles: tuple[Bundle, ...]
    strategy: str | None = None
    """How a placement group wants its bundles spread or packed; None for a task or actor."""
    in_group: str | None = None
    """The id of the placement group in which a task or actor waits: only that group's reservation can serve it."""

    @property
    def is_group(self) -> bool:
        return self.strategy is not None

    @property
    def needs(self) -> ResourceVector:
        return total(self.all_needs)

    @property
    def all_needs(self) -> tuple[ResourceVector, ...]:
        """What each of its bundles needs; the sum of parts of GPUs says nothing of the devices that they need."""
        return tuple(bundle.needs for bundle in self.bundles)

    def describe(self) -> str:
        """ "2 CPUs where grid/name=gpu1", "placement group, SPREAD: 3 x (8 CPUs)"."""
        each = Counter(bundle.describe() for bundle in self.bundles)
        needs = "; ".join(text if count == 1 else f"{count} x ({text})" for text, count in each.items())
        kind = f"placement group, {self.strategy}: " if self.is_group else ""
        inside = f" in placement group {self.in_group[:8]}" if self.in_group else ""
        return f"{kind}{needs}{inside}"


@dataclass(frozen=True, slots=True)
class Pending:
    """How many requests of one shape Ray reports at one instant, and on which nodes they are queued."""

    shape: Shape
    count: int
    queued_on: Mapping[NodeName, int] = field(default_factory=dict)


class WaitReason(StrEnum):
    INFEASIBLE = "infeasible"
    """No node will ever have room for it, as things are."""
    CAPACITY = "waiting_for_capacity"
    """Some node would have room if it were idle."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A pending shape, how long it has waited at least, and why."""

    pending: Pending
    reason: WaitReason
    detail: str
    could_run_on: tuple[NodeName, ...]
    """Nodes that are large enough and allowed."""
    wanted_on: tuple[NodeName, ...]
    """The nodes that its labels allow, if they restrict it; empty: any."""
    since: datetime
    """When it was first seen; it has been pending ever since."""

    def waited(self, now: datetime) -> timedelta:
        return max(timedelta(), now - self.since)
