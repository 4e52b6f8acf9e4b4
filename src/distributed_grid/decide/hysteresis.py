"""When a node is under pressure, and when no longer: high begins it, low ends it, in between nothing changes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import BUILT_IN
from distributed_grid.model.snapshots import NodeSnapshot

Pressed = frozenset[tuple[NodeName, str]]
"""The (node, kind) pairs that are under pressure."""


@dataclass(frozen=True, slots=True)
class Threshold:
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PressureChange:
    """One node came under pressure of one kind, or is relieved of it."""

    node: NodeName
    kind: str
    value: float
    is_high: bool

    def describe(self) -> str:
        what = "is under pressure" if self.is_high else "is no longer under pressure"
        return f"{self.node} {what}: {self.kind} at {self.value:.0%}"


PressureCallback = Callable[[PressureChange], None]


def pressure_changes(
    snapshots: Iterable[NodeSnapshot], before: Pressed, thresholds: Mapping[str, Threshold]
) -> tuple[tuple[PressureChange, ...], Pressed]:
    """What changed, and who is under pressure now. What is stale or not measured changes nothing.

    A node that is gone is under no pressure, and nobody is told that it was relieved.
    """
    changes: list[PressureChange] = []
    pressed: set[tuple[NodeName, str]] = set()
    for snapshot in snapshots:
        for kind in BUILT_IN:
            was = (snapshot.name, kind) in before
            value = None if snapshot.stale or snapshot.pressure is None else snapshot.pressure.own(kind)
            limit = thresholds[kind]
            now = was if value is None else value >= limit.high or (was and value > limit.low)
            if now:
                pressed.add((snapshot.name, kind))
            if value is not None and now is not was:
                changes.append(PressureChange(snapshot.name, kind, value, is_high=now))
    return tuple(changes), frozenset(pressed)
