"""Which units of a plan share what is held for them on a node.

Few holdings are cheap to get and to give back, so units share one wherever nothing speaks against it. What does: two
pools; parts of a GPU, which have to stay on one device; several actors that belong into one bundle; and units that may
end before the others, whose capacity must go home then.
"""

from collections.abc import Iterable

from distributed_grid.model.resources import GPU, scale, total
from distributed_grid.model.roles.holdings import Holding
from distributed_grid.model.roles.plan import Unit, UnitKind
from distributed_grid.model.roles.workload import Workload

_Key = tuple[str, str, tuple[int, int]]
"""Node, pool, and what tells apart those that share nothing."""

_SHARED = (-1, -1)


def holdings(units: Iterable[Unit], workload: Workload) -> tuple[Holding, ...]:
    """All units, each in one holding; by node and pool, the shared one first, then as the workload has its roles."""
    order = {role.name: number for number, role in enumerate(workload.roles)}
    least = {role.name: role.least for role in workload.roles}
    found: dict[_Key, list[Unit]] = {}
    for unit in sorted(units, key=lambda one: (order[one.members[0].role], one.index)):
        apart = (order[unit.members[0].role], unit.index)
        key = (unit.node, unit.pool or "", apart if _stays_alone(unit, least) else _SHARED)
        found.setdefault(key, []).append(unit)
    return tuple(_holding(found[key]) for key in sorted(found))


def _stays_alone(unit: Unit, least: dict[str, int]) -> bool:
    if unit.kind is UnitKind.BUNDLE or unit.resources[GPU] % scale(GPU):
        return True
    return any(member.index >= least[member.role] for member in unit.members)


def _holding(units: list[Unit]) -> Holding:
    return Holding(units[0].node, units[0].pool, total([unit.resources for unit in units]), tuple(units))
