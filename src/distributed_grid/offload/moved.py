"""Following moved processes: the state of each, and what is left to do when one ends or a move was interrupted.

The actor that runs a process holds its record, so a new controller finds all of them again.
"""

import contextlib
from dataclasses import replace
from typing import Final

from distributed_grid import threads
from distributed_grid.errors import CannotMove, GridError, MoveFailed, OffloadNotFound
from distributed_grid.execution.on_node_runner import ENDED, PREPARED, RUNNING, RunnerSaid
from distributed_grid.execution.processes import ProcessControl, RunnerGone
from distributed_grid.leases.programs import report_program
from distributed_grid.leases.state import EngineContext
from distributed_grid.logs import logger
from distributed_grid.loops import Loop
from distributed_grid.model.endings import TERM_S
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.offload import LEGAL, Offloaded, OffloadState
from distributed_grid.model.times import parse_instant
from distributed_grid.offload.move import KEY, PROGRAM, Mover
from distributed_grid.queue.service import BoostService

log = logger()

_LOOK_S: Final = 0.5
_KEPT: Final = 50
"""How many ended processes are remembered."""


class OffloadedProcesses:
    def __init__(self, parts: EngineContext, service: BoostService, control: ProcessControl, mover: Mover) -> None:
        self._p = parts
        self._service = service
        self._control = control
        self._mover = mover
        self._known: dict[str, Offloaded] = {}
        self._has_found = False
        """Whether the processes that an earlier controller moved are known."""
        self._loop = Loop("offloaded processes", self._follow, self._pause, sets_news=True)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()

    async def _follow(self) -> None:
        self._has_found = self._has_found or await self._find_again()
        await self.turn()

    def _pause(self) -> float | None:
        is_busy = any(not one.is_over for one in self._known.values())
        return _LOOK_S if is_busy or not self._has_found else None

    # -- what is known -------------------------------------------------------------------------------------

    def all(self) -> list[Offloaded]:
        """Running processes, and those that ended recently; the newest first."""
        return sorted(self._known.values(), key=lambda one: (one.began_at, one.id), reverse=True)

    def get(self, lease_id: str) -> Offloaded | None:
        return self._known.get(lease_id)

    def find(self, prefix: str) -> Offloaded:
        """The process with this id, or the only one whose id starts with `prefix`."""
        wanted = prefix.strip().lower()
        found = [one for one in self._known.values() if wanted and one.id.startswith(wanted)]
        if len(found) != 1:
            which = f"{len(found)} offloaded processes have" if found else "No offloaded process has"
            raise OffloadNotFound(f"{which} the id {prefix!r}", try_next="See all of them: grid offload status")
        return found[0]

    def add(self, one: Offloaded) -> Offloaded:
        self._known[one.id] = one
        self._loop.wake()
        return one

    def change(
        self, offload_id: str, state: OffloadState, said: RunnerSaid | None = None, why: str | None = None
    ) -> Offloaded | None:
        """Record a state, with what the runner reports. The only way in which a known process changes.

        None if that comes too late: several calls wait for the same runner at a time, and the process is over already.
        """
        known = self._known.get(offload_id)
        if known is None or state not in LEGAL[known.state]:
            return None
        reported = known if said is None else _as_reported(known, said)
        return self.add(replace(reported, state=state, why=why, ended_at=self._p.now() if state.is_over else None))

    # -- following -----------------------------------------------------------------------------------------

    async def turn(self) -> None:
        """Check each process, and do what is missing. A move under way is left to the request that carries it out."""
        for one in [one for one in self._known.values() if not one.is_over and one.state is not OffloadState.MOVING]:
            await self.look(one)
        over = [one for one in self.all() if one.is_over]
        for one in over[_KEPT:]:
            del self._known[one.id]

    async def look(self, one: Offloaded) -> None:
        gone, said = False, None
        try:
            said = await threads.NODE_TASKS.run(self._control.runners.about, one.id)
        except RunnerGone:
            gone = True
        lease = self._p.ledger.get(one.id)  # as it is now: it may have been released while the runner was asked
        is_taken = lease is None or lease.is_winding_down
        is_cancelled = self._is(one.id, OffloadState.CANCELLING)
        if gone:
            state = OffloadState.CANCELLED if is_cancelled else OffloadState.LOST
            await self._over(one, state, "its lease ended" if is_taken else f"its actor on {one.to_node} is gone")
            return
        if said is None:
            return
        if said["state"] == PREPARED:
            if is_cancelled:
                await self._end(one.id, 0.0)  # it is not started any more
            elif self._is(one.id, OffloadState.INTERRUPTED):
                await self._go_on(one, said)
        elif said["state"] == RUNNING:
            state = OffloadState.CANCELLING if is_cancelled else OffloadState.RUNNING
            if self.change(one.id, state, said) is not None:
                await self._keep_lease(one, lease)
        elif said["state"] == ENDED:
            state = OffloadState.CANCELLED if is_taken or is_cancelled else OffloadState.ENDED
            await self._over(one, state, lease.release_reason if lease is not None else None, said)
        else:
            state = OffloadState.CANCELLED if is_cancelled else OffloadState.FAILED
            await self._over(one, state, said["why"], said)

    def _is(self, offload_id: str, state: OffloadState) -> bool:
        """Whether it has this state now: it may have changed while its runner was asked."""
        known = self._known.get(offload_id)
        return known is not None and known.state is state

    async def _find_again(self) -> bool:
        """After a restart, find what runs by its actor, and release the leases of moves that never started a process.

        Returns whether all actors answered. One that is only busy may run a user's process, so it is asked again.
        """
        silent = set()
        for lease_id in await threads.NODE_TASKS.run(self._control.runners.known):
            try:
                said = await threads.NODE_TASKS.run(self._control.runners.about, lease_id)
            except RunnerGone:
                continue
            if said is None:
                silent.add(lease_id)
            elif said.get("kind") == "offload" and lease_id not in self._known:
                found = self.add(_from_record(lease_id, said))
                if found.state is OffloadState.CANCELLING:
                    await self._end(lease_id, said["grace_s"])  # the order itself may not have been given
        for lease in self._p.ledger:
            is_known = lease.id in self._known or lease.id in silent
            if (lease.idempotency_key or "").startswith(KEY) and not is_known:
                await self._mover.undo(lease.id, "the move was interrupted before anything was stopped")
        return not silent

    async def _go_on(self, one: Offloaded, said: RunnerSaid) -> None:
        """Settle an interrupted move: the state of the old process decides whether it is completed or given up."""
        raylet = self._p.observer.naming.raylets.get(one.from_node)
        if raylet is None:
            return  # it may come back
        answers = await threads.NODE_TASKS.run(self._control.processes.look_at, [raylet.node_id], one.from_pid)
        if raylet.node_id not in answers:
            return
        is_there = any(found["created_at"] == said["created_at"] for found in answers[raylet.node_id]["processes"])
        if is_there or not said["stopping"]:
            await self.give_up(one, CannotMove("the move was interrupted before the process was stopped"))
            return
        if self._is(one.id, OffloadState.INTERRUPTED):  # not cancelled meanwhile
            with contextlib.suppress(RunnerGone, TimeoutError):
                await threads.NODE_TASKS.run(self._control.runners.go, one.id)

    async def _end(self, offload_id: str, grace_s: float) -> None:
        """Order its end; a repeated order may only shorten the grace period."""
        with contextlib.suppress(RunnerGone, TimeoutError):
            await threads.NODE_TASKS.run(self._control.runners.end, offload_id, grace_s, 0.0)

    async def _keep_lease(self, one: Offloaded, lease: Lease | None) -> None:
        """The lease lasts as long as the process, and the process no longer than the lease and its grace period.

        It is renewed when a holder's `LeaseKeeper` would renew it. That one counts from its own start and slows down
        while it meets no controller. The controller itself renews this lease, so it looks at the recorded end, which a
        restart does not change, and a renewal that fails is due again at the next turn.
        """
        p = self._p
        if lease is not None and lease.state is not LeaseState.LOST:
            lease = await report_program(p, lease, PROGRAM, one.label)  # the lease stays until the process has ended
        if lease is None or lease.is_winding_down:
            if lease is not None and lease.deadline is not None and p.now() < lease.deadline:
                return  # it may use what it has until then
            await self._end(one.id, TERM_S)
        elif p.now() >= lease.renewal_due:
            with contextlib.suppress(GridError):
                await self._service.renew(lease.id, who="grid")

    async def give_up(self, one: Offloaded, error: GridError) -> None:
        """Give a move up: the process is not started on the other node."""
        because = "; ".join([error.message, *error.because])
        self.change(one.id, OffloadState.FAILED, why=because)
        self._p.journal.note(
            "offload_failed",
            f"{one.label}: not moved from {one.from_node} to {one.to_node}: {because}",
            node=one.from_node,
            offload=one.id,
            runs_nowhere=isinstance(error, MoveFailed) and not one.kept,
            by_hand=one.by_hand,
        )
        await self._mover.undo(one.id, "the process was not moved")

    async def _over(self, one: Offloaded, state: OffloadState, why: str | None, said: RunnerSaid | None = None) -> None:
        if (done := self.change(one.id, state, said, why)) is None:
            return  # already recorded
        code = "" if done.exit_code is None else f" with exit code {done.exit_code}"
        self._p.journal.note(
            "offload_ended",
            f"{one.label}: {state} on {one.to_node}{code}" + (f" ({why})" if why else ""),
            node=one.to_node,
            offload=one.id,
            state=str(state),
            exit_code=done.exit_code,
        )
        await self._mover.undo(one.id, f"the process {state}")

    async def may_have_stopped(self, lease_id: str) -> bool:
        """Whether the old process may have been stopped, according to the runner of the new one."""
        try:
            said = await threads.NODE_TASKS.run(self._control.runners.about, lease_id)
        except RunnerGone:
            return False
        return said is None or bool(said["stopping"])


def _from_record(lease_id: str, said: RunnerSaid) -> Offloaded:
    found = Offloaded(
        id=lease_id,
        label=said["label"],
        from_node=said["from_node"],
        from_pid=said["from_pid"],
        to_node=said["to_node"],
        requester=said["requester"],
        kept=said["kept"],
        state=_state_of(said),
        began_at=parse_instant(said["began_at"]),
        team=said.get("team", ""),
        by_hand=said["by_hand"],
    )
    return _as_reported(found, said)


def _state_of(said: RunnerSaid) -> OffloadState:
    """The state in which a new controller finds a process."""
    if said.get("cancelled"):
        return OffloadState.CANCELLING
    return OffloadState.INTERRUPTED if said["state"] == PREPARED else OffloadState.RUNNING


def _as_reported(one: Offloaded, said: RunnerSaid) -> Offloaded:
    return replace(
        one,
        pid=said["pid"],
        exit_code=said["exit_code"],
        output=said["output"],
        output_from=said["output_from"],
    )
