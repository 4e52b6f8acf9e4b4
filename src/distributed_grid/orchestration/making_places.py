"""Places that were chosen are made true, many at a time; while one is on its way, nobody else can have it."""

import asyncio
from datetime import timedelta
from typing import Final

from distributed_grid import threads
from distributed_grid.errors import InvalidRequest
from distributed_grid.model.scheduled import ScheduledTask
from distributed_grid.orchestration.boost_rooms import carries_tasks
from distributed_grid.orchestration.choosing_places import Chooser, Flight
from distributed_grid.orchestration.logs import logger
from distributed_grid.orchestration.parts import Parts
from distributed_grid.orchestration.task_book import TaskBook
from distributed_grid.orchestration.task_leases import NotToBeHad, TaskLeases

log = logger()

_VIEW_S: Final = 1.0
_HOPE_AGAIN: Final = timedelta(seconds=1)


class Flights:
    """By task: from the choice of its place until it has it, or has not."""

    def __init__(self, parts: Parts, chooser: Chooser, leases: TaskLeases, book: TaskBook) -> None:
        self._p = parts
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
            if self.is_open:
                for flight in self._chooser.choose(nodes, view, p.sharing.scheduling.waiting, self._flights):
                    self._flights[flight.task.id] = flight
                    self._flying[flight.task.id] = asyncio.create_task(self._fly(flight))

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
            places = await self._leases.make(task, flight.choices)
            if isinstance(places, NotToBeHad):
                self._chooser.not_on.setdefault(task.id, set()).add(places.node)
            else:
                self._book.placed(flight, places)
                await self._p.commit_sharing()
        except Exception as error:  # noqa: BLE001 - told to who asked; who waits in the queue waits on
            self._went_wrong(task, error)
            await self._leases.give_back(task.id, "it could not be put down", who=task.who)
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
