"""A workload: its roles and pools, checked against each other when it is made; the counts that roles may scale to."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from distributed_grid.errors import InvalidRole, did_you_mean
from distributed_grid.model.resources import CPU, GPU, MEMORY, units_of
from distributed_grid.model.roles import checks
from distributed_grid.model.roles.checks import Problems, Steps, Wrong
from distributed_grid.model.roles.scaling import MethodSignal
from distributed_grid.model.roles.spec import Colocation, NodeSelector, RoleSpec


@dataclass(frozen=True, slots=True)
class Pool:
    """A limit for each kind that is named, on these nodes. Kinds that are not named have no limit."""

    name: str
    num_cpus: float | None = None
    num_gpus: float | None = None
    memory_gb: float | None = None
    resources: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Custom Ray resources."""
    nodes: NodeSelector | Sequence[str] = ()
    """Names, or labels as "key=value". Empty: all nodes."""

    def __post_init__(self) -> None:
        problems = Problems()
        for name, (check, otherwise) in _CHECKS.items():
            object.__setattr__(self, name, problems.checked(name, check, getattr(self, name), otherwise))
        if not problems.found and not self.quota and not self.nodes:
            problems.add((), "it has no limit and no nodes; give num_cpus, num_gpus, memory_gb, resources or nodes")
        problems.complain(f"The pool {self.name or '?'}")

    @property
    def where(self) -> NodeSelector:
        return NodeSelector.parse(self.nodes)

    @property
    def quota(self) -> dict[str, int]:
        """Units by kind; zero is a limit, too."""
        given = {CPU: self.num_cpus, GPU: self.num_gpus, MEMORY: self.memory_gb, **self.resources}
        return {kind: units_of(kind, amount) if amount else 0 for kind, amount in given.items() if amount is not None}


def _number_of(kind: str) -> Callable[[object], float | int | None]:
    """A sum over many actors, so parts of GPUs may add up to any amount."""
    return checks.or_none(checks.amount(CPU if kind == GPU else kind))


_CHECKS: Final[Mapping[str, tuple[Callable[[object], object], object]]] = {
    "name": (checks.name, ""),
    "num_cpus": (_number_of(CPU), None),
    "num_gpus": (_number_of(GPU), None),
    "memory_gb": (_number_of(MEMORY), None),
    "resources": (checks.custom_amounts, {}),
    "nodes": (NodeSelector.parse, NodeSelector()),
}


@dataclass(frozen=True, slots=True)
class Workload:
    """Roles that are started together, all or none. Roles and pools that do not fit together raise an `InvalidRole`."""

    name: str
    roles: tuple[RoleSpec, ...]
    pools: tuple[Pool, ...] = ()

    def __post_init__(self) -> None:
        problems = Problems()
        object.__setattr__(self, "name", problems.checked("name", checks.name, self.name, "?"))
        object.__setattr__(self, "roles", tuple(self.roles))
        object.__setattr__(self, "pools", tuple(self.pools))
        if not self.roles:
            problems.add(("roles",), "a workload has at least one role")
        _check_names(problems, "roles", [role.name for role in self.roles])
        _check_names(problems, "resource_pools", [pool.name for pool in self.pools])
        self._check_pools(problems)
        self._check_signals(problems)
        for group in self.together:
            self._check_group(problems, group)
        problems.complain(f"The workload {self.name}")

    @property
    def together(self) -> tuple[tuple[RoleSpec, ...], ...]:
        """The roles by what is placed as one: each colocation group, and every other role by itself."""
        groups: dict[tuple[str, str], list[RoleSpec]] = {}
        for role in self.roles:
            group = role.colocation_group
            key = ("role", role.name) if group is None else ("group", group)
            groups.setdefault(key, []).append(role)
        return tuple(map(tuple, groups.values()))

    def role(self, name: str) -> RoleSpec | None:
        return next((role for role in self.roles if role.name == name), None)

    def pool(self, name: str | None) -> Pool | None:
        return next((pool for pool in self.pools if pool.name == name), None)

    def with_counts(self, counts: Mapping[str, int | tuple[int, int]]) -> "Workload":
        """The same workload with other counts for some roles."""
        changed = (r.with_count(counts[r.name]) if r.name in counts else r for r in self.roles)
        return replace(self, roles=tuple(changed))

    def _check_pools(self, problems: Problems) -> None:
        known = [pool.name for pool in self.pools]
        for role in self.roles:
            if role.pool is not None and role.pool not in known:
                there = f"there are {', '.join(known)}" if known else "the workload has no pools"
                problems.add(_at(role, "pool"), f"there is no pool {role.pool!r}; {there}")

    def _check_signals(self, problems: Problems) -> None:
        known = [role.name for role in self.roles]
        for role in self.roles:
            source = None if role.follows is None else role.follows.source
            if isinstance(source, MethodSignal) and source.role not in known:
                said = f"there is no role {source.role!r}; there are {', '.join(known)}"
                problems.add((*_at(role, "scaling"), "signal", "role"), said)

    def _check_group(self, problems: Problems, group: tuple[RoleSpec, ...]) -> None:
        first = group[0]
        for other in group[1:]:
            if other.colocation != first.colocation:
                said = f"must be {first.colocation}, like that of {first.name} in the same colocation group"
                problems.add(_at(other, "colocation"), said)
            if (other.least, other.most) != (first.least, first.most):
                said = f"{_many(other)}, but {first.name}, in the same colocation group, has {_many(first)}"
                problems.add(_at(other, "count"), said)
        if first.colocation is Colocation.PROCESS:
            _check_environment(problems, group)
        following = [role for role in group if role.follows is not None]
        for role in following[1:]:
            said = f"{following[0].name}, in the same colocation group, already defines it for the group; only one may"
            problems.add(_at(role, "scaling"), said)
        pools = {role.pool: role for role in group if role.pool is not None}
        for pool, role in [*pools.items()][1:]:
            right, other = next(iter(pools.items()))
            problems.add(_at(role, "pool"), f"{pool}, but {other.name}, in the same colocation group, is in {right}")


def _check_environment(problems: Problems, group: tuple[RoleSpec, ...]) -> None:
    """Colocated roles share one environment, so they must agree. Values may be secrets and are not shown."""
    said: dict[str, RoleSpec] = {}
    for role in group:
        for key, value in role.env.items():
            first = said.setdefault(key, role)
            if first.env[key] != value:
                conflict = f"{first.name}, in the same process, sets it to something else"
                problems.add((*_at(role, "env"), key), conflict)


def _check_names(problems: Problems, what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            problems.add((what, name), "duplicate name; names must be unique")
        seen.add(name)


def _at(role: RoleSpec, field: str) -> Steps:
    return ("roles", role.name, field)


def _many(role: RoleSpec) -> str:
    return str(role.least) if role.least == role.most else f"{role.least} to {role.most}"


def spec_named(workload: Workload, role: str | Enum) -> RoleSpec:
    wanted = text_of_role(role)
    found = workload.role(wanted)
    if found is None:
        names = [spec.name for spec in workload.roles]
        said = f"The workload {workload.name} has no role {wanted!r}{did_you_mean(wanted, names)}"
        raise InvalidRole(said, because=[f"it has {', '.join(names)}"])
    return found


def text_of_role(role: object) -> str:
    """The name, from text or from a member of any Enum."""
    try:
        return checks.name(role)
    except Wrong as wrong:
        raise InvalidRole(f"A role {wrong}") from None


def scaled_counts(workload: Workload, role: str | Enum, count: int) -> Mapping[str, int]:
    """The count of each role that changes. Roles of a colocation group change together."""
    spec = spec_named(workload, role)
    if not spec.least <= count <= spec.most:
        wanted = str(spec.least) if spec.least == spec.most else f"{spec.least} to {spec.most}"
        raise InvalidRole(
            f"{spec.name} may have {wanted} members, not {count}",
            try_next=f"Give it the count ({count}, ...) when it is made.",
        )
    together = next(group for group in workload.together if spec in group)
    return {one.name: count for one in together}
