"""Telling holders that something is asked back of them: by their file, and by their hook.

Level-triggered, as the upkeep is: after a restart, whoever has a notice is told once more.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final

import orjson

from distributed_grid import threads
from distributed_grid.client.connections import Answer
from distributed_grid.client.hook_call import HookFailed, call_hook
from distributed_grid.decide.hook_urls import HookPlace, hook_place
from distributed_grid.errors import GridError
from distributed_grid.model.leases import WATCHED, Lease, LeaseState
from distributed_grid.model.notices import Reply, asks_more, reply_of, told_dict
from distributed_grid.orchestration.logs import logger
from distributed_grid.orchestration.parts import Parts
from distributed_grid.orchestration.reclaiming import take_reply
from distributed_grid.store.reclaim_files import ReclaimFiles

log = logger()

# Hooks that hang must not take all the threads in which the cluster is asked.
_AT_ONCE: Final = 4

CallHook = Callable[[HookPlace, bytes], Answer]


class Notices:
    """Runs beside the upkeep, on the same parts."""

    def __init__(self, parts: Parts, call: CallHook = call_hook) -> None:
        self._p = parts
        self._call = call
        self._files = ReclaimFiles(parts.home.reclaim)
        self._told: dict[str, tuple[datetime, float]] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._trouble = ""
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def tell(self) -> None:
        """Have every notice's file written, and every hook called; does not wait for hooks."""
        asked = {lease.id: lease for lease in self._p.ledger if lease.notice and lease.state is LeaseState.ACTIVE}
        wanted = {lease_id: orjson.dumps(told_dict(lease)) + b"\n" for lease_id, lease in asked.items()}
        if self._files.differ(wanted):
            await self._show(wanted)
        before, self._told = self._told, {}
        for lease in asked.values():
            notice = lease.notice
            assert notice is not None
            self._told[lease.id] = (notice.asked_at, notice.units)
            if _has_url(lease) and asks_more(before.get(lease.id), notice.asked_at, notice.units):
                call = asyncio.create_task(self._ask(lease))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)

    async def _show(self, wanted: dict[str, bytes]) -> None:
        try:
            await threads.DISK.run(self._files.show, wanted)
        except OSError as error:  # the deadline holds without it; the next turn tries again
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.error("a notice could not be written; trying again", error=self._trouble)
        else:
            self._trouble = ""

    async def stop(self) -> None:
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _ask(self, lease: Lease) -> None:
        """One call of a hook. Whatever goes wrong changes nothing: what is not given is taken at the deadline."""
        try:
            reply = await self._reply(lease)
            await take_reply(self._p, lease, reply, who=lease.requester or "its holder")
        except (HookFailed, ValueError, GridError) as error:
            why = "; ".join([error.message, *error.because]) if isinstance(error, GridError) else str(error)
            told = f"{lease.describe()}: its holder could not be asked: {why}"
            self._p.journal.note("reclaim_hook_failed", told, lease=lease, node=lease.target)
        except Exception:
            log.exception("a hook's answer could not be carried out", boost=lease.id)

    async def _reply(self, lease: Lease) -> Reply:
        # Checked again: nodes may have come and gone since it was accepted.
        place = hook_place(lease.reclaim_hook or "", self._p.addresses())
        async with self._free:
            answer = await threads.ERRANDS.run(self._call, place, orjson.dumps(told_dict(lease)))
        if not answer.is_success:
            raise HookFailed(f"it answered {answer.status}")
        return reply_of(lease.kind, answer.json()) if answer.body.strip() else Reply()


def _has_url(lease: Lease) -> bool:
    return lease.reclaim_hook is not None and lease.reclaim_hook != WATCHED
