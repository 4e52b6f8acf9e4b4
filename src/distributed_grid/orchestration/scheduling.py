"""The scheduler beside the ledger's one writer: tasks come, have a place or wait for one, and end.

What is decided is in `decide.scheduling`. Here it is made true: all who schedule ask the same writer, and what one of
them was promised no other can have.
"""

import asyncio
import contextlib
from dataclasses import replace
from datetime import timedelta
from typing import Final

from distributed_grid.decide.delivery import lent_resources
from distributed_grid.decide.lending import own_room
from distributed_grid.decide.scheduling.strategies import strategy_named
from distributed_grid.errors import GridError, InvalidRequest, TargetNotFound
from distributed_grid.model.leases import Delivery
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.run_times import RunTimes
from distributed_grid.model.scheduled import ScheduledTask
from distributed_grid.model.scheduling import SchedulingDecision, SchedulingRequest, SchedulingStrategy
from distributed_grid.monitoring.collector import Collector
from distributed_grid.orchestration.boost_rooms import carries_tasks
from distributed_grid.orchestration.boost_service import BoostService
from distributed_grid.orchestration.choosing_places import Chooser, Flight
from distributed_grid.orchestration.judging_places import Judge
from distributed_grid.orchestration.logs import logger
from distributed_grid.orchestration.own_strategies import load_strategies
from distributed_grid.orchestration.parts import VIEW_LAG, Parts
from distributed_grid.orchestration.rules_in_force import rules_for
from distributed_grid.orchestration.task_book import TaskBook
from distributed_grid.orchestration.task_leases import NotToBeHad, TaskLeases, ask_for

log = logger()

_LOOK_AGAIN_S: Final = 0.05
_TICK_S: Final = 1.0
_VIEW_S: Final = 1.0


class Scheduling:
    """One cluster's tasks."""

    def __init__(self, parts: Parts, service: BoostService, runs: RunTimes, collector: Collector | None = None) -> None:
        """`runs` is told how long tasks took."""
        self._p = parts
        self._runs = runs
        self.state = parts.sharing.scheduling
        self._book = TaskBook(parts)
        self._leases = TaskLeases(parts, service)
        self._judge = Judge(parts, collector)
        self._chooser = Chooser(parts, self._judge, collector)
        self._flights: dict[str, Flight] = {}
        self._flying: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, BaseException] = {}
        self._deciding = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._hoped_at = parts.now()
        self.is_open = True
        """While it is not, nobody gets a place."""

    def start(self) -> None:
        load_strategies()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._stopping = True
        self._p.news_for_the_scheduler.set()
        if self._task is not None:
            await self._task
        if self._flying:
            await asyncio.wait(self._flying.values())

    # -- asking ---------------------------------------------------------------------------------------------

    async def schedule(self, request: SchedulingRequest, *, who: str, team: str = "default") -> SchedulingDecision:
        """A place, now; or one in the queue, for who may wait; or why not, for every node.

        Who asks again with the same id gets the same answer, or a better one. What makes no sense raises.
        """
        if not request.task_id:
            raise InvalidRequest("A task needs an id")
        strategy_named(str(request.strategy))
        if request.task_id not in self.state.tasks:
            task = self._task_of(request, await self._nodes_with(request), who, team)
            if not self._p.config.resource_sharing.enabled:
                return self._book.rejected(task, ("Resource sharing not enabled",))
            await self._let_the_view_catch_up(task)
            self.state.tasks.setdefault(task.id, task)
        try:
            return await self._settled(request.task_id)
        except asyncio.CancelledError:
            self._abandon(request.task_id)
            raise

    async def _nodes_with(self, request: SchedulingRequest) -> NodeTable:
        """As they were seen lately, if all that the request names are among them."""
        known = self._p.known()
        if known and all(name in known for name in (request.target, request.node, *request.near.nodes) if name):
            return known
        return await self._p.look()

    def _task_of(self, request: SchedulingRequest, nodes: NodeTable, who: str, team: str) -> ScheduledTask:
        target = request.target or next((node.name for node in nodes.values() if node.is_head), None)
        request = replace(request, target=target)
        for name in (target, request.node, *request.near.nodes):
            if name is not None and name not in nodes:
                raise TargetNotFound(
                    "Target node not found in cluster",
                    because=[f"no node is named {name!r}"],
                    try_next=f"Nodes: {', '.join(nodes) or 'none'}",
                )
        if target is None:
            raise TargetNotFound("The cluster has no head to schedule for", try_next="Name a target.")
        task = ScheduledTask(request, {}, self._p.now(), who, team)
        ask = ask_for(self._p.config, task)
        needs = lent_resources(ask, Delivery.RESERVE, rules_for(self._p, ask).companions)
        return replace(task, needs=dict(needs.items()))

    async def _let_the_view_catch_up(self, task: ScheduledTask) -> None:
        """What its own node has got back a moment ago may not be seen yet: that is no reason to send a task away."""
        p, request = self._p, task.request
        if request.strategy != SchedulingStrategy.LOCAL_FIRST:
            return
        while p.now() < p.last_change + VIEW_LAG:
            node = (await p.look_to_decide()).get(request.target or "")
            if node is None or not node.alive:
                return
            loans = p.ledger.loans
            if all(units <= own_room(node, kind, loans) for kind, units in task.needs.items()):
                return
            idle = {kind: node.base[kind] + loans.moved_in(node.name, kind) for kind in task.needs}
            if any(units > idle[kind] - loans.taken(node.name, kind) for kind, units in task.needs.items()):
                return  # it would not fit there if nothing ran
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _settled(self, task_id: str) -> SchedulingDecision:
        """Until it has a place; or until it is sure that there is none: what was seen a moment ago does not tell."""
        p = self._p
        sure_at = min(p.last_change, p.now()) + VIEW_LAG
        fresh = p.now() < p.last_change + VIEW_LAG  # what is known may count the last grant twice
        while True:
            await self._round(fresh=fresh)
            if (flying := self._flying.get(task_id)) is not None:
                await asyncio.wait([flying])
                continue
            if (error := self._failed.pop(task_id, None)) is not None:
                raise error
            task = self.state.tasks.get(task_id)
            if task is None or not task.waits:
                return self._book.find(task_id)
            if task.request.wait:
                return await self._queued(task)
            if fresh and p.now() >= sure_at and not self._flights:
                return self._rejected(task)
            if fresh:
                await asyncio.sleep(_LOOK_AGAIN_S)
            fresh = True

    async def _queued(self, task: ScheduledTask) -> SchedulingDecision:
        if not task.predicted:
            self._book.queued(task, self._judge.of_waiting(task), self._chooser.refusals.get(task.id, ()))
            self._p.news_for_the_scheduler.set()  # whoever slept for want of tasks has one now
            await self._p.commit_sharing()
        return self._book.find(task.id)

    def _rejected(self, task: ScheduledTask, *first: str) -> SchedulingDecision:
        reasons = self._chooser.refusals.get(task.id, task.reasons)
        self._chooser.forget(task.id)
        return self._book.rejected(task, (*first, *reasons))

    def _abandon(self, task_id: str) -> None:
        """Who asked is gone, and the task was not to wait: nobody gets a place for it. One on its way is completed."""
        task = self.state.tasks.get(task_id)
        if task is not None and task.waits and not task.request.wait and task_id not in self._flights:
            self._chooser.forget(task_id)
            self._book.ended(task, "nobody waits for it any more")

    # -- rounds ---------------------------------------------------------------------------------------------

    async def _round(self, *, fresh: bool = False) -> None:
        """Look, choose for all who want a place, and set out to make it true."""
        p = self._p
        async with self._deciding:
            nodes = None if fresh else p.known()
            if nodes is None:
                nodes = await p.look_to_decide()
            has_boosts = any(carries_tasks(lease) for lease in p.ledger)
            view = await asyncio.to_thread(p.cluster.view, _VIEW_S) if has_boosts else {}
            # From here on there is no await: nobody else can have taken what is found.
            if self.is_open:
                for flight in self._chooser.choose(nodes, view, self.state.waiting, self._flights):
                    self._flights[flight.task.id] = flight
                    self._flying[flight.task.id] = asyncio.create_task(self._fly(flight))

    async def _fly(self, flight: Flight) -> None:
        task = flight.task
        try:
            places = await self._leases.make(task, flight.choices)
            if isinstance(places, NotToBeHad):
                self._chooser.not_on.setdefault(task.id, set()).add(places.node)
            else:
                self._book.placed(flight, places)
                self._chooser.forget(task.id)
                await self._p.commit_sharing()
        except Exception as error:  # noqa: BLE001 - told to who asked; who waits in the queue waits on
            self._went_wrong(task, error)
            await self._leases.give_back(task.id, "it could not be put down", who=task.who)
        finally:
            del self._flights[task.id], self._flying[task.id]
            self._p.news_for_the_scheduler.set()

    def _went_wrong(self, task: ScheduledTask, error: Exception) -> None:
        """What is not on disk was not promised."""
        if task.request.wait and not isinstance(error, InvalidRequest):
            log.error("a task that waits could not be placed; trying again", task=task.id, error=repr(error))
            self.state.tasks[task.id] = task
            return
        self._failed[task.id] = error
        self.state.tasks.pop(task.id, None)
        self._chooser.forget(task.id)

    # -- telling --------------------------------------------------------------------------------------------

    def find(self, task_id: str) -> SchedulingDecision:
        """What was decided about a task last; raises `RequestNotFound` if nobody knows it."""
        return self._book.find(task_id)

    async def started(self, task_id: str) -> SchedulingDecision:
        """Note that a task has begun; only the first time counts."""
        task = self.state.tasks.get(task_id)
        if task is not None and task.placed_at is not None and task.started_at is None:
            now = self._p.now()
            self.state.delays.add((now - task.placed_at).total_seconds())
            self.state.tasks[task_id] = replace(task, started_at=now)
        return self.find(task_id)

    async def complete(self, task_id: str, *, who: str) -> bool:
        """Free what a task held, and end a lease made for it; or wait for a place no longer. False: nobody knows it."""
        if (flying := self._flying.get(task_id)) is not None:
            await asyncio.wait([flying])
        task = self.state.tasks.get(task_id)
        if task is not None:
            if not task.waits:
                self._judge.settle(task)
            if task.started_at is not None:
                self._runs.add((self._p.now() - task.started_at).total_seconds())
            self._chooser.forget(task_id)
            self._book.done(task, who=who)
        freed = await self._leases.give_back(task_id, "its task is done", who=who)
        if task is not None:
            await self._p.commit_sharing()
        self._p.news_for_the_scheduler.set()
        return task is not None or freed > 0

    # -- while time passes ----------------------------------------------------------------------------------

    async def _run(self) -> None:
        news = self._p.news_for_the_scheduler
        while not self._stopping:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S if self.state.tasks else None):
                    await news.wait()
            news.clear()
            if self._stopping:
                return
            try:
                await self.turn()
            except GridError as error:
                log.error("the scheduler", error=error.message, because=error.because)
            except Exception:
                log.exception("a turn of the scheduler failed; trying again")
                await asyncio.sleep(_TICK_S)

    async def turn(self) -> None:
        """Judge what is due, let go what is over, and try again for who waits."""
        changed = False
        for task in list(self.state.tasks.values()):
            if task.id in self._flights:
                continue
            if task.waits:
                changed |= self._give_up_if_over(task)
            else:
                changed |= self._watch(task)
        if any(task.request.wait and task.id not in self._flights for task in self.state.waiting):
            if self._p.now() - self._hoped_at >= timedelta(seconds=_TICK_S):
                self._hoped_at = self._p.now()
                self._chooser.not_on.clear()  # what was not to be had a moment ago may be by now
            await self._round()
        if changed:
            await self._p.commit_sharing()

    def _give_up_if_over(self, task: ScheduledTask) -> bool:
        if not task.request.wait or task.start_by is None or self._p.now() < task.start_by:
            return False
        self._judge.settle(task, happened=False)
        self._rejected(task, "its deadline has passed")
        return True

    def _watch(self, task: ScheduledTask) -> bool:
        """Whether something about it has changed: its time is over, or its place is gone."""
        gone = [m for m in task.members if not self._holds(m.lease_id or m.boost_id or "")]
        if gone:
            lost = any(self._judge.is_lost(m.lease_id or m.boost_id or "") for m in gone)
            self._judge.settle(task, happened=False if lost else None)
            self._book.lost(task, gone)
        elif task.is_forgotten(self._p.now()):
            self._judge.settle(task)
            self._book.done(task, who="grid")
        elif self._judge.is_due(task):
            self._judge.settle(task)
            self.state.tasks[task.id] = replace(task, is_judged=True)
        else:
            return False
        return True

    def _holds(self, lease_id: str) -> bool:
        lease = self._p.ledger.get(lease_id)
        return lease is not None and not lease.is_winding_down
