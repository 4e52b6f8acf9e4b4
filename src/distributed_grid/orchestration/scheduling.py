"""The scheduler beside the ledger's one writer: tasks come, have a place or wait for one, and end.

What is decided is in `decide.scheduling`. Here it is made true: all who schedule ask the same writer, and what one of
them was promised no other can have.
"""

import asyncio
import contextlib
from dataclasses import replace
from typing import Final

from distributed_grid.decide.permissions import check_may_change, owned_task
from distributed_grid.decide.scheduling.strategies import strategy_named
from distributed_grid.errors import GridError, InvalidRequest
from distributed_grid.model.principals import Principal, Scope
from distributed_grid.model.run_times import RunTimes
from distributed_grid.model.scheduled import ScheduledTask
from distributed_grid.model.scheduling import SchedulingDecision, SchedulingRequest
from distributed_grid.monitoring.collector import Collector
from distributed_grid.orchestration.arriving_tasks import let_the_view_catch_up, task_for
from distributed_grid.orchestration.boost_service import BoostService
from distributed_grid.orchestration.choosing_places import Chooser
from distributed_grid.orchestration.judging_places import Judge
from distributed_grid.orchestration.logs import logger
from distributed_grid.orchestration.making_places import Flights
from distributed_grid.orchestration.own_strategies import load_strategies
from distributed_grid.orchestration.parts import VIEW_LAG, Parts
from distributed_grid.orchestration.task_book import TaskBook
from distributed_grid.orchestration.task_leases import TaskLeases
from distributed_grid.orchestration.watching_tasks import TaskWatch

log = logger()

_LOOK_AGAIN_S: Final = 0.05
_TICK_S: Final = 1.0


class Scheduling:
    """One cluster's tasks."""

    def __init__(self, parts: Parts, service: BoostService, runs: RunTimes, collector: Collector | None = None) -> None:
        """`runs` is told how long tasks took."""
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
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self) -> None:
        load_strategies()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._stopping = True
        self._p.news_for_the_scheduler.set()
        if self._task is not None:
            await self._task
        await self.flights.all_landed()

    # -- asking ---------------------------------------------------------------------------------------------

    async def schedule(self, request: SchedulingRequest, *, who: str, team: str = "default") -> SchedulingDecision:
        """A place, now; or one in the queue, for who may wait; or why not, for every node.

        Who asks again with the same id gets the same answer, or a better one. What makes no sense raises.
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
        """Until it has a place; or until it is sure that there is none: what was seen a moment ago does not tell."""
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
                await asyncio.sleep(_LOOK_AGAIN_S)
            fresh = True

    async def _queued(self, task: ScheduledTask) -> SchedulingDecision:
        if not task.predicted and task.request.count == 1:
            await self.leases.join(task)
            await self._queue.try_round()
            if self.leases.waiting(task.id) is None:  # it was its turn at once
                await self.flights.round()
            task = self.state.tasks.get(task.id, task)
        if task.waits and not task.predicted and task.id in self.state.tasks:
            self._book.queued(task, self._judge.of_waiting(task))
            self._p.news_for_the_scheduler.set()  # whoever slept for want of tasks has one now
            await self._p.commit_sharing()
        return self._book.find(task.id)

    def _abandon(self, task_id: str) -> None:
        """Who asked is gone, and the task was not to wait: nobody gets a place for it. One on its way is completed."""
        task = self.state.tasks.get(task_id)
        if task is not None and task.waits and not task.request.wait and task_id not in self.flights:
            self._book.ended(task, "nobody waits for it any more")

    # -- telling --------------------------------------------------------------------------------------------

    def find(self, task_id: str) -> SchedulingDecision:
        """What was decided about a task last; raises `RequestNotFound` if nobody knows it."""
        return self._book.find(task_id)

    async def started(self, task_id: str, *, who: str) -> SchedulingDecision:
        """Note that a task has begun; only the first time counts."""
        task = self.state.tasks.get(task_id)
        if task is not None and task.placed_at is not None and task.started_at is None:
            now = self._p.now()
            self.state.delays.add((now - task.placed_at).total_seconds())
            self.state.tasks[task_id] = replace(task, started_at=now)
            self._p.journal.note("task_started", f"task {task_id} has begun", who=who, task=task_id)
        return self.find(task_id)

    async def complete(self, task_id: str, *, who: str) -> bool:
        """Free what a task held, and end a lease made for it; or wait for a place no longer. False: nobody knows it."""
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
            if task.id not in self.flights:
                changed |= self._watch.look_at(task)
        if any(task.request.wait and task.id not in self.flights for task in self.state.waiting):
            await self.flights.try_again()
            await self._see_to_the_waiting()
        if changed:
            await self._p.commit_sharing()

    async def _see_to_the_waiting(self) -> None:
        """What a crash cut off, or an error: no lease is left of a gang that is not whole, and single tasks are in the
        queue.
        """
        for task in self.state.waiting:
            if not task.request.wait or task.id in self.flights:
                continue
            if left := self.flights.left_over(task):
                await self.leases.give_back(left, "its task has no place with it", who=task.who)
            if task.request.count == 1 and not self.leases.of(task.id, who=task.who) and task.id in self.state.tasks:
                await self.leases.join(task)
