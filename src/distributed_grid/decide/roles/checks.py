"""Checks of a placement, independent of the search; and which holdings of a plan still wait for capacity.

More capacity never invalidates a placement, so a plan stays valid while no other program takes the capacity.
"""

from collections import Counter
from collections.abc import Iterable

from distributed_grid.decide.capacity.devices import describe_room, short_of
from distributed_grid.decide.roles.units import UnitClass, classes_of
from distributed_grid.model.resources import GPU, describe, scale, total
from distributed_grid.model.roles.plan import Holding, Inventory, Placement, Unit
from distributed_grid.model.roles.workload import Workload


def violations(placement: Placement, workload: Workload, inventory: Inventory) -> list[str]:
    """Everything that is wrong with a placement; empty if it can be carried out as it is."""
    found = [*_not_all_there(placement, workload)]
    classes = {one.names: one for one in classes_of(workload)}
    for name, units in placement.by_node.items():
        node = inventory.get(name)
        if node is None or node.closed:
            found.append(f"{name}: {'there is no such node' if node is None else node.closed}")
            continue
        used = total([unit.resources for unit in units])
        found += [
            f"{name}: {describe(kind, used[kind])} planned, {describe(kind, max(0, node.free[kind]))} free"
            for kind in used
            if used[kind] > max(0, node.free[kind])
        ]
        if used[GPU] <= node.free[GPU] and short_of(node, *(unit.resources for unit in units))[GPU]:
            found.append(f"{name}: parts of GPUs do not fit on {describe(GPU, node.free[GPU])}")
        for one in {_class_of(unit, classes): None for unit in units}:
            if one is None:
                found.append(f"{name}: a unit does not belong to this workload")
            elif why := one.why_not_allowed(node):
                found.append(f"{name}: {why}")
    return found + _over_quota(placement, workload)


def _class_of(unit: Unit, classes: dict[tuple[str, ...], UnitClass]) -> UnitClass | None:
    return classes.get(tuple(member.role for member in unit.members))


def _not_all_there(placement: Placement, workload: Workload) -> list[str]:
    there = Counter((member.role, member.index) for unit in placement.units for member in unit.members)
    found = [f"{role} {index} has {times} places" for (role, index), times in there.items() if times > 1]
    for role in workload.roles:
        indexes = sorted(index for name, index in there if name == role.name)
        if indexes != list(range(len(indexes))) or not role.least <= len(indexes) <= role.most:
            found.append(f"{role.name}: {len(indexes)} placed, {role.least} to {role.most} wanted, numbered from 0")
    return found


def _over_quota(placement: Placement, workload: Workload) -> list[str]:
    used = placement.used_by_pool
    return [
        f"the pool {pool.name}: {describe(kind, used[pool.name][kind])} planned, {describe(kind, units)} allowed"
        for pool in workload.pools
        for kind, units in pool.quota.items()
        if pool.name in used and used[pool.name][kind] > units
    ]


def what_waits(holdings: Iterable[Holding], inventory: Inventory) -> tuple[str, ...]:
    """One line for each holding: what it is for, on which node, and what that node has free now."""
    return tuple(_line(holding, inventory) for holding in holdings)


def _line(holding: Holding, inventory: Inventory) -> str:
    counts: dict[str, int] = {}
    for unit in holding.units:
        for member in unit.members:
            counts[member.role] = counts.get(member.role, 0) + 1
    who = ", ".join(f"{count} {role}" for role, count in counts.items())
    pool = f" in the pool {holding.pool}" if holding.pool else ""
    waits = f"{holding.node}: the bundle for {who}{pool} waits for {holding.resources.describe()}"
    node = inventory.get(holding.node)
    if node is None:
        return f"{waits}; that node is gone"
    if node.closed:
        return f"{waits}; {node.closed}"
    short = [kind for kind, units in holding.resources.items() if units > node.free[kind]]
    if short:
        return f"{waits}; free: {', '.join(describe(kind, max(0, node.free[kind])) for kind in short)}"
    needed = holding.resources[GPU]
    if short_of(node, holding.resources):
        return f"{waits}; {describe(GPU, node.free[GPU])} are free, but only {describe_room(node, needed)}"
    if needed % scale(GPU) and scale(GPU) < node.total[GPU] > node.free[GPU]:
        return f"{waits}, which is free again, if it is on one device: Ray reports only the sum over all devices"
    return f"{waits}, which is free again"
