"""Making a chosen place true: a lease for each task that is in no boost; for a gang all of them, or none."""

import asyncio
from dataclasses import dataclass

from distributed_grid.config import GridConfig
from distributed_grid.decide.scheduling import Choice
from distributed_grid.errors import GridError, NotFound, Refused
from distributed_grid.model.leases import Delivery, Lease, Purpose
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.requests import Ask, make_ask
from distributed_grid.model.scheduled import ScheduledTask
from distributed_grid.model.scheduling import PlacedBy, Placement
from distributed_grid.orchestration.boost_service import BoostService
from distributed_grid.orchestration.parts import Parts


@dataclass(frozen=True, slots=True)
class NotToBeHad:
    """A node that could not give it after all."""

    node: NodeName
    why: str


def ask_for(config: GridConfig, task: ScheduledTask, *, source: NodeName | None = None) -> Ask:
    """The lease that one task needs: one bundle on one node, which may be the target's own.

    `complete_task` ends it; where nobody says that the task is done, it ends by itself.
    """
    request = task.request
    (kind, amount), *along = request.amounts.items()
    return make_ask(
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


class TaskLeases:
    def __init__(self, parts: Parts, service: BoostService) -> None:
        self._p = parts
        self._service = service

    async def make(self, task: ScheduledTask, choices: tuple[Choice, ...]) -> tuple[Placement, ...] | NotToBeHad:
        """All places, or what was in the way; then nothing is left of the others. Other errors are raised so, too."""
        found = await asyncio.gather(*(self._place(task, choice) for choice in choices), return_exceptions=True)
        failed = [
            (choice, each) for choice, each in zip(choices, found, strict=True) if isinstance(each, BaseException)
        ]
        if not failed:
            return tuple(each for each in found if not isinstance(each, BaseException))
        await self.give_back(task.id, "the gang is not whole", who=task.who)
        choice, error = failed[0]
        if isinstance(error, Refused | NotFound):
            return NotToBeHad(choice.node, "; ".join([error.message, *error.because]))
        raise error

    async def _place(self, task: ScheduledTask, choice: Choice) -> Placement:
        if (boost := choice.boost) is not None:
            held = self._p.ledger.get(boost.id)
            group = held.placement_group if held is not None else None
            return Placement(choice.node, PlacedBy.BOOST, boost.runs_on, boost_id=boost.id, placement_group=group)
        ask = ask_for(self._p.config, task, source=choice.node)
        lease = await self._service.request(ask)
        return Placement(choice.node, PlacedBy.RESERVE, lease.source, lease.id, placement_group=lease.placement_group)

    def of(self, task_id: str) -> list[Lease]:
        """The leases that were made for a task and are not on their way home."""
        return [
            lease
            for lease in self._p.ledger
            if lease.purpose is Purpose.TASK and lease.label == task_id and not lease.is_winding_down
        ]

    async def give_back(self, task_id: str, reason: str, *, who: str) -> int:
        """End the leases of a task; how many there were."""
        leases = self.of(task_id)
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
