"""Places that were chosen are made true, many at a time; while one is on its way, nobody else can have it."""

import asyncio
import contextlib
from dataclasses import replace
from datetime import timedelta
from typing import Final

from distributed_grid import threads
from distributed_grid.decide.scheduling import Choice
from distributed_grid.errors import InvalidRequest, StoreBroken
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.nodes import NodeName, NodeTable
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.scheduled import ScheduledTask
from distributed_grid.model.waiting import Waiting
from distributed_grid.orchestration.boost_rooms import carries_tasks
from distributed_grid.orchestration.choosing_places import Chooser, Flight
from distributed_grid.orchestration.judging_places import Judge
from distributed_grid.orchestration.logs import logger
from distributed_grid.orchestration.parts import Parts
from distributed_grid.orchestration.task_book import TaskBook
from distributed_grid.orchestration.task_leases import (
    NotToBeHad,
    TaskLeases,
    placement,
    tasks_in_order,
)

log = logger()

_VIEW_S: Final = 1.0
_HOPE_AGAIN: Final = timedelta(seconds=1)


class Flights:
    """By task: from the choice of its place until it has it, or has not."""

    def __init__(self, parts: Parts, chooser: Chooser, leases: TaskLeases, book: TaskBook, judge: Judge) -> None:
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
        """While it is not, nobody gets a place."""

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._flights

    def __len__(self) -> int:
        return len(self._flights)

    async def round(self, *, fresh: bool = False) -> None:
        """Look, choose for all who want a place, and set out to make it true."""
        p = self._p
        async with self._deciding:
            nodes = None if fresh else p.known()
            if nodes is None:
                nodes = await p.look_to_decide()
            has_boosts = any(carries_tasks(lease) for lease in p.ledger)
            view = await threads.ENGINE.run(p.cluster.view, _VIEW_S) if has_boosts else {}
            # From here on there is no await: nobody else can have taken what is found.
            if not self.is_open:
                return
            left, is_new = self._take_what_was_granted(tasks_in_order(p))
            for flight in self._chooser.choose(nodes, view, left, self._flights):
                self._leases.withdraw(flight.task.id)  # it is in the queue, or on its way
                self._flights[flight.task.id] = flight
                self._flying[flight.task.id] = asyncio.create_task(self._fly(flight))
        if is_new:
            with contextlib.suppress(StoreBroken):  # the lease is on disk: after a crash it is found again
                await p.commit_sharing()

    def _take_what_was_granted(self, waiting: list[ScheduledTask]) -> tuple[list[ScheduledTask], bool]:
        """Tasks that the queue has granted a lease, or for which a crash left one, are placed in it.

        Returns those that still want a place, and whether there was one. A lease that is just being granted belongs to
        its task: that one waits for it.
        """
        left, is_new = [], False
        for task in waiting:
            leases = [] if task.id in self._flights else self._leases.of(task.id, who=task.who)
            whole = next((lease for lease in leases if self._carries(lease, task)), None)
            if whole is not None:
                self._placed_in(whole, task)
                is_new = True
            elif not any(lease.id in self._p.in_flight or lease.state is LeaseState.GRANTING for lease in leases):
                left.append(task)
        return left, is_new

    def _carries(self, lease: Lease, task: ScheduledTask) -> bool:
        is_there = lease.state is LeaseState.ACTIVE and lease.id not in self._p.in_flight
        return is_there and task.request.count == 1 and lease.resources.covers(ResourceVector(task.needs))

    def left_over(self, task: ScheduledTask) -> list[Lease]:
        """Leases of a task that waits, and is not on its way, which are no place for it."""
        leases = (lease for lease in self._leases.of(task.id, who=task.who) if lease.id not in self._p.in_flight)
        return [lease for lease in leases if lease.state is LeaseState.ACTIVE and not self._carries(lease, task)]

    def _placed_in(self, lease: Lease, task: ScheduledTask) -> None:
        choices = (Choice(lease.source, 0.0),)
        flight = Flight(task, choices, self._judge.of_places(task, choices, self._chooser.table.last))
        self._book.placed(flight, (placement(lease),), f"{lease.source}: it has room for it", "its turn has come")
        self._leases.withdraw(task.id)

    # -- tasks in the queue ---------------------------------------------------------------------------------

    def refresh(self, nodes: NodeTable) -> None:
        """Which nodes will do for the tasks that wait in the queue, as of now."""
        queue, tasks = self._p.sharing.waiting, self._p.sharing.scheduling.tasks
        entries = [each for each in queue.values() if each.is_for_a_task]
        if not entries:
            return
        orders = self._chooser.orders(
            nodes, tasks_in_order(self._p), {each.ask.label for each in entries}, self._flights
        )
        for each in entries:
            task = tasks.get(each.ask.label)
            if task is None or not task.waits or task.who != each.ask.requester:
                self._leases.withdraw(each.ask.label)
            elif (order := orders[task.id]) != each.ask.nodes:
                queue[each.id] = replace(each, ask=replace(each.ask, nodes=order))

    def may_have(self, waiting: Waiting, source: NodeName) -> bool:
        task = self._p.sharing.scheduling.tasks.get(waiting.ask.label) if waiting.is_for_a_task else None
        return task is None or self._chooser.may_be_on(task, source, self._flights.values())

    # -- on their way ---------------------------------------------------------------------------------------

    async def try_again(self) -> None:
        """A round for those who wait, now and then also for what was not to be had a moment ago."""
        if self._p.now() - self._hoped_at >= _HOPE_AGAIN:
            self._hoped_at = self._p.now()
            self._chooser.not_on.clear()
        await self.round()

    async def landed(self, task_id: str) -> bool:
        """Wait until it is not on its way any more; False if it was not."""
        if (flying := self._flying.get(task_id)) is not None:
            await asyncio.wait([flying])
        return flying is not None

    def raise_what_went_wrong(self, task_id: str) -> None:
        """For who asked and does not wait; once."""
        if (error := self._failed.pop(task_id, None)) is not None:
            raise error

    async def all_landed(self) -> None:
        if self._flying:
            await asyncio.wait(self._flying.values())

    async def _fly(self, flight: Flight) -> None:
        task = flight.task
        try:
            places = await self._leases.make(task, flight.choices, flight.nodes)
            if isinstance(places, NotToBeHad):
                self._chooser.not_on.setdefault(task.id, set()).update(places.nodes)
            else:
                if flight.nodes and places[0].lease_id is not None:
                    flight = replace(flight, choices=(replace(flight.choices[0], node=places[0].node),))
                self._book.placed(flight, places)
                await self._p.commit_sharing()
        except Exception as error:  # noqa: BLE001 - told to who asked; who waits in the queue waits on
            self._went_wrong(task, error)
            left = self._leases.of(task.id, who=task.who)
            await self._leases.give_back(left, "it could not be put down", who=task.who)
        finally:
            del self._flights[task.id], self._flying[task.id]
            self._p.news_for_the_scheduler.set()

    def _went_wrong(self, task: ScheduledTask, error: Exception) -> None:
        """What is not on disk was not promised."""
        tasks = self._p.sharing.scheduling.tasks
        if task.request.wait and not isinstance(error, InvalidRequest):
            log.error("a task that waits could not be placed; trying again", task=task.id, error=repr(error))
            tasks[task.id] = task
            return
        self._failed[task.id] = error
        tasks.pop(task.id, None)
        self._chooser.forget(task.id)
