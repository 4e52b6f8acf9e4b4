"""A round of the scheduler: every waiting task in order, each with what earlier ones left.

Free room in a target's reserved boosts counts. While other requests wait, a waiting task gets its lease from the queue.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from distributed_grid.decide.capacity.feasibility import free_in
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.leases.ownership import may_change, owned_lease
from distributed_grid.decide.scheduler.asks import why_team_may_not
from distributed_grid.decide.scheduler.confidence import Predicted
from distributed_grid.decide.scheduler.feasibility import BoostRoom, Sought
from distributed_grid.decide.scheduler.placing import (
    Choice,
    choose_gang,
    choose_in_boosts,
    order_of,
    places_for,
    promise,
    refusals,
)
from distributed_grid.decide.scheduler.table import NodeColumns
from distributed_grid.model.leases import Cause, Lease, LeaseState, Purpose
from distributed_grid.model.nodes import NodeName, NodeTable, gpu_part
from distributed_grid.model.principals import Principal, Scope
from distributed_grid.model.resources import ResourceVector, total
from distributed_grid.model.scheduling import ScheduledTask
from distributed_grid.model.teams import Teams

_MOST_REASONS: Final = 50


@dataclass(frozen=True, slots=True)
class Flight:
    """A place that was chosen and is being made."""

    task: ScheduledTask
    choices: tuple[Choice, ...]
    predicted: Predicted
    nodes: tuple[NodeName, ...] | None = None
    """While others wait: all eligible nodes, the best first, since a chosen one may be held for those ahead."""

    @property
    def needs(self) -> ResourceVector:
        return ResourceVector(self.task.needs)


InFlight = Mapping[str, Flight]
"""By task: the places that are being made."""
Predict = Callable[[ScheduledTask, tuple[Choice, ...]], Predicted]


@dataclass(frozen=True, slots=True)
class TaskWorld:
    """Everything that the decisions of one moment rest on."""

    columns: NodeColumns
    """The nodes; what is being made is promised there."""
    nodes: NodeTable
    leases: tuple[Lease, ...]
    usage: Usage
    teams: Teams
    tasks: Mapping[str, ScheduledTask]
    """By id, waiting or placed."""
    now: datetime
    not_on: Mapping[str, Collection[NodeName]] = field(default_factory=dict)
    """By task: nodes that could not give it a place after all."""
    queued: frozenset[str] = frozenset()
    """The requests that wait in the queue: for a task its id, for others the request's."""

    def others_wait(self, task: ScheduledTask) -> bool:
        """Whether the task would pass others. What is alone in the queue is granted there, unless it is a gang, which
        may also have some of its places in boosts."""
        return not self.queued <= {task.id} if task.request.count > 1 else bool(self.queued)


@dataclass(frozen=True, slots=True)
class Boosts:
    """The reserved boosts in which tasks may have room, and who may use them."""

    used: Callable[[Lease], ResourceVector]
    """What work holds in a boost, as Ray shows it."""
    owners_of: Callable[[NodeName], Iterable[str]]


def choose_places(
    world: TaskWorld, boosts: Boosts, waiting: Iterable[ScheduledTask], flights: InFlight, predict: Predict
) -> tuple[list[Flight], dict[str, tuple[str, ...]]]:
    """The places that are available now; and by task, why there is none. Places that are being made count as taken.

    While others wait in the queue, a task that may wait gets its lease from there, and here only room in boosts. What
    is chosen is promised in the columns.
    """
    taken, found = dict(flights), []
    without: dict[str, tuple[str, ...]] = {}
    for task in waiting:
        if task.id in taken:
            continue
        sought = _sought(world, task, taken, boost_rooms(world, boosts, task, taken))
        count, others_wait = task.request.count, world.others_wait(task)
        choose = choose_in_boosts if others_wait and task.request.wait else choose_gang
        choices = choose(sought, count)
        limit = why_team_may_not(task, _leases_of(choices), world.nodes, world.usage, world.teams)
        if limit is not None:
            choices = choose_in_boosts(sought, count)
        if choices is None:
            without[task.id] = _why_not(sought, count) if limit is None else (limit,)
            continue
        order = order_of(sought) if others_wait else None
        flight = Flight(task, choices, predict(task, choices), order)
        left = sought
        for choice in choices:
            left = promise(left, choice)
        taken[task.id] = flight
        found.append(flight)
    return found, without


@dataclass(frozen=True, slots=True)
class Eligible:
    """Where a task may have its lease."""

    nodes: tuple[NodeName, ...]
    """All nodes that its own conditions allow, the best first by its strategy."""
    places: tuple[NodeName, ...] = ()
    """Of a gang: the node that its strategy would choose for each member now; empty if there is no room for all."""

    @classmethod
    def of(cls, sought: Sought) -> "Eligible":
        count = sought.request.count
        places = () if count == 1 else choose_gang(sought, count) or ()
        return cls(order_of(sought), tuple(choice.node for choice in places))


def eligible(
    world: TaskWorld,
    task: ScheduledTask,
    flights: InFlight,
    look: Callable[[Sought], Eligible] = Eligible.of,
) -> Eligible:
    """Where the task may have its lease, as far as the present look at the cluster shows it."""
    return look(_sought(world, task, flights))


def may_be_on(
    world: TaskWorld,
    task: ScheduledTask,
    nodes: Collection[NodeName],
    flights: InFlight,
    look: Callable[[Sought], Eligible] = Eligible.of,
) -> bool:
    """Whether the task's conditions still allow these nodes, after other tasks got their places."""
    if not (task.request.near.tasks or task.request.far.tasks):
        return True
    return {*nodes} <= {*look(_sought(world, task, flights)).nodes}


def _leases_of(choices: tuple[Choice, ...] | None) -> int:
    """How many places take a lease: those in boosts do not."""
    return sum(choice.boost is None for choice in choices or ())


def _sought(
    world: TaskWorld,
    task: ScheduledTask,
    flights: InFlight,
    rooms: tuple[BoostRoom, ...] = (),
) -> Sought:
    return Sought(
        task.request,
        ResourceVector(task.needs),
        task.request.target or "",
        world.columns,
        rooms,
        _peers(world, flights) if task.request.near.tasks or task.request.far.tasks else {},
        frozenset(world.not_on.get(task.id, ())),
    )


def _peers(world: TaskWorld, flights: InFlight) -> dict[str, set[NodeName]]:
    """By task id and tag: where tasks have their places, or are about to. The queue may have granted one just now."""
    found: dict[str, set[NodeName]] = {}

    def are_on(task: ScheduledTask, nodes: Collection[NodeName]) -> None:
        for name in (task.id, *task.request.tags):
            found.setdefault(name, set()).update(nodes)

    for task in world.tasks.values():
        if not task.waits:
            are_on(task, [member.node for member in task.members])
    for lease in world.leases:
        if lease.cause is Cause.SCHEDULED and (task_of := world.tasks.get(lease.label)) is not None and task_of.waits:
            are_on(task_of, lease.sources)
    for flight in flights.values():
        are_on(flight.task, [choice.node for choice in flight.choices])
    return found


def _why_not(sought: Sought, count: int) -> tuple[str, ...]:
    reasons = [f"{node}: {why}" for node, why in refusals(sought).items()]
    more = [f"and {len(reasons) - _MOST_REASONS} more nodes"] if len(reasons) > _MOST_REASONS else []
    if count > 1:
        fit = len(places_for(sought, count))
        reasons = [f"only {fit} of {count} fit, and a gang is placed all or nothing", *reasons]
    return (*reasons[:_MOST_REASONS], *more)


# -- room in boosts --------------------------------------------------------------------------------------------


def carries_tasks(lease: Lease) -> bool:
    """Whether tasks can run in this boost: its group exists, and it is not being reclaimed."""
    return (
        lease.purpose is Purpose.BOOST
        and lease.state is LeaseState.ACTIVE
        and lease.placement_group is not None
        and lease.notice is None
        and not lease.shares  # a task is on one node, and Ray would choose which
    )


def boost_rooms(world: TaskWorld, boosts: Boosts, task: ScheduledTask, flights: InFlight) -> tuple[BoostRoom, ...]:
    """The free room in each boost of the target that lasts as long as the task and that its owner may use.

    An owner who may not run a program in a boost gets no task in there.
    """
    if task.request.own_lease:
        return ()
    until = world.now + timedelta(seconds=task.request.duration_seconds or 0.0)
    owner = Principal(task.who, task.team, frozenset({Scope.LEND}))
    found = []
    for lease in world.leases:
        if lease.target != (task.request.target or "") or lease.expires_at < until or not carries_tasks(lease):
            continue
        source = world.nodes.get(lease.source)
        if source is None or not source.alive:
            continue
        if not may_change(owner, owned_lease(lease), boosts.owners_of(source.name)):
            continue
        promised = list(_promised_in(lease, world, flights))
        free = free_in(lease.resources, boosts.used(lease), total(promised))
        parts = tuple(filter(None, map(gpu_part, promised)))
        found.append(BoostRoom(lease.id, lease.source, lease.resources, free, parts))
    return tuple(sorted(found, key=lambda room: room.id))


def _promised_in(boost: Lease, world: TaskWorld, flights: InFlight) -> Iterator[ResourceVector]:
    """What is promised of a boost to each member of a task."""
    for task in world.tasks.values():
        for member in task.members:
            if member.boost_id == boost.id:
                yield ResourceVector(task.needs)
    for flight in flights.values():
        for choice in flight.choices:
            if choice.boost is not None and choice.boost.id == boost.id:
                yield flight.needs
