"""Tasks: the request for a place, the decision, and the scheduler's record of tasks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Self

from distributed_grid.errors import InvalidRequest
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.requests import DEFAULT_DURATION_S, MOST_MEMBERS, Layout
from distributed_grid.model.resources import BUILT_IN, CPU, GPU, MEMORY, ResourceVector, kind_of, units_requested
from distributed_grid.model.validators import is_whole, seconds, short_text, task_id


class SchedulingStrategy(StrEnum):
    """Which of the nodes that can carry a task gets it. More can be added: see `register_strategy`."""

    LOCAL_FIRST = "local_first"
    BEST_FIT = "best_fit"
    LOAD_BALANCED = "load_balanced"
    PERFORMANCE_OPTIMIZED = "performance_optimized"
    COST_OPTIMIZED = "cost_optimized"
    SPREAD = "spread"
    NODE_SPECIFIC = "node_specific"


class PlacedBy(StrEnum):
    """The thing that holds a place."""

    RESERVE = "reserve"  # a lease made for the task: a placement group on the node
    BOOST = "boost"  # a boost that the target already had


@dataclass(frozen=True, slots=True)
class Affinity:
    """Nodes, labels and tasks to be near to, or far from. Each part that is given counts."""

    nodes: tuple[NodeName, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    """Tasks that have a place now, by id or by tag."""
    required: bool = True
    """False: only a preference."""

    @classmethod
    def parse(cls, given: "Affinity | Mapping[str, object] | None") -> Self:
        if given is None:
            return cls()
        if isinstance(given, cls) and isinstance(given.nodes, tuple) and isinstance(given.tasks, tuple):
            return given
        found = _affinity_parts(given)
        labels = found.get("labels", {})
        if not isinstance(labels, Mapping):
            raise InvalidRequest(f"Labels are a mapping of names to values, not {labels!r}")
        return cls(
            _names("nodes", found.get("nodes", ())),
            {str(key): str(value) for key, value in labels.items()},
            _names("tasks", found.get("tasks", ())),
            bool(found.get("required", True)),
        )

    def __bool__(self) -> bool:
        return bool(self.nodes or self.labels or self.tasks)


def _affinity_parts(given: Affinity | Mapping[str, object]) -> Mapping[str, object]:
    if isinstance(given, Affinity):
        return {name: getattr(given, name) for name in _AFFINITY_PARTS}
    if not isinstance(given, Mapping) or not given.keys() <= _AFFINITY_PARTS:
        raise InvalidRequest(f"An affinity has nodes, labels, tasks and required, not {given!r}")
    return given


_AFFINITY_PARTS: Final = frozenset(part.name for part in fields(Affinity))


@dataclass(frozen=True, slots=True)
class SchedulingRequest:
    """One task, or a gang of equal ones, and what each of them needs.

    Names may be enum members, or in lower case with '_' or '-'. Invalid values raise an `InvalidRequest`.
    """

    task_id: str = ""
    """If empty, an id is made when the task is scheduled."""
    cpu: float = 1.0
    memory: float = 0.0
    """GB."""
    gpu: float = 0.0
    custom: Mapping[str, float] = field(default_factory=dict)
    """Custom Ray resources."""
    target: NodeName | None = None
    """The node that the task belongs to; the task may use its boosts. None: the head."""
    node: NodeName | None = None
    """The only node that may carry the task. None, with `node_specific`: the target."""
    strategy: SchedulingStrategy | str = ""
    """Empty: local_first, or node_specific if a node is given."""
    priority: AllocationPriority | str = AllocationPriority.NORMAL
    affinity: Affinity | Mapping[str, object] | None = None
    anti_affinity: Affinity | Mapping[str, object] | None = None
    tags: tuple[str, ...] = ()
    """Other tasks can refer to it by these."""
    deadline_seconds: float | None = None
    """It must start within this time, counted from now."""
    duration_seconds: float | None = None
    """How long it is expected to take."""
    count: int = 1
    """The size of the gang; all members or none."""
    wait: bool = False
    """If there is no place now, it waits for one: until its deadline, or without limit."""
    own_lease: bool = False
    """All its members are in one lease of their own, so in one placement group; never in a boost."""

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("task_id", task_id(self.task_id))
        put("tags", _names("tags", self.tags))
        put("priority", AllocationPriority.parse(self.priority))
        put("affinity", Affinity.parse(self.affinity))
        put("anti_affinity", Affinity.parse(self.anti_affinity))
        for name in ("target", "node"):
            put(name, None if getattr(self, name) is None else short_text(name, getattr(self, name)) or None)
        put("strategy", strategy_name(self.strategy) or self._own_strategy)
        put("custom", {kind_of(name): amount for name, amount in self.custom.items()})
        for name in ("deadline_seconds", "duration_seconds"):
            given = getattr(self, name)
            put(name, None if given is None else seconds(name.partition("_")[0], given))
        self._check()

    @property
    def _own_strategy(self) -> SchedulingStrategy:
        return SchedulingStrategy.LOCAL_FIRST if self.node is None else SchedulingStrategy.NODE_SPECIFIC

    def _check(self) -> None:
        if not is_whole(self.count, 1, MOST_MEMBERS):
            raise InvalidRequest(f"The count must be a whole number from 1 to {MOST_MEMBERS}, not {self.count!r}")
        if self.node is not None and self.strategy != SchedulingStrategy.NODE_SPECIFIC:
            raise InvalidRequest(
                f"The strategy {self.strategy} chooses a node, and {self.node} was given",
                try_next="Leave the strategy out, or prefer the node: affinity={'nodes': [...], 'required': False}.",
            )
        if set(self.custom) & set(BUILT_IN):
            raise InvalidRequest("cpu, gpu and memory have fields of their own")
        if not self.needs:
            raise InvalidRequest("A task needs something: cpu, gpu, memory or a custom resource")

    @property
    def amounts(self) -> dict[str, float]:
        """The needs of one member, as written, by kind; kinds that are not needed are left out."""
        found = {GPU: self.gpu, CPU: self.cpu, MEMORY: self.memory, **self.custom}
        return {kind: amount for kind, amount in found.items() if not _is_nothing(amount)}

    @property
    def needs(self) -> ResourceVector:
        return ResourceVector({kind: units_requested(kind, amount) for kind, amount in self.amounts.items()})

    @property
    def only_node(self) -> NodeName | None:
        """The only node that may carry it, if there is such a restriction."""
        return (self.node or self.target) if self.strategy == SchedulingStrategy.NODE_SPECIFIC else None

    @property
    def near(self) -> Affinity:
        return Affinity.parse(self.affinity)

    @property
    def far(self) -> Affinity:
        return Affinity.parse(self.anti_affinity)

    @property
    def layout(self) -> Layout:
        """How a gang is laid out: its affinity may name itself, by its id or a tag, and so may its anti-affinity."""
        if self._is_own(self.near) and self.near.required:
            return Layout.STRICT_PACK
        if self._is_own(self.far):
            return Layout.STRICT_SPREAD if self.far.required else Layout.SPREAD
        return Layout.SPREAD if self.strategy == SchedulingStrategy.SPREAD else Layout.PACK

    def _is_own(self, affinity: Affinity) -> bool:
        return not {self.task_id, *self.tags}.isdisjoint(affinity.tasks)


@dataclass(frozen=True, slots=True)
class Alternative:
    """A node that could have carried the task, but was not the best."""

    node: NodeName
    score: float
    why: str


@dataclass(frozen=True, slots=True)
class Placement:
    """One task's place."""

    node: NodeName
    """Where it counts as placed: work in a boost counts as its target's, whichever node's hardware it runs on."""
    delivery: PlacedBy
    runs_on: NodeName
    """The node whose hardware it uses."""
    lease_id: str | None = None
    """The lease that was made for it."""
    boost_id: str | None = None
    """The boost that it is in."""
    placement_group: str | None = None
    bundle: int = 1
    """The number of its bundle in that group, from 1 on."""


@dataclass(frozen=True, slots=True)
class SchedulingDecision:
    """True if there is a place. For a gang, the decision shows the first member's place."""

    task_id: str
    accepted: bool
    confidence: float = 0.0
    """0..1: how likely it is that the task starts within its limit and its node then stays below the high threshold."""
    reasons: tuple[str, ...] = ()
    """Why this node; or, for every node, why not."""
    members: tuple[Placement, ...] = ()
    """All places; a gang has several."""
    alternatives: tuple[Alternative, ...] = ()
    queued: bool = False
    """It waits for a place."""
    position: int | None = None
    """In the queue, from 1."""

    def __bool__(self) -> bool:
        return self.accepted

    @property
    def node(self) -> NodeName | None:
        return self.members[0].node if self.members else None

    @property
    def delivery(self) -> PlacedBy | None:
        return self.members[0].delivery if self.members else None

    @property
    def lease_id(self) -> str | None:
        return self.members[0].lease_id if self.members else None

    @property
    def boost_id(self) -> str | None:
        return self.members[0].boost_id if self.members else None

    @property
    def placement_group(self) -> str | None:
        return self.members[0].placement_group if self.members else None


def strategy_name(given: "SchedulingStrategy | str") -> str:
    """The registered name: an enum member if it is one of grid's own."""
    name = short_text("strategy", given).lower().replace("-", "_")
    try:
        return SchedulingStrategy(name)
    except ValueError:
        return name


def _names(what: str, given: object) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidRequest(f"The {what} must be a list of texts, not {given!r:.80}")
    return tuple(dict.fromkeys(short_text(what, each) for each in given))


def _is_nothing(amount: object) -> bool:
    return not isinstance(amount, str) and amount == 0


@dataclass(frozen=True, slots=True)
class ScheduledTask:
    """A task, or a gang, from its request until it is done."""

    request: SchedulingRequest
    """With its id and its target."""
    needs: Mapping[str, int]
    """The amounts that each place takes, in units."""
    asked_at: datetime
    who: str = ""
    team: str = ""
    members: tuple[Placement, ...] = ()
    """Its places; none while it waits."""
    placed_at: datetime | None = None
    started_at: datetime | None = None
    """When it really started, as reported."""
    predicted: tuple[tuple[float, float], ...] = ()
    """For each prediction about it: the model's estimate, and the calibrated value."""
    reasons: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    is_judged: bool = False
    """Its predictions have been compared with what happened."""

    @property
    def id(self) -> str:
        return self.request.task_id

    @property
    def waits(self) -> bool:
        return not self.members

    @property
    def start_by(self) -> datetime | None:
        limit = self.request.deadline_seconds
        return None if limit is None else self.asked_at + timedelta(seconds=limit)

    @property
    def expected_end(self) -> datetime | None:
        lasts = self.request.duration_seconds
        return None if lasts is None or self.placed_at is None else self.placed_at + timedelta(seconds=lasts)

    @property
    def held_s(self) -> float | None:
        """How long its place is held without a report that it is done; None: as long as leases usually last."""
        lasts = self.request.duration_seconds
        return None if lasts is None else 2 * lasts + 60.0

    def is_forgotten(self, now: datetime) -> bool:
        """Whether it should have ended long ago and only boosts, which may last, hold its place."""
        if self.placed_at is None or any(member.lease_id is not None for member in self.members):
            return False
        return now - self.placed_at > timedelta(seconds=self.held_s or DEFAULT_DURATION_S)

    @property
    def confidence(self) -> float:
        return self.predicted[-1][1] if self.predicted else 0.0

    def decision(self, position: int | None = None) -> SchedulingDecision:
        return SchedulingDecision(
            self.id,
            accepted=not self.waits,
            confidence=self.confidence,
            reasons=self.reasons,
            members=self.members,
            alternatives=self.alternatives,
            queued=self.waits,
            position=position,
        )


@dataclass(frozen=True, slots=True)
class SchedulingRecord:
    """The scheduler's state that survives restarts."""

    tasks: tuple[ScheduledTask, ...] = ()
    outcomes: tuple[tuple[float, float, bool], ...] = ()
    """For recent placements: the model's estimate, the calibrated value, and whether it happened."""
    start_delays_s: tuple[float, ...] = field(default=())
