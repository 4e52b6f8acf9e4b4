"""From roles to what is placed as one: an actor, a process with several roles, or a bundle."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from distributed_grid.model.resources import GPU, ResourceVector, scale, total
from distributed_grid.model.roles.inventory import InventoryNode
from distributed_grid.model.roles.plan import Member, Unit, UnitKind
from distributed_grid.model.roles.pools import Pool
from distributed_grid.model.roles.spec import Arrangement, Colocation, RoleSpec
from distributed_grid.model.roles.workload import Workload


@dataclass(frozen=True, slots=True)
class UnitClass:
    """Units that are all alike: the actors of one role, or of one colocation group, index by index."""

    roles: tuple[RoleSpec, ...]
    kind: UnitKind
    needs: ResourceVector
    """Of one unit."""
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
        """A signal says how many there are."""
        return any(role.follows is not None for role in self.roles)

    def why_not_allowed(self, node: InventoryNode) -> str:
        """What in the workload keeps it off a node, however much is free there; empty if nothing does."""
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
    """One for each role or colocation group, as the workload has them."""
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
    """Of each kind, what the dearest of them needs: they share one process, and take turns."""
    found: dict[str, int] = {}
    for vector in needs:
        for kind, units in vector.items():
            found[kind] = max(units, found.get(kind, 0))
    return ResourceVector(found)


def bundled(needs: list[ResourceVector]) -> ResourceVector:
    """The sum; but Ray gives out more than one GPU only whole, so parts that do not share one take another."""
    together = total(needs)
    return together + ResourceVector({GPU: _devices_units([vector[GPU] for vector in needs]) - together[GPU]})


def _devices_units(parts: list[int]) -> int:
    """GPUs for these members: their sum if one device holds it, else as many whole devices as they fill."""
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
    """Units that exist already, by the name of their class."""
    found: dict[str, list[Unit]] = {one.name: [] for one in classes}
    for unit in standing:
        found.setdefault("+".join(member.role for member in unit.members), []).append(unit)
    return found
