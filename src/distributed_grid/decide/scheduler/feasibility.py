"""Which nodes can carry a task: a mask for the decision, and reasons for the nodes that cannot."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from distributed_grid.decide.capacity.delivery import DeliveryChoice, Offer
from distributed_grid.decide.capacity.devices import short_of
from distributed_grid.decide.scheduler.table import Floats, Mask, NodeColumns, Units
from distributed_grid.model.leases import Delivery
from distributed_grid.model.nodes import NodeName, gpu_part
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.scheduling import Affinity, SchedulingRequest

Peers = Mapping[str, Collection[NodeName]]
"""The nodes of placed tasks, by task id and by tag."""


@dataclass(frozen=True, slots=True)
class BoostRoom:
    """A reserved boost of the target, and its free capacity."""

    id: str
    runs_on: NodeName
    total: ResourceVector
    free: ResourceVector
    gpu_parts: tuple[int, ...] = ()
    """The parts of GPUs that tasks have in it; each is on one device."""

    def less(self, needs: ResourceVector) -> "BoostRoom":
        part = gpu_part(needs)
        return replace(self, free=self.free - needs, gpu_parts=(*self.gpu_parts, part) if part else self.gpu_parts)


@dataclass(frozen=True)
class Sought:
    """One task's search for a place."""

    request: SchedulingRequest
    needs: ResourceVector
    """The amounts that a place takes, including companions."""
    target: NodeName
    columns: NodeColumns
    boosts: tuple[BoostRoom, ...] = ()
    peers: Peers = field(default_factory=dict)
    not_on: frozenset[NodeName] = frozenset()
    """Nodes that turned out to have no room for the task; the target's boosts are not affected."""
    members: int = 1
    """The needs are those of so many equal members, all on one node."""

    @cached_property
    def home(self) -> int:
        """The target's row; -1 if the table does not have it."""
        return self.columns.row.get(self.target, -1)

    @cached_property
    def rooms(self) -> dict[str, Units]:
        """By kind: what the task can have on each node."""
        return {kind: self.columns.rooms(kind, self.home, units, self.members) for kind, units in self.needs.items()}

    @cached_property
    def left(self) -> Floats:
        """0..1: what each node would have left, as a fraction of its total, of the kind that is then scarcest."""
        found: Floats | None = None
        for kind, units in self.needs.items():
            total = self.columns.total.get(kind)
            part = (self.rooms[kind] - units) / (np.maximum(total, 1) if total is not None else 1.0)
            found = part if found is None else np.minimum(found, part)
        return np.clip(np.ones(len(self.columns)) if found is None else found, 0.0, 1.0)

    @cached_property
    def offer(self) -> Offer:
        """What a lender would give: a reservation of the needs, which the target may also set aside for itself."""
        (kind, units), *along = self.needs.items()
        ask = Ask(self.target, kind, units, delivery=Delivery.RESERVE, along=tuple(along), own_too=True)
        return Offer(ask, self.columns.rules, DeliveryChoice(Delivery.RESERVE, ""), self.needs, self.needs)

    def carrier(self) -> BoostRoom | None:
        """The boost that the task would fill the most; None if no boost has room for all of it."""
        each = ResourceVector({kind: units // self.members for kind, units in self.needs.items()})
        able = [boost for boost in self.boosts if not short_of(boost, each, count=self.members)]
        kinds = tuple(self.needs)
        return min(able, key=lambda boost: (tuple(boost.free[kind] for kind in kinds), boost.id), default=None)


def feasible(sought: Sought) -> Mask:
    """The nodes that may and can carry the task. The target also counts if one of its boosts can."""
    columns, home = sought.columns, sought.home
    if home >= 0 and columns.cordoned[home]:
        return np.zeros(len(columns), dtype=bool)
    mask = columns.lends.copy()
    if home >= 0:
        mask[home] = columns.up[home]
    for kind, units in sought.needs.items():
        mask &= sought.rooms[kind] >= units
    for name in sought.not_on:
        if name in columns.row:
            mask[columns.row[name]] = False
    if home >= 0 and not mask[home] and sought.boosts:
        mask[home] = sought.carrier() is not None
    return allowed(sought, mask)


def fits_itself(sought: Sought, row: int) -> bool:
    """Whether a node has room for the task outside boosts."""
    columns = sought.columns
    return (
        bool(columns.up[row])
        and columns.names[row] not in sought.not_on
        and all(sought.rooms[kind][row] >= units for kind, units in sought.needs.items())
    )


def allowed(sought: Sought, mask: Mask) -> Mask:
    """The nodes of `mask` that the task's own conditions allow, whether they have room or not."""
    request = sought.request
    if (only := request.only_node) is not None:
        mask &= sought.columns.named([only])
    near, far = request.near, request.far
    if near and near.required:
        for one in _wanted(sought, near):
            mask &= one
    if far and far.required:
        for one in _met(sought, far):
            mask &= ~one
    return mask


def preferred(sought: Sought) -> Units | None:
    """How many optional preferences each node meets; None if there are none."""
    near, far = sought.request.near, sought.request.far
    preferences = [one.astype(np.int64) for one in _met(sought, near)] if near and not near.required else []
    preferences += [-one.astype(np.int64) for one in _met(sought, far)] if far and not far.required else []
    return sum(preferences[1:], preferences[0]) if preferences else None


def _met(sought: Sought, affinity: Affinity) -> Iterator[Mask]:
    """One mask for each thing to be near to or far from."""
    columns = sought.columns
    if affinity.nodes:
        yield columns.named(affinity.nodes)
    for key, value in affinity.labels.items():
        yield columns.with_label(key, value)
    if affinity.tasks:
        yield columns.named(_with_tasks(sought, affinity))


def _wanted(sought: Sought, near: Affinity) -> Iterator[Mask]:
    """Like `_met`, but the first of several tasks that want to be together may go anywhere."""
    together = not _with_tasks(sought, near) and _is_its_own_peer(sought, near)
    yield from _met(sought, Affinity(near.nodes, near.labels) if together else near)


def _with_tasks(sought: Sought, affinity: Affinity) -> set[NodeName]:
    return {name for task in affinity.tasks for name in sought.peers.get(task, ())}


def _is_its_own_peer(sought: Sought, affinity: Affinity) -> bool:
    request = sought.request
    return not {request.task_id, *request.tags}.isdisjoint(affinity.tasks)


def stays_together(sought: Sought) -> bool:
    """Whether this is a gang whose members must be on one node."""
    near = sought.request.near
    return bool(near.tasks) and near.required and _is_its_own_peer(sought, near)


# -- reasons -------------------------------------------------------------------------------------------------


def why_not(sought: Sought, name: NodeName) -> str:
    """The first reason why a node cannot carry the task; empty if it can."""
    columns, request = sought.columns, sought.request
    row = columns.row[name]
    if (only := request.only_node) is not None and name != only:
        return _ruled_out(f"the request names node {only}")
    if (reason := columns.why_never(row, sought.offer)) is not None:
        return reason
    if reason := _why_not_allowed(sought, row):
        return _ruled_out(reason)
    if fits_itself(sought, row) or (row == sought.home and sought.carrier() is not None):
        return ""
    return _lacking(sought, row)


def _why_not_allowed(sought: Sought, row: int) -> str:
    near, far = sought.request.near, sought.request.far
    if near.required:
        for what, mask in zip(_parts(near), _wanted(sought, near), strict=False):
            if not mask[row]:
                return f"its affinity requires {what}"
    if far.required:
        for what, mask in zip(_parts(far), _met(sought, far), strict=False):
            if mask[row]:
                return f"its anti-affinity excludes {what}"
    return ""


def _parts(affinity: Affinity) -> Iterator[str]:
    if affinity.nodes:
        yield " or ".join(affinity.nodes)
    for key, value in affinity.labels.items():
        yield f"{key}={value}"
    if affinity.tasks:
        yield f"the tasks {', '.join(affinity.tasks)}"


def _lacking(sought: Sought, row: int) -> str:
    if reason := sought.columns.why_lacking(row, sought.target, sought.needs):
        boosts = (
            f", and no boost of {len(sought.boosts)} has room for it" if row == sought.home and sought.boosts else ""
        )
        return reason + boosts
    return RefusalCode.OTHERS_AHEAD.message({"ahead": "requests ahead of this one, or was taken meanwhile"})


def _ruled_out(conditions: str) -> str:
    return RefusalCode.RULED_OUT.message({"conditions": conditions})


def all_at_once(sought: Sought, count: int) -> Sought:
    """The same search for so many members together on one node."""
    needs = ResourceVector({kind: count * units for kind, units in sought.needs.items()})
    return replace(sought, needs=needs, members=count)
