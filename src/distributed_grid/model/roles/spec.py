"""A role: a named kind of actor in a workload, with its needs, its placement and its failure policy."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum, StrEnum
from typing import Final

from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import CPU, GPU, MEMORY, ResourceVector, units_of
from distributed_grid.model.roles import checks
from distributed_grid.model.roles.checks import Problems, Wrong, texts
from distributed_grid.model.roles.environment import EnvProfile, additions, allow_list, chosen, profile_parts
from distributed_grid.model.roles.scaling import MethodSignal, QueueSignal, Scaling


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """Names are alternatives, and so are several values of one key. Different keys, and the names, must all match."""

    names: tuple[NodeName, ...] = ()
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Each key with its values."""

    @classmethod
    def parse(cls, value: object) -> "NodeSelector":
        """From a list such as ["gpu1", "zone=a", "zone=b"]."""
        if isinstance(value, cls):
            return value
        names: list[NodeName] = []
        labels: dict[str, list[str]] = {}
        for word in texts(value):
            key, is_label, text = (part.strip() for part in word.partition("="))
            if not is_label:
                names.append(key)
            elif not key or not text:
                raise Wrong(f"{word!r} is not a label; write key=value")
            else:
                labels.setdefault(key, []).append(text)
        return cls(tuple(names), tuple((key, tuple(dict.fromkeys(found))) for key, found in labels.items()))

    def __bool__(self) -> bool:
        return bool(self.names or self.labels)

    def allows(self, name: NodeName, labels: Mapping[str, str]) -> bool:
        """Every part matches; without parts, every node does."""
        return (not self.names or name in self.names) and all(labels.get(key) in found for key, found in self.labels)

    def touches(self, name: NodeName, labels: Mapping[str, str]) -> bool:
        """Any part matches, for nodes to avoid."""
        return name in self.names or any(labels.get(key) in found for key, found in self.labels)

    def describe(self) -> str:
        """ "gpu1 or gpu2, zone=a or b"."""
        parts = [" or ".join(self.names)] if self.names else []
        return ", ".join([*parts, *(f"{key}={' or '.join(found)}" for key, found in self.labels)])

    def words(self) -> list[str]:
        """The parts as written in a list."""
        return [*self.names, *(f"{key}={text}" for key, found in self.labels for text in found)]


MOST_ACTORS: Final = 100_000
FOR_EVER: Final = -1
"""No limit on restarts."""

_CLASS: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class Colocation(StrEnum):
    """How members of a colocation group share a place."""

    PROCESS = "process"
    """One actor hosts an instance of each role. For each kind, it costs what its most demanding member needs."""
    BUNDLE = "bundle"
    """Each role has its own process, all in one bundle. The bundle costs the sum, and parts of a GPU share a device."""


class Arrangement(StrEnum):
    PACK = "pack"
    """On few nodes."""
    SPREAD = "spread"
    """As evenly over nodes as room allows."""


class FailurePolicy(StrEnum):
    RESTART = "restart"
    RESTART_GANG = "restart_gang"
    """All members of the role restart together."""
    CONTINUE_WITH_HEALTHY = "continue_with_healthy"
    """The run continues without it, and ends with the last member of the role."""
    CONTINUE = "continue"
    """The run continues without it, even if no member of the role is left."""
    FAIL = "fail"


class ConcurrencyOf(StrEnum):
    """The calls that `max_concurrency` limits."""

    ROLE = "role"
    """The calls of this role."""
    PROCESS = "process"
    """The calls of all roles in the process that choose this; the largest of their limits applies."""


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """One role. Invalid values raise an `InvalidRole` that names every problem at once."""

    role: str | Enum
    """A name, or a member of an Enum, which stands for its value. `name` has it as text."""
    cls: type | str | None = None
    """The class, or "module:Class", which is imported where the actor runs. None: for planning only."""
    config: object = field(default=None, hash=False)
    """Passed to the class; each instance has its own copy."""
    count: int | tuple[int, int] = 1
    """A number, or the least and the most."""
    cpus: float = 1
    gpus: float = 0
    """A part of one GPU, or whole GPUs."""
    memory_gb: float = 0
    resources: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Custom Ray resources."""
    max_concurrency: int | None = None
    """Concurrent calls. None: Ray's default (1, and 1,000 for a class with async methods)."""
    concurrency_of: ConcurrencyOf | str = ConcurrencyOf.ROLE
    env_allow: Sequence[str] = ()
    """Names of the caller's variables to pass on."""
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Variables to add."""
    env_profile: EnvProfile | str = EnvProfile.NONE
    pool: str | None = None
    colocation_group: str | None = None
    colocation: Colocation | str = Colocation.PROCESS
    node_affinity: NodeSelector | Sequence[str] = ()
    """Only on these nodes: names, or labels as "key=value"."""
    node_anti_affinity: NodeSelector | Sequence[str] = ()
    """On none of these nodes."""
    placement: Arrangement | str = Arrangement.PACK
    max_restarts: int = 3
    """For each actor; -1: no limit."""
    failure_policy: FailurePolicy | str = FailurePolicy.RESTART
    failure_budget: int | None = None
    """How many failures of the role's actors are allowed in total; one more ends the workload. None: any number."""
    startup_deadline_seconds: float = 300.0
    call_deadline_seconds: float | None = None
    """None: calls may take any time."""
    scaling: Scaling | Mapping[str, object] | None = None
    """How the number of members follows a signal, between the least and the most."""

    def __post_init__(self) -> None:
        problems = Problems()
        for name, (check, otherwise) in _CHECKS.items():
            object.__setattr__(self, name, problems.checked(name, check, getattr(self, name), otherwise))
        if not any(path[0] == "count" for path, _ in problems.found):
            self._check_scaling(problems)
        problems.complain(f"The role {self.role or '?'}")

    @property
    def name(self) -> str:
        return str(self.role)

    @property
    def least(self) -> int:
        return self.count if isinstance(self.count, int) else self.count[0]

    @property
    def most(self) -> int:
        return self.count if isinstance(self.count, int) else self.count[1]

    @property
    def needs(self) -> ResourceVector:
        """The needs of one of its actors."""
        given = {CPU: self.cpus, GPU: self.gpus, MEMORY: self.memory_gb, **self.resources}
        return ResourceVector({kind: units_of(kind, amount) for kind, amount in given.items() if amount})

    @property
    def near(self) -> NodeSelector:
        """The nodes that it must be on."""
        return NodeSelector.parse(self.node_affinity)

    @property
    def far(self) -> NodeSelector:
        """The nodes that it must not be on."""
        return NodeSelector.parse(self.node_anti_affinity)

    def environment(self, caller: Mapping[str, str], also: Sequence[str] = ()) -> dict[str, str]:
        """The environment of its actors, from the caller's and the role's own variables, without ranks and devices.

        `also`: names and patterns that the configuration allows for all roles.
        """
        allow, defaults = profile_parts(EnvProfile(self.env_profile))
        return chosen(caller, (*allow, *self.env_allow, *also), self.env, defaults)

    @property
    def follows(self) -> Scaling | None:
        """The signal that sets the count while the role runs."""
        return None if self.scaling is None else Scaling.parse(self.scaling)

    def with_count(self, count: int | tuple[int, int]) -> "RoleSpec":
        """The same role with another count. With a fixed count, it follows no signal."""
        fixed = isinstance(count, int) or count[0] == count[1]
        return replace(self, count=count, scaling=None if fixed else self.scaling)

    def _check_scaling(self, problems: Problems) -> None:
        if (scaling := self.follows) is None:
            return
        if self.least == self.most:
            problems.add(("scaling",), f"needs a count with a min and a max, not {self.most}")
        source = scaling.source
        own = isinstance(source, QueueSignal) or (isinstance(source, MethodSignal) and source.role == self.name)
        if own and not self.least:
            said = "the signal comes from the role's own members, so count needs a min of 1 or more"
            problems.add(("scaling", "signal"), said)


def environment_of(together: Sequence[RoleSpec], caller: Mapping[str, str], also: Sequence[str] = ()) -> dict[str, str]:
    """The environment of roles that share a process: everything each chose. Set variables win over passed-on ones."""
    found: dict[str, str] = {}
    for role in together:
        found = role.environment(caller, also) | found
    for role in together:
        found |= role.env
    return found


def _class(value: object) -> type | str | None:
    if value is None or isinstance(value, type):
        return value
    if isinstance(value, str) and _CLASS.fullmatch(value):
        return value
    if callable(getattr(value, "options", None)) or hasattr(value, "__ray_metadata__"):
        raise Wrong("pass the class itself, not the result of ray.remote")
    raise Wrong(f'must be a class, or "module:Class", not {checks.shown(value)}')


def _count(value: object) -> int | tuple[int, int]:
    if not isinstance(value, tuple | list):
        return checks.whole(1, MOST_ACTORS)(value)
    if len(value) != 2:
        raise Wrong(f"must be a number, or the least and the most, not {len(value)} numbers")
    least, most = checks.whole(0, MOST_ACTORS)(value[0]), checks.whole(1, MOST_ACTORS)(value[1])
    if least > most:
        raise Wrong(f"the least ({least}) is above the most ({most})")
    return least if least == most else (least, most)


# For each field: how it is checked and normalised, and what replaces an invalid value while the rest is checked.
_CHECKS: Final[Mapping[str, tuple[Callable[[object], object], object]]] = {
    "role": (checks.role_name, ""),
    "cls": (_class, None),
    "count": (_count, 1),
    "cpus": (checks.amount(CPU), 0),
    "gpus": (checks.amount(GPU), 0),
    "memory_gb": (checks.amount(MEMORY), 0),
    "resources": (checks.custom_amounts, {}),
    "max_concurrency": (checks.or_none(checks.whole(1, 1_000_000)), None),
    "concurrency_of": (checks.word(ConcurrencyOf), ConcurrencyOf.ROLE),
    "env_allow": (allow_list, ()),
    "env": (additions, {}),
    "env_profile": (checks.word(EnvProfile), EnvProfile.NONE),
    "pool": (checks.name_or_none, None),
    "colocation_group": (checks.name_or_none, None),
    "colocation": (checks.word(Colocation), Colocation.PROCESS),
    "node_affinity": (NodeSelector.parse, NodeSelector()),
    "node_anti_affinity": (NodeSelector.parse, NodeSelector()),
    "placement": (checks.word(Arrangement), Arrangement.PACK),
    "max_restarts": (checks.whole(FOR_EVER, 1_000_000), 0),
    "failure_policy": (checks.word(FailurePolicy), FailurePolicy.FAIL),
    "failure_budget": (checks.or_none(checks.whole(0, 1_000_000)), None),
    "startup_deadline_seconds": (checks.seconds, 1.0),
    "call_deadline_seconds": (checks.or_none(checks.seconds), None),
    "scaling": (checks.or_none(Scaling.parse), None),
}

FIELDS: Final = tuple(one.name for one in fields(RoleSpec))
