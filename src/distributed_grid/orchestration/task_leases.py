"""Making a chosen place true: a lease for each task that is in no boost; for a gang all of them, or none.

A task that waits does so in the queue, by the ask for its lease: one order decides whose turn it is.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace

from distributed_grid.config import GridConfig
from distributed_grid.decide.claims import ordered
from distributed_grid.decide.scheduling import Choice
from distributed_grid.errors import GridError, NotFound, Refused
from distributed_grid.model.leases import Cause, Delivery, Lease, Purpose
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.requests import Ask, make_ask
from distributed_grid.model.scheduled import ScheduledTask
from distributed_grid.model.scheduling import PlacedBy, Placement
from distributed_grid.model.waiting import Waiting
from distributed_grid.orchestration import granting
from distributed_grid.orchestration.boost_service import BoostService
from distributed_grid.orchestration.parts import Parts


@dataclass(frozen=True, slots=True)
class NotToBeHad:
    """Nodes that could not give it after all."""

    nodes: tuple[NodeName, ...]


def ask_for(
    config: GridConfig,
    task: ScheduledTask,
    *,
    source: NodeName | None = None,
    nodes: tuple[NodeName, ...] | None = None,
) -> Ask:
    """The lease that one task needs: one bundle on one node, which may be the target's own.

    `complete_task` ends it; where nobody says that the task is done, it ends by itself. Its cause says that it is the
    scheduler's: callers can give a lease any label and purpose, but not that.
    """
    request = task.request
    (kind, amount), *along = request.amounts.items()
    ask = make_ask(
        request.target or "",
        kind,
        amount,
        along=dict(along),
        priority=request.priority,
        duration_s=task.held_s,
        source=source,
        delivery=Delivery.RESERVE,
        requester=task.who,
        team=task.team,
        fractional_gpus=config.resource_sharing.fractional_gpus,
        purpose=Purpose.TASK,
        label=task.id,
        own_too=True,
    )
    return replace(ask, cause=Cause.SCHEDULED, nodes=nodes)


def in_order(p: Parts) -> tuple[Waiting, ...]:
    """All that wait in the one order of claims, requests and tasks. A gang is one of them, with all that it needs."""
    queue = p.sharing.waiting.values()
    known = {each.ask.label for each in queue if each.is_for_a_task}
    others = (_as_a_whole(p, task) for task in p.sharing.scheduling.waiting if task.id not in known)
    return ordered((*queue, *others), p.ledger.loans, p.sharing.accounts, p.teams, p.now())


def tasks_in_order(p: Parts) -> list[ScheduledTask]:
    """The tasks that wait, the next one first."""
    tasks = p.sharing.scheduling.tasks
    ids = dict.fromkeys(each.ask.label for each in in_order(p) if each.ask.cause is Cause.SCHEDULED)
    return [task for each in ids if (task := tasks.get(each)) is not None and task.waits]


def positions(p: Parts) -> dict[str, int]:
    """By task: how many wait before it, and itself."""
    found: dict[str, int] = {}
    for number, each in enumerate(in_order(p), start=1):
        if each.ask.cause is Cause.SCHEDULED:
            found.setdefault(each.ask.label, number)
    return found


def _as_a_whole(p: Parts, task: ScheduledTask) -> Waiting:
    ask, count = ask_for(p.config, task), task.request.count
    along = tuple((kind, count * units) for kind, units in ask.along)
    return Waiting(task.id, replace(ask, units=count * ask.units, along=along), task.asked_at)


class TaskLeases:
    def __init__(self, parts: Parts, service: BoostService) -> None:
        self._p = parts
        self._service = service

    # -- waiting in the queue -------------------------------------------------------------------------------

    def waiting(self, task_id: str) -> Waiting | None:
        """What waits in the queue for a task."""
        queue = self._p.sharing.waiting.values()
        return next((each for each in queue if each.ask.label == task_id and each.is_for_a_task), None)

    async def join(self, task: ScheduledTask) -> None:
        """Let a task wait in the queue, as old as it is. Which nodes will do is worked out before every plan."""
        if self.waiting(task.id) is None:
            ask = ask_for(self._p.config, task, nodes=())
            await self._service.queue.join(Waiting(granting.new_id(), ask, task.asked_at, is_kept=True))

    def withdraw(self, task_id: str) -> None:
        """Nothing waits for it any more. The caller commits."""
        if (waiting := self.waiting(task_id)) is not None:
            self._service.queue.withdraw(waiting)

    # -- leases ---------------------------------------------------------------------------------------------

    async def make(
        self, task: ScheduledTask, choices: tuple[Choice, ...], nodes: tuple[NodeName, ...] | None = None
    ) -> tuple[Placement, ...] | NotToBeHad:
        """All places, or what was in the way; then nothing is left of the others. Other errors are raised so, too.

        `nodes`: where others wait, a single task takes the first of these that is left to it.
        """
        found = await asyncio.gather(*(self._place(task, choice, nodes) for choice in choices), return_exceptions=True)
        failed = [
            (choice, each) for choice, each in zip(choices, found, strict=True) if isinstance(each, BaseException)
        ]
        if not failed:
            return tuple(each for each in found if not isinstance(each, BaseException))
        await self.give_back(self.of(task.id, who=task.who), "the gang is not whole", who=task.who)
        choice, error = failed[0]
        if isinstance(error, Refused | NotFound):
            return NotToBeHad(nodes or (choice.node,))
        raise error

    async def _place(self, task: ScheduledTask, choice: Choice, nodes: tuple[NodeName, ...] | None) -> Placement:
        if (boost := choice.boost) is not None:
            held = self._p.ledger.get(boost.id)
            group = held.placement_group if held is not None else None
            return Placement(choice.node, PlacedBy.BOOST, boost.runs_on, boost_id=boost.id, placement_group=group)
        ask = ask_for(self._p.config, task, source=None if nodes else choice.node, nodes=nodes)
        return placement(await self._service.request(ask, since=task.asked_at))

    def of(self, task_id: str, *, who: str | None = None) -> list[Lease]:
        """The leases that the scheduler made for a task, and that are not on their way home; `who`: only for this one.

        They are known by what no caller can set: that the task's places are in them, or their cause. After a crash
        there may be leases of which no place is recorded.
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
        """End these; how many there were."""
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


def placement(lease: Lease) -> Placement:
    """The place that a task's lease is."""
    group = lease.placement_group
    return Placement(lease.source, PlacedBy.RESERVE, lease.source, lease.id, placement_group=group)
