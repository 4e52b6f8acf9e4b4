"""From roles to units that are placed as one (an actor, a process with several roles, a bundle), and to holdings.

Few holdings are cheap to get and to return, so units share one unless there is a reason against it: they are in two
pools; they use parts of a GPU, which must stay on one device; they are actors that belong in one bundle; or they may
end before the others, and their capacity must then be returned.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from distributed_grid.model.resources import GPU, ResourceVector, scale, total
from distributed_grid.model.roles.plan import Holding, InventoryNode, Member, Unit, UnitKind
from distributed_grid.model.roles.spec import Arrangement, Colocation, RoleSpec
from distributed_grid.model.roles.workload import Pool, Workload


@dataclass(frozen=True, slots=True)
class UnitClass:
    """Identical units: the actors of one role, or of one colocation group, index by index."""

    roles: tuple[RoleSpec, ...]
    kind: UnitKind
    needs: ResourceVector
    """The needs of one unit."""
    members: tuple[tuple[str, ResourceVector], ...]
    least: int
    most: int
    pool: Pool | None
    spreads: bool

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(role.name for role in self.roles)

    @property
    def name(self) -> str:
        return "+".join(self.names)

    @property
    def follows(self) -> bool:
        """Whether a signal sets the count."""
        return any(role.follows is not None for role in self.roles)

    def why_not_allowed(self, node: InventoryNode) -> str:
        """Which rule of the workload keeps the class off a node, however much is free there; empty if none does."""
        for role in self.roles:
            if not role.near.allows(node.name, node.labels):
                return f"{role.name} must be on {role.near.describe()}"
            if role.far.touches(node.name, node.labels):
                return f"{role.name} must not be on {role.far.describe()}"
        if self.pool is not None and not self.pool.where.allows(node.name, node.labels):
            return f"the pool {self.pool.name} is on {self.pool.where.describe()}"
        return ""

    def unit(self, node: str, index: int) -> Unit:
        members = tuple(Member(name, index, needs) for name, needs in self.members)
        return Unit(node, self.kind, members, self.needs, None if self.pool is None else self.pool.name)

    def with_counts(self, least: int, most: int) -> "UnitClass":
        return replace(self, least=least, most=most)


def classes_of(workload: Workload) -> tuple[UnitClass, ...]:
    """One class for each role or colocation group, in the workload's order."""
    return tuple(_class_of(group, workload) for group in workload.together)


def _class_of(group: tuple[RoleSpec, ...], workload: Workload) -> UnitClass:
    members = tuple((role.name, role.needs) for role in group)
    kind, needs = _together(group, [vector for _, vector in members])
    pool = next((role.pool for role in group if role.pool is not None), None)
    return UnitClass(
        roles=group,
        kind=kind,
        needs=needs,
        members=members,
        least=group[0].least,
        most=group[0].most,
        pool=workload.pool(pool),
        spreads=any(role.placement == Arrangement.SPREAD for role in group),
    )


def _together(group: tuple[RoleSpec, ...], needs: list[ResourceVector]) -> tuple[UnitKind, ResourceVector]:
    if group[0].colocation_group is None:
        return UnitKind.ACTOR, needs[0]
    if group[0].colocation == Colocation.PROCESS:
        return UnitKind.PROCESS, dearest(needs)
    return UnitKind.BUNDLE, bundled(needs)


def dearest(needs: list[ResourceVector]) -> ResourceVector:
    """The largest need of each kind: the roles share one process, and take turns."""
    found: dict[str, int] = {}
    for vector in needs:
        for kind, units in vector.items():
            found[kind] = max(units, found.get(kind, 0))
    return ResourceVector(found)


def bundled(needs: list[ResourceVector]) -> ResourceVector:
    """The sum. Above one GPU, Ray assigns only whole devices, so parts that do not fit on one device take another."""
    together = total(needs)
    return together + ResourceVector({GPU: _devices_units([vector[GPU] for vector in needs]) - together[GPU]})


def _devices_units(parts: list[int]) -> int:
    """GPUs for these members: their sum if it fits on one device, else as many whole devices as they fill."""
    one = scale(GPU)
    if sum(parts) <= one:
        return sum(parts)
    whole = sum(part for part in parts if part >= one)
    left: list[int] = []
    for part in sorted((part for part in parts if 0 < part < one), reverse=True):
        device = next((number for number, room in enumerate(left) if room >= part), None)
        if device is None:
            left.append(one - part)
        else:
            left[device] -= part
    return whole + one * len(left)


def standing_by_class(classes: tuple[UnitClass, ...], standing: tuple[Unit, ...]) -> Mapping[str, list[Unit]]:
    """Existing units, by the name of their class."""
    found: dict[str, list[Unit]] = {one.name: [] for one in classes}
    for unit in standing:
        found.setdefault("+".join(member.role for member in unit.members), []).append(unit)
    return found


_Key = tuple[str, str, tuple[int, int]]
"""Node, pool, and a key that separates units which share no holding."""

_SHARED = (-1, -1)


def holdings(units: Iterable[Unit], workload: Workload) -> tuple[Holding, ...]:
    """All units, each in one holding; by node and pool, the shared one first, then in the workload's order of roles."""
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
