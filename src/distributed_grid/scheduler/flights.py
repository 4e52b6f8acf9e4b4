"""Making chosen places real: a lease for each task that runs in no boost; for a gang, all of them or none.

A waiting task stands in the queue with the request for its lease, so one order decides whose turn it is. While a place
is being made, no other task can have it. Every change of a task is recorded in the journal.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from distributed_grid import threads
from distributed_grid.decide.scheduler import BoostRoom, Choice, asks
from distributed_grid.decide.scheduler.confidence import Predicted
from distributed_grid.decide.scheduler.round import Flight, carries_tasks
from distributed_grid.decide.scheduler.strategies import strategy_named
from distributed_grid.errors import GridError, InvalidRequest, NotFound, Refused, RequestNotFound, StoreBroken
from distributed_grid.leases import grant
from distributed_grid.leases.state import EngineContext
from distributed_grid.logs import logger
from distributed_grid.model.leases import Cause, Lease, LeaseState
from distributed_grid.model.nodes import NodeName, NodeTable, in_words
from distributed_grid.model.requests import Waiting
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.scheduling import PlacedBy, Placement, ScheduledTask, SchedulingDecision
from distributed_grid.queue.service import BoostService
from distributed_grid.scheduler.outcomes import Judge
from distributed_grid.scheduler.placement import Chooser


@dataclass(frozen=True, slots=True)
class PlacesUnavailable:
    """Nodes that could not give a place after all."""

    nodes: tuple[NodeName, ...]


def in_order(p: EngineContext) -> tuple[Waiting, ...]:
    """All waiting requests and tasks in the one order of claims."""
    sharing = p.sharing
    return asks.in_order(
        sharing.waiting.values(), sharing.scheduling.waiting, p.ledger.usage, sharing.accounts, p.teams, p.now()
    )


def tasks_in_order(p: EngineContext) -> list[ScheduledTask]:
    """The waiting tasks, the next one first."""
    tasks = p.sharing.scheduling.tasks
    ids = dict.fromkeys(each.ask.label for each in in_order(p) if each.ask.cause is Cause.SCHEDULED)
    return [task for each in ids if (task := tasks.get(each)) is not None and task.waits]


def positions(p: EngineContext) -> dict[str, int]:
    """By task: its position in the queue, from 1."""
    found: dict[str, int] = {}
    for number, each in enumerate(in_order(p), start=1):
        if each.ask.cause is Cause.SCHEDULED:
            found.setdefault(each.ask.label, number)
    return found


class TaskLeases:
    def __init__(self, parts: EngineContext, service: BoostService) -> None:
        self._p = parts
        self._service = service

    # -- waiting in the queue -------------------------------------------------------------------------------

    def waiting(self, task_id: str) -> Waiting | None:
        """The request that waits in the queue for a task."""
        queue = self._p.sharing.waiting.values()
        return next((each for each in queue if each.ask.label == task_id and each.is_for_a_task), None)

    async def join(self, task: ScheduledTask) -> None:
        """Let a task wait in the queue; its age counts. The eligible nodes are computed before every plan."""
        if self.waiting(task.id) is None:
            ask = asks.ask_for(task, fractional_gpus=self._fractional_gpus, nodes=())
            await self._service.queue.join(Waiting(grant.new_id(), ask, task.asked_at, is_durable=True))

    def withdraw(self, task_id: str) -> None:
        """Remove a task's request from the queue. The caller commits."""
        if (waiting := self.waiting(task_id)) is not None:
            self._service.queue.withdraw(waiting)

    # -- leases ---------------------------------------------------------------------------------------------

    async def make(
        self, task: ScheduledTask, choices: tuple[Choice, ...], nodes: tuple[NodeName, ...] | None = None
    ) -> tuple[Placement, ...] | PlacesUnavailable:
        """Make all places, or none: those outside boosts are one lease, which is granted whole.

        Returns the nodes that could not give a place; other errors are raised. `nodes`: while others wait, the lease
        may be on any of these that are left for the task.
        """
        leased = tuple(choice.node for choice in choices if choice.boost is None)
        found: list[Placement] = []
        if leased:
            eligible, count = nodes or tuple(dict.fromkeys(leased)), len(leased)
            ask = asks.ask_for(task, fractional_gpus=self._fractional_gpus, count=count, nodes=eligible, places=leased)
            try:
                found += placements(await self._service.request(ask, since=task.asked_at))
            except (Refused, NotFound):
                return PlacesUnavailable(eligible)
        return tuple(found.pop(0) if choice.boost is None else self._in_boost(choice.boost) for choice in choices)

    def _in_boost(self, boost: BoostRoom) -> Placement:
        held = self._p.ledger.get(boost.id)
        group = held.placement_group if held is not None else None
        target = boost.runs_on if held is None else held.target
        return Placement(target, PlacedBy.BOOST, boost.runs_on, boost_id=boost.id, placement_group=group)

    @property
    def _fractional_gpus(self) -> bool:
        return self._p.config.resource_sharing.fractional_gpus

    def of(self, task_id: str, *, who: str | None = None) -> list[Lease]:
        """The leases that the scheduler made for a task and that do not wind down; `who`: only this requester's.

        They are identified by what no caller can set: the task's recorded places, or the cause. After a crash there
        may be leases without a recorded place.
        """
        task = self._p.sharing.scheduling.tasks.get(task_id)
        places = {member.lease_id for member in task.members} if task is not None else set()
        return [
            lease
            for lease in self._p.ledger
            if (lease.id in places or (lease.cause is Cause.SCHEDULED and lease.label == task_id))
            and not lease.is_winding_down
            and who in (None, lease.requester)
        ]

    async def give_back(self, leases: Iterable[Lease], reason: str, *, who: str) -> int:
        """Release these leases; returns how many were released."""
        ended = (self._end(lease, reason, who) for lease in leases)
        return sum(await asyncio.gather(*ended))

    async def _end(self, lease: Lease, reason: str, who: str) -> int:
        try:
            await self._service.release(lease.id, reason=reason, who=who)
        except NotFound:  # it has ended meanwhile
            return 0
        except GridError as error:
            self._p.notes[lease.id] = (error.message,)
            return 0
        return 1


def placements(lease: Lease) -> tuple[Placement, ...]:
    """The places that a task's lease provides, one for each member."""
    bundles = [(share.source, share.bundle) for share in lease.shares] or [(lease.source, 1)]
    group = lease.placement_group
    return tuple(
        Placement(source, PlacedBy.RESERVE, source, lease.id, placement_group=group, bundle=number)
        for source, number in bundles
    )


_REMEMBERED: Final = 1000
"""How many decisions about ended tasks can still be looked up."""


class TaskBook:
    def __init__(self, parts: EngineContext, chooser: Chooser, leases: TaskLeases) -> None:
        """`chooser` holds the reasons why the last look had no place for a task, and drops them with the task."""
        self._p = parts
        self._leases = leases
        self._chooser = chooser
        self.state = parts.sharing.scheduling
        self._ended: OrderedDict[str, SchedulingDecision] = OrderedDict()

    def find(self, task_id: str) -> SchedulingDecision:
        """The last decision about a task; raises `RequestNotFound` if the task is unknown."""
        task = self.state.tasks.get(task_id)
        if task is not None:
            return task.decision(positions(self._p).get(task_id) if task.waits else None)
        if task_id in self._ended:
            return self._ended[task_id]
        raise RequestNotFound(f"No task with the id {task_id!r}")

    def placed(self, flight: Flight, places: tuple[Placement, ...], *reasons: str) -> None:
        task, first = self.state.tasks.get(flight.task.id, flight.task), flight.choices[0]
        self.state.tasks[task.id] = replace(
            task,
            members=places,
            placed_at=self._p.now(),
            predicted=(*task.predicted, (flight.predicted.model, flight.predicted.said)),
            reasons=reasons or _why(flight),
            alternatives=first.alternatives,
        )
        self._chooser.forget(task.id)
        self.state.results["accepted"] += 1
        where = ", ".join(dict.fromkeys(choice.runs_on for choice in flight.choices))
        message = f"task {task.id} has a place on {where}"
        self._p.journal.note("task_placed", message, who=task.who, node=first.runs_on, task=task.id)

    def queued(self, task: ScheduledTask, said: Predicted) -> None:
        reasons = self._chooser.refusals.get(task.id, ())
        self.state.tasks[task.id] = replace(task, predicted=((said.model, said.said),), reasons=reasons)
        self.state.results["queued"] += 1
        self._p.journal.note("task_queued", f"task {task.id} waits for a place", who=task.who, task=task.id)

    def rejected(self, task: ScheduledTask, *first: str) -> SchedulingDecision:
        reasons = (*first, *self._chooser.refusals.get(task.id, task.reasons))
        self.state.results["rejected"] += 1
        message = f"task {task.id} has no place: {'; '.join(reasons)}"
        self._p.journal.note("task_rejected", message, who=task.who, task=task.id, because=list(reasons))
        return self.ended(task, *reasons)

    def done(self, task: ScheduledTask, *, who: str) -> None:
        what = "was withdrawn before it had a place" if task.waits else "is done"
        self._p.journal.note("task_done", f"task {task.id} {what}", who=who, task=task.id)
        self.ended(task, f"it {what}")

    def lost(self, task: ScheduledTask, gone: list[Placement]) -> None:
        """Record lost places. The rest of a gang is kept: its owner decides what to do with it."""
        message = f"task {task.id} has lost its place on {gone[0].runs_on}"
        self._p.journal.note("task_lost", message, who=task.who, node=gone[0].runs_on, task=task.id)
        left = tuple(member for member in task.members if member not in gone)
        if left:
            self.state.tasks[task.id] = replace(task, members=left, is_judged=True)
        else:
            self.ended(task, message)

    def ended(self, task: ScheduledTask, *reasons: str) -> SchedulingDecision:
        self.state.tasks.pop(task.id, None)
        self._leases.withdraw(task.id)
        self._chooser.forget(task.id)
        decision = self._ended[task.id] = SchedulingDecision(task.id, accepted=False, reasons=reasons)
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        return decision


def _why(flight: Flight) -> tuple[str, ...]:
    first, name = flight.choices[0], str(flight.task.request.strategy)
    where = f"boost {first.boost.id[:8]} has room for it" if first.boost else "it has room for it"
    others = f"{first.could} node{'s' * (first.could != 1)} could carry it"
    gang = () if len(flight.choices) == 1 else (f"all {len(flight.choices)} have a place",)
    return (f"{first.node}: {where}", f"{name}: {strategy_named(name).summary}", others, *gang)


log = logger()

_VIEW_S: Final = 1.0
_HOPE_AGAIN: Final = timedelta(seconds=1)


class Flights:
    """Placements under way, by task: from the choice of a place until it is made or has failed."""

    def __init__(
        self, parts: EngineContext, chooser: Chooser, leases: TaskLeases, book: TaskBook, judge: Judge
    ) -> None:
        self._p = parts
        self._judge = judge
        self._chooser = chooser
        self._leases = leases
        self._book = book
        self._flights: dict[str, Flight] = {}
        self._flying: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, BaseException] = {}
        self._deciding = asyncio.Lock()
        self._hoped_at = parts.now()
        self.is_open = True
        """While False, no task gets a place."""

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._flights

    def __len__(self) -> int:
        return len(self._flights)

    async def round(self, *, fresh: bool = False) -> None:
        """Look, choose places for all waiting tasks, and start making them."""
        p = self._p
        async with self._deciding:
            nodes = None if fresh else p.known()
            if nodes is None:
                nodes = await p.look_to_decide()
            has_boosts = any(carries_tasks(lease) for lease in p.ledger)
            view = await threads.ENGINE.run(p.cluster.view, _VIEW_S) if has_boosts else {}
            # From here on there is no await: nothing else can take what is found.
            if not self.is_open:
                return
            left, is_new = self._take_what_was_granted(tasks_in_order(p))
            for flight in self._chooser.choose(nodes, view, left, self._flights):
                self._leases.withdraw(flight.task.id)  # a task is in the queue, or being placed
                self._flights[flight.task.id] = flight
                self._flying[flight.task.id] = asyncio.create_task(self._fly(flight))
        if is_new:
            with contextlib.suppress(StoreBroken):  # the lease is on disk: after a crash it is found again
                await p.commit_sharing()

    def _take_what_was_granted(self, waiting: list[ScheduledTask]) -> tuple[list[ScheduledTask], bool]:
        """Place tasks in leases that the queue granted them or that a crash left for them.

        Returns the tasks that still need a place, and whether any was placed. A lease that is still being granted
        belongs to its task, which waits for it.
        """
        left, is_new = [], False
        for task in waiting:
            leases = [] if task.id in self._flights else self._leases.of(task.id, who=task.who)
            whole = next((lease for lease in leases if self._carries(lease, task)), None)
            if whole is not None:
                self._placed_in(whole, task)
                is_new = True
            elif not any(lease.is_granting for lease in leases):
                left.append(task)
        return left, is_new

    def _carries(self, lease: Lease, task: ScheduledTask) -> bool:
        places = lease.shares or (lease,)
        is_whole = lease.state is LeaseState.ACTIVE and len(places) == task.request.count
        return is_whole and all(place.resources.covers(ResourceVector(task.needs)) for place in places)

    def left_over(self, task: ScheduledTask) -> list[Lease]:
        """Leases of a waiting task, not being placed, that cannot serve as its place."""
        leases = self._leases.of(task.id, who=task.who)
        return [lease for lease in leases if lease.state is LeaseState.ACTIVE and not self._carries(lease, task)]

    def _placed_in(self, lease: Lease, task: ScheduledTask) -> None:
        places = placements(lease)
        choices = tuple(Choice(place.node) for place in places)
        flight = Flight(task, choices, self._judge.of_places(task, choices, self._chooser.table.last))
        have = "it has room for it" if len(lease.sources) == 1 else "they have room for it"
        self._book.placed(flight, places, f"{in_words(lease.sources)}: {have}", "its turn has come")
        self._leases.withdraw(task.id)

    # -- tasks in the queue ---------------------------------------------------------------------------------

    def refresh(self, nodes: NodeTable) -> None:
        """Update the eligible nodes of the tasks that wait in the queue."""
        queue, tasks = self._p.sharing.waiting, self._p.sharing.scheduling.tasks
        entries = [each for each in queue.values() if each.is_for_a_task]
        if not entries:
            return
        of_entry = {each.id: tasks.get(each.ask.label) for each in entries}
        eligible = self._chooser.eligible(nodes, filter(None, of_entry.values()), self._flights)
        for each in entries:
            task = of_entry[each.id]
            if task is None or not task.waits or task.who != each.ask.requester:
                self._leases.withdraw(each.ask.label)
                continue
            found = eligible[task.id]
            if (found.nodes, found.places) != (each.ask.nodes, each.ask.places):
                queue[each.id] = replace(each, ask=replace(each.ask, nodes=found.nodes, places=found.places))

    def may_have(self, waiting: Waiting, sources: Collection[NodeName]) -> bool:
        task = self._p.sharing.scheduling.tasks.get(waiting.ask.label) if waiting.is_for_a_task else None
        return task is None or self._chooser.may_be_on(task, sources, self._flights)

    # -- on their way ---------------------------------------------------------------------------------------

    async def try_again(self) -> None:
        """Run a round for waiting tasks; now and then, include nodes that had no place a moment ago."""
        if self._p.now() - self._hoped_at >= _HOPE_AGAIN:
            self._hoped_at = self._p.now()
            self._chooser.not_on.clear()
        await self.round()

    async def landed(self, task_id: str) -> bool:
        """Wait until the task is no longer being placed; False if it was not."""
        if (flying := self._flying.get(task_id)) is not None:
            await asyncio.wait([flying])
        return flying is not None

    def raise_what_went_wrong(self, task_id: str) -> None:
        """Raise a task's error once, for a caller that does not wait."""
        if (error := self._failed.pop(task_id, None)) is not None:
            raise error

    async def all_landed(self) -> None:
        if self._flying:
            await asyncio.wait(self._flying.values())

    async def _fly(self, flight: Flight) -> None:
        task = flight.task
        try:
            places = await self._leases.make(task, flight.choices, flight.nodes)
            if isinstance(places, PlacesUnavailable):
                self._chooser.not_on.setdefault(task.id, set()).update(places.nodes)
            else:
                if flight.nodes:
                    at = zip(flight.choices, places, strict=True)
                    flight = replace(flight, choices=tuple(replace(choice, node=place.node) for choice, place in at))
                self._book.placed(flight, places)
                await self._p.commit_sharing()
        except Exception as error:  # noqa: BLE001 - reported to the caller; a queued task keeps waiting
            self._went_wrong(task, error)
            left = self._leases.of(task.id, who=task.who)
            await self._leases.give_back(left, "its placement failed", who=task.who)
        finally:
            del self._flights[task.id], self._flying[task.id]
            self._p.news_for_the_scheduler.set()

    def _went_wrong(self, task: ScheduledTask, error: Exception) -> None:
        """Undo a placement that failed: what is not on disk was not promised."""
        tasks = self._p.sharing.scheduling.tasks
        if task.request.wait and not isinstance(error, InvalidRequest):
            log.error("a task that waits could not be placed; trying again", task=task.id, error=repr(error))
            tasks[task.id] = task
            return
        self._failed[task.id] = error
        tasks.pop(task.id, None)
        self._chooser.forget(task.id)
