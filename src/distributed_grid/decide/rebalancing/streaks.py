"""For how many rounds on end something has been so: one round alone moves nothing."""

from collections.abc import Hashable, Iterator
from typing import Final

from distributed_grid.decide.demand import only_node
from distributed_grid.decide.own_use import own_part, reserved
from distributed_grid.decide.rebalancing.observed import Observed, Streaks, is_own
from distributed_grid.decide.rebalancing.returning import is_unneeded
from distributed_grid.model.demand import Shape
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import BUILT_IN, ResourceVector

_NOTHING: Final = ResourceVector()


def pressed_key(node: NodeName, kind: str) -> Hashable:
    return "pressed", node, kind


def foreseen_key(node: NodeName, kind: str) -> Hashable:
    return "foreseen", node, kind


def overloaded_key(node: NodeName, kind: str) -> Hashable:
    """A lender whose own work needs what it lent."""
    return "overloaded", node, kind


def waiting_key(node: NodeName, shape: Shape) -> Hashable:
    return "waiting", node, shape


def unneeded_key(lease: Lease) -> Hashable:
    return "unneeded", lease.id


def count(seen: Observed, before: Streaks) -> dict[Hashable, int]:
    """One more for what is so now; what nobody knows now stays as it was; all else begins again."""
    found: dict[Hashable, int] = {}
    for key, is_so in _facts(seen):
        if is_so is None:
            found[key] = before.get(key, 0)
        elif is_so:
            found[key] = before.get(key, 0) + 1
    return {key: rounds for key, rounds in found.items() if rounds}


def _facts(seen: Observed) -> Iterator[tuple[Hashable, bool | None]]:
    others = reserved(seen.leases)
    for name in seen.nodes:
        for kind in BUILT_IN:
            known = seen.value(name, kind) is not None
            lends = bool(seen.loans.lent(name, kind))
            # Who lends gets its own back first, and then has as long as all to see whether that is enough.
            yield pressed_key(name, kind), (name, kind) in seen.pressed and not lends if known else None
            yield foreseen_key(name, kind), seen.will_be_pressed(name, kind) and not lends
            if lends:
                yield overloaded_key(name, kind), _is_overloaded(seen, name, kind, others.get(name, _NOTHING)[kind])
    for demand in seen.demand:
        if (node := only_node(demand)) is not None:
            yield waiting_key(node, demand.pending.shape), True
    for lease in seen.leases:
        if is_own(lease) and not lease.is_winding_down:
            yield unneeded_key(lease), is_unneeded(seen, lease)


def _is_overloaded(seen: Observed, name: NodeName, kind: str, for_others: int) -> bool | None:
    snapshot = seen.snapshots.get(name)
    part = None if snapshot is None else own_part(snapshot, kind, for_others)
    return None if part is None else part >= seen.thresholds[kind].high
