"""The scheduler: tasks arrive, are placed or wait, and end.

`decide.scheduler` decides; this package carries it out. All callers ask the ledger's one writer, so capacity that was
promised to one task is promised to no other.
"""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Final

from distributed_grid.decide.capacity.delivery import lent_resources
from distributed_grid.decide.capacity.feasibility import has_room, without_work
from distributed_grid.decide.leases.ownership import check_may_change, owned_task
from distributed_grid.decide.scheduler.asks import ask_for
from distributed_grid.decide.scheduler.strategies import strategy_named
from distributed_grid.errors import InvalidRequest, TargetNotFound
from distributed_grid.leases.rules import rules_for
from distributed_grid.leases.state import VIEW_LAG, EngineContext
from distributed_grid.loops import Loop
from distributed_grid.model.leases import Delivery
from distributed_grid.model.nodes import NodeName, NodeTable, node_named
from distributed_grid.model.plans import NO_HEADROOM
from distributed_grid.model.principals import Principal, Scope
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.scheduling import (
    Placement,
    ScheduledTask,
    SchedulingDecision,
    SchedulingRequest,
    SchedulingStrategy,
)
from distributed_grid.model.series import RunTimes
from distributed_grid.monitoring.collector import Collector
from distributed_grid.queue.service import BoostService
from distributed_grid.scheduler.flights import Flights, TaskBook, TaskLeases
from distributed_grid.scheduler.outcomes import Judge
from distributed_grid.scheduler.placement import Chooser, load_strategies

_LOOK_AGAIN_S: Final = 0.05


async def task_for(p: EngineContext, request: SchedulingRequest, *, who: str, team: str) -> ScheduledTask:
    """The task, with its target and full needs; raises `TargetNotFound` if it names an unknown node."""
    nodes = await _nodes_with(p, request)
    target = request.target or next((node.name for node in nodes.values() if node.is_head), None)
    request = replace(request, target=target)
    for name in (target, request.node, *request.near.nodes):
        if name is not None:
            node_named(nodes, name)
    if target is None:
        raise TargetNotFound("The cluster has no head to schedule for", try_next="Name a target.")
    task = ScheduledTask(request, {}, p.now(), who, team)
    ask = ask_for(task, fractional_gpus=p.config.resource_sharing.fractional_gpus, count=1)
    needs = lent_resources(ask, Delivery.RESERVE, rules_for(p, ask).companions)
    return replace(task, needs=dict(needs.items()))


async def _nodes_with(p: EngineContext, request: SchedulingRequest) -> NodeTable:
    """The nodes as last seen, if they include every node that the request names; else a new look."""
    known = p.known()
    if known and all(name in known for name in (request.target, request.node, *request.near.nodes) if name):
        return known
    return await p.look()


async def let_the_view_catch_up(p: EngineContext, task: ScheduledTask) -> None:
    """Wait for capacity that the target has just got back and the view may not show: the task need not go elsewhere."""
    if task.request.strategy != SchedulingStrategy.LOCAL_FIRST:
        return
    while p.now() < p.last_change + VIEW_LAG:
        node = (await p.look_to_decide()).get(task.request.target or "")
        if node is None or not node.alive:
            return
        usage, needs = p.ledger.usage, ResourceVector(task.needs)
        if has_room(node, needs, usage, NO_HEADROOM, is_own=True):
            return
        if not has_room(without_work(node), needs, usage, NO_HEADROOM, is_own=True):
            return  # it would not fit there even if nothing ran
        await asyncio.sleep(_LOOK_AGAIN_S)


class TaskWatch:
    def __init__(self, parts: EngineContext, judge: Judge, book: TaskBook, leases: TaskLeases) -> None:
        self._p = parts
        self._leases = leases
        self._judge = judge
        self._book = book

    def look_at(self, task: ScheduledTask) -> bool:
        """Update a task; returns whether something about it has changed."""
        return self._give_up_if_late(task) if task.waits else self._see_to_its_place(task)

    def _give_up_if_late(self, task: ScheduledTask) -> bool:
        if not task.request.wait or task.start_by is None or self._p.now() < task.start_by:
            return False
        if self._leases.of(task.id, who=task.who):  # it is just being given its place
            return False
        self._judge.settle(task, happened=False)
        self._book.rejected(task, "its deadline has passed")
        return True

    def _see_to_its_place(self, task: ScheduledTask) -> bool:
        if gone := self._gone(task):
            lost = any(self._judge.is_lost(_lease_of(member)) for member in gone)
            self._judge.settle(task, happened=False if lost else None)
            self._book.lost(task, gone)
        elif task.is_forgotten(self._p.now()):
            self._judge.settle(task)
            self._book.done(task, who="grid")
        elif self._judge.is_due(task):
            self._judge.settle(task)
            self._p.sharing.scheduling.tasks[task.id] = replace(task, is_judged=True)
        else:
            return False
        return True

    def _gone(self, task: ScheduledTask) -> list[Placement]:
        """Its places that are lost: those of a lease that ended, and those on lenders that left the lease."""
        held: dict[str, Counter[NodeName]] = {}
        gone = []
        for member in task.members:
            lease_id = _lease_of(member)
            if lease_id not in held:
                held[lease_id] = self._held(lease_id)
            if not member.boost_id and held[lease_id][member.runs_on] > 0:
                held[lease_id][member.runs_on] -= 1
            elif not member.boost_id or not held[lease_id]:
                gone.append(member)
        return gone

    def _held(self, lease_id: str) -> "Counter[NodeName]":
        """By node: how many bundles a lease still holds there."""
        lease = self._p.ledger.get(lease_id)
        if lease is None or lease.is_winding_down:
            return Counter()
        return Counter(share.source for share in lease.shares or (lease,))


def _lease_of(member: Placement) -> str:
    """The id of its own lease, or of the boost that it is in."""
    return member.lease_id or member.boost_id or ""


_RECHECK_S: Final = 0.05
_TICK_S: Final = 1.0


class Scheduling:
    """One cluster's tasks."""

    def __init__(
        self, parts: EngineContext, service: BoostService, runs: RunTimes, collector: Collector | None = None
    ) -> None:
        """`runs` collects how long tasks took."""
        self._p = parts
        self._runs = runs
        self.state = parts.sharing.scheduling
        self.leases = TaskLeases(parts, service)
        self._judge = Judge(parts, collector)
        chooser = Chooser(parts, self._judge, collector)
        self._book = TaskBook(parts, chooser, self.leases)
        self.flights = Flights(parts, chooser, self.leases, self._book, self._judge)
        self._watch = TaskWatch(parts, self._judge, self._book, self.leases)
        self._queue = service.queue
        self._queue.tasks = self.flights
        self._loop = Loop(
            "the scheduler",
            self.turn,
            lambda: _TICK_S if self.state.tasks else None,
            news=parts.news_for_the_scheduler,
            waits_first=True,
            retry_s=_TICK_S,
        )

    def start(self) -> None:
        load_strategies()
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()
        await self.flights.all_landed()

    # -- asking ---------------------------------------------------------------------------------------------

    async def schedule(self, request: SchedulingRequest, *, who: str, team: str = "default") -> SchedulingDecision:
        """A place now; or one in the queue, if the task may wait; or why not, for every node.

        A repeated call with the same id gets the same answer, or a better one. Invalid requests raise.
        """
        if not request.task_id:
            raise InvalidRequest("A task needs an id")
        strategy_named(str(request.strategy))
        if request.task_id not in self.state.tasks:
            task = await task_for(self._p, request, who=who, team=team)
            if not self._p.config.resource_sharing.enabled:
                return self._book.rejected(task, "Resource sharing not enabled")
            await let_the_view_catch_up(self._p, task)
            known = self.state.tasks.setdefault(task.id, task)
            if known is not task:  # another caller took the same id a moment ago
                check_may_change(Principal(who, team, frozenset({Scope.LEND})), owned_task(known))
        try:
            return await self._settled(request.task_id)
        except asyncio.CancelledError:
            self._abandon(request.task_id)
            raise

    async def _settled(self, task_id: str) -> SchedulingDecision:
        """Wait until the task has a place, or until it is certain that there is none: an older view cannot tell."""
        p = self._p
        sure_at = min(p.last_change, p.now()) + VIEW_LAG
        fresh = p.now() < p.last_change + VIEW_LAG  # what is known may count the last grant twice
        while True:
            await self.flights.round(fresh=fresh)
            if await self.flights.landed(task_id):
                continue
            self.flights.raise_what_went_wrong(task_id)
            task = self.state.tasks.get(task_id)
            if task is None or not task.waits:
                return self._book.find(task_id)
            if task.request.wait:
                return await self._queued(task)
            if fresh and p.now() >= sure_at and not self.flights:
                return self._book.rejected(task)
            if fresh:
                await asyncio.sleep(_RECHECK_S)
            fresh = True

    async def _queued(self, task: ScheduledTask) -> SchedulingDecision:
        if not task.predicted:
            await self.leases.join(task)
            await self._queue.try_round()
            if self.leases.waiting(task.id) is None:  # its turn came at once
                await self.flights.round()
            task = self.state.tasks.get(task.id, task)
        if task.waits and not task.predicted and task.id in self.state.tasks:
            self._book.queued(task, self._judge.of_waiting(task))
            self._p.news_for_the_scheduler.set()  # the loop sleeps while there are no tasks
            await self._p.commit_sharing()
        return self._book.find(task.id)

    def _abandon(self, task_id: str) -> None:
        """Drop a task that may not wait and whose caller is gone. A placement under way is completed."""
        task = self.state.tasks.get(task_id)
        if task is not None and task.waits and not task.request.wait and task_id not in self.flights:
            self._book.ended(task, "its caller no longer waits")

    # -- telling --------------------------------------------------------------------------------------------

    def find(self, task_id: str) -> SchedulingDecision:
        """The last decision about a task; raises `RequestNotFound` if the task is unknown."""
        return self._book.find(task_id)

    async def started(self, task_id: str, *, who: str) -> SchedulingDecision:
        """Record that a task has started; only the first call counts."""
        task = self.state.tasks.get(task_id)
        if task is not None and task.placed_at is not None and task.started_at is None:
            now = self._p.now()
            self.state.delays.add((now - task.placed_at).total_seconds())
            self.state.tasks[task_id] = replace(task, started_at=now)
            self._p.journal.note("task_started", f"task {task_id} has begun", who=who, task=task_id)
        return self.find(task_id)

    async def complete(self, task_id: str, *, who: str) -> bool:
        """Free what a task held and end a lease made for it, or stop waiting for a place. False: unknown task."""
        await self.flights.landed(task_id)
        task = self.state.tasks.get(task_id)
        held = self.leases.of(task_id, who=None if task is None else task.who)
        if task is not None:
            if not task.waits:
                self._judge.settle(task)
            if task.started_at is not None:
                self._runs.add((self._p.now() - task.started_at).total_seconds())
            self._book.done(task, who=who)
        freed = await self.leases.give_back(held, "its task is done", who=who)
        if task is not None:
            await self._p.commit_sharing()
        self._p.news_for_the_scheduler.set()
        return task is not None or freed > 0

    # -- while time passes ----------------------------------------------------------------------------------

    async def turn(self) -> None:
        """Judge predictions that are due, end tasks that are over, and try again for waiting ones."""
        changed = False
        for task in list(self.state.tasks.values()):
            if task.id not in self.flights:
                changed |= self._watch.look_at(task)
        if any(task.request.wait and task.id not in self.flights for task in self.state.waiting):
            await self.flights.try_again()
            await self._see_to_the_waiting()
        if changed:
            await self._p.commit_sharing()

    async def _see_to_the_waiting(self) -> None:
        """Repair what a crash or an error cut short: release leases that are not whole, and queue their tasks."""
        for task in self.state.waiting:
            if not task.request.wait or task.id in self.flights:
                continue
            if left := self.flights.left_over(task):
                await self.leases.give_back(left, "its task could not be placed with it", who=task.who)
            if not self.leases.of(task.id, who=task.who) and task.id in self.state.tasks:
                await self.leases.join(task)
