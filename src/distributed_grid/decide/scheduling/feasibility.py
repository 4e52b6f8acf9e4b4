"""Which nodes can carry a task: a mask for deciding, and words for those who ask why not."""

from collections.abc import Iterator

import numpy as np

from distributed_grid.decide.scheduling.sought import Sought
from distributed_grid.decide.scheduling.table import Mask, Units
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import amount_of, describe
from distributed_grid.model.scheduling import Affinity


def feasible(sought: Sought) -> Mask:
    """The nodes that may and can carry it; the target can also with a boost."""
    columns, home = sought.columns, sought.home
    if home >= 0 and columns.rests[home]:
        return np.zeros(len(columns), dtype=bool)
    mask = columns.lends.copy()
    if home >= 0:
        mask[home] = columns.up[home]
    for kind, units in sought.needs.items():
        mask &= sought.rooms[kind] >= units
    for name in sought.not_on | sought.kept:
        if name in columns.row:
            mask[columns.row[name]] = False
    if home >= 0 and not mask[home] and sought.boosts:
        mask[home] = sought.carrier() is not None
    return allowed(sought, mask)


def fits_itself(sought: Sought, row: int) -> bool:
    """Whether a node has room of its own for it, rather than in a boost."""
    columns = sought.columns
    return (
        bool(columns.up[row])
        and columns.names[row] not in sought.not_on | sought.kept
        and all(sought.rooms[kind][row] >= units for kind, units in sought.needs.items())
    )


def allowed(sought: Sought, mask: Mask) -> Mask:
    """Of these nodes, those that its own conditions do not rule out; whether they have room does not matter."""
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
    """How many of the wishes that are no conditions each node meets; None where there are none."""
    near, far = sought.request.near, sought.request.far
    wishes = [one.astype(np.int64) for one in _met(sought, near)] if near and not near.required else []
    wishes += [-one.astype(np.int64) for one in _met(sought, far)] if far and not far.required else []
    return sum(wishes[1:], wishes[0]) if wishes else None


def _met(sought: Sought, affinity: Affinity) -> Iterator[Mask]:
    """One mask for each thing to be near to, or far from."""
    columns = sought.columns
    if affinity.nodes:
        yield columns.named(affinity.nodes)
    for key, value in affinity.labels.items():
        yield columns.with_label(key, value)
    if affinity.tasks:
        yield columns.named(_with_tasks(sought, affinity))


def _wanted(sought: Sought, near: Affinity) -> Iterator[Mask]:
    """The same; but the first of those who want to be together may be anywhere."""
    together = not _with_tasks(sought, near) and _is_its_own_peer(sought, near)
    yield from _met(sought, Affinity(near.nodes, near.labels) if together else near)


def _with_tasks(sought: Sought, affinity: Affinity) -> set[NodeName]:
    return {name for task in affinity.tasks for name in sought.peers.get(task, ())}


def _is_its_own_peer(sought: Sought, affinity: Affinity) -> bool:
    request = sought.request
    return not {request.task_id, *request.tags}.isdisjoint(affinity.tasks)


def stays_together(sought: Sought) -> bool:
    """A gang whose members must be on one node."""
    near = sought.request.near
    return bool(near.tasks) and near.required and _is_its_own_peer(sought, near)


# -- words ---------------------------------------------------------------------------------------------------


def why_not(sought: Sought, name: NodeName) -> str:
    """The first reason why a node cannot carry it; empty if it can."""
    columns, request = sought.columns, sought.request
    row = columns.row[name]
    if (only := request.only_node) is not None and name != only:
        return f"only {only} will do"
    is_home = row == sought.home
    if sought.home >= 0 and columns.rests[sought.home]:
        return f"{sought.target} is cooling down; to end that: grid cooldown {sought.target} --off"
    if columns.closed[row] and not (is_home and columns.up[row]):
        return columns.closed[row]
    if told := _why_not_allowed(sought, row):
        return told
    if fits_itself(sought, row) or (is_home and sought.carrier() is not None):
        return ""
    return _lacking(sought, row)


def _why_not_allowed(sought: Sought, row: int) -> str:
    near, far = sought.request.near, sought.request.far
    if near.required:
        for what, mask in zip(_parts(near), _wanted(sought, near), strict=False):
            if not mask[row]:
                return f"it must be near {what}"
    if far.required:
        for what, mask in zip(_parts(far), _met(sought, far), strict=False):
            if mask[row]:
                return f"it must be far from {what}"
    return ""


def _parts(affinity: Affinity) -> Iterator[str]:
    if affinity.nodes:
        yield " or ".join(affinity.nodes)
    for key, value in affinity.labels.items():
        yield f"{key}={value}"
    if affinity.tasks:
        yield f"the tasks {', '.join(affinity.tasks)}"


def _lacking(sought: Sought, row: int) -> str:
    columns, name = sought.columns, sought.columns.names[row]
    short = next(((k, u) for k, u in sought.needs.items() if sought.rooms[k][row] < u), None)
    if short is None:
        kept = "it is kept for a task that has waited longer"
        return kept if name in sought.kept else "it was busy after all, or its room is kept for requests ahead of it"
    kind, units = short
    has = max(0, int(sought.rooms[kind][row]))
    total = int(columns.total[kind][row]) if kind in columns.total else 0
    asked = f"{amount_of(kind, units)} asked"
    if row != sought.home:
        return f"{amount_of(kind, has)} of {describe(kind, total)} can be had, {asked}"
    boosts = f", and no boost of {len(sought.boosts)} has room for it" if sought.boosts else ""
    return f"{amount_of(kind, has)} of {describe(kind, total)} free, {asked}{boosts}"
