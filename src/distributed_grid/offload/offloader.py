"""Users' requests to move processes to other nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from distributed_grid import threads
from distributed_grid.decide.leases.ownership import owned_offload
from distributed_grid.errors import CannotMove, GridError, TooBusy, TooManyRequests, Unavailable
from distributed_grid.execution.on_node_runner import RunnerRecord
from distributed_grid.execution.processes import NodeSilent, ProcessControl, RunnerGone
from distributed_grid.leases.state import EngineContext
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.offload import MoveRequest, Offloaded, OffloadState
from distributed_grid.model.principals import Principal
from distributed_grid.offload.move import KEY, Move, Mover
from distributed_grid.offload.moved import OffloadedProcesses
from distributed_grid.offload.survey import ProcessSurvey, Snapshots, Survey
from distributed_grid.queue.ownership import check_change
from distributed_grid.queue.service import BoostService

if TYPE_CHECKING:
    from distributed_grid.wire.offload import LogPiece, OffloadLog

_PATIENCE_S: Final = 5.0
# A cancellation with a longer grace period is answered before the process has ended.
_LONGEST_S: Final = 60.0
# Each move occupies threads until its old process has ended.
MOVES_AT_ONCE: Final = 8
MOVES_OF_ONE: Final = 4
"""Per token. The installation's own moves have this many even while the others use all of theirs."""


class Offloading:
    """The part of the engine that moves processes, if it has `ProcessControl`."""

    def __init__(
        self, parts: EngineContext, service: BoostService, control: ProcessControl, snapshots: Snapshots
    ) -> None:
        self._p = parts
        self._control = control
        self._survey = ProcessSurvey(parts, control.processes, snapshots)
        self._mover = Mover(parts, service, control, self._survey)
        self.processes = OffloadedProcesses(parts, service, control, self._mover)
        self._moves: Counter[str | None] = Counter()
        """How many moves are under way, by token; None is the installation's own."""

    async def scan(self, node: NodeName | None = None) -> Survey:
        """The heavy processes of one node, or of all nodes."""
        return await self._survey.heavy(node)

    async def plan(self, request: MoveRequest, asker: Principal) -> Move:
        """The plan that `execute` would carry out. Nothing changes."""
        with self._refusals_noted(request, asker):
            move = await self._mover.plan(request, asker)
            self._check_not_moving(move)
            return move

    async def execute(
        self, request: MoveRequest, asker: Principal, key: str | None = None
    ) -> tuple[Move | None, Offloaded]:
        """Move a process; returns the move, or None if an earlier try with the same key made it, and what runs now."""
        if key is not None and (earlier := self._p.ledger.with_key(f"{KEY}{key}")) is not None:
            if (known := self.processes.get(earlier.id)) is not None:
                return None, known
            raise Unavailable("An earlier attempt at this move is still in progress", try_next="Retry in a moment.")
        move = await self.plan(request, asker)
        with self._refusals_noted(request, asker):
            self._check_room(asker)
            self._moves[asker.token_id] += 1
            try:
                lease = await self._mover.lease(move, asker, key)
            except BaseException:
                self._moves[asker.token_id] -= 1
                raise
        begun = self.processes.add(_begun(self._p, lease, move, asker))
        # Once begun, a move is carried through, even if the caller is gone.
        return move, await asyncio.shield(asyncio.ensure_future(self._carry_out(move, lease, begun, asker)))

    def _check_room(self, asker: Principal) -> None:
        mine = self._moves[asker.token_id]
        if mine >= MOVES_OF_ONE:
            raise TooManyRequests(
                f"{mine} processes are already being moved for you",
                try_next="Wait for one of them: grid offload status",
            )
        if asker.token_id is not None and self._moves.total() - self._moves[None] >= MOVES_AT_ONCE:
            raise TooBusy(f"{MOVES_AT_ONCE} processes are already being moved", try_next="Retry in a moment.")

    async def _carry_out(self, move: Move, lease: Lease, begun: Offloaded, asker: Principal) -> Offloaded:
        mover = self._mover
        try:
            await mover.make_ready(move, lease, asker)
            if not move.request.keep and (why := await mover.stop_the_old(move, lease)) is not None:
                raise CannotMove(f"Process {move.facts.pid} was not moved", because=[why])
            running = self.processes.change(begun.id, OffloadState.RUNNING, await mover.begin_the_new(move, lease))
        except GridError as error:
            if not (isinstance(error, Unavailable) and await self.processes.may_have_stopped(lease.id)):
                await self.processes.give_up(begun, error)  # else the outcome is unknown; `processes` finds out
            raise
        finally:
            self.processes.change(begun.id, OffloadState.INTERRUPTED)  # too late, unless the outcome is unknown
            self._moves[asker.token_id] -= 1
        if running is None:  # it was cancelled meanwhile
            cancelled = self.processes.get(begun.id) or begun
            if cancelled.is_over:
                await mover.undo(lease.id, "the move was cancelled")
            return cancelled
        self._p.journal.note(
            "offloaded",
            f"{begun.label}: process {begun.from_pid} of {begun.from_node} is process {running.pid} of {begun.to_node}"
            + (", and the old one keeps running" if begun.kept else ""),
            lease=lease,
            node=begun.to_node,
            who=asker.name,
            left_behind=list(move.environment.left_behind),
        )
        return running

    async def cancel(self, prefix: str, grace_s: float, asker: Principal) -> Offloaded:
        """End a moved process where it runs now."""
        one = self.processes.find(prefix)
        check_change(self._p, asker, owned_offload(one), "end")
        if one.is_over:
            return one
        self.processes.change(one.id, OffloadState.CANCELLING)
        message = f"{one.label}: being ended on {one.to_node}"
        self._p.journal.note("offload_cancelled", message, node=one.to_node, who=asker.name, offload=one.id)
        intent: RunnerRecord = {"cancelled": True, "grace_s": grace_s}  # for a controller that finds it half done
        with contextlib.suppress(RunnerGone, TimeoutError):
            await threads.SLOW.run(self._control.runners.note, one.id, intent)
        with contextlib.suppress(RunnerGone, TimeoutError):
            await threads.SLOW.run(self._control.runners.end, one.id, grace_s, min(grace_s, _LONGEST_S) + _PATIENCE_S)
        await self.processes.look(one)
        return self.processes.get(one.id) or one

    async def log(self, prefix: str, begin: int, asker: Principal) -> OffloadLog:
        """A piece of the process's output on the other node, from byte `begin` on.

        The owner of that node may end the process, but may not read its output.
        """
        one = self.processes.find(prefix)
        check_change(self._p, asker, replace(owned_offload(one), lenders=()), "read the log of")
        try:
            piece = await threads.READING.run(self._control.runners.read, one.id, begin)
        except (RunnerGone, TimeoutError):
            piece = await self._left_log(one, begin)
        return {**piece, "is_over": one.is_over, "path": one.output, "node": one.to_node}

    async def _left_log(self, one: Offloaded, begin: int) -> LogPiece:
        """Read the log of a process that is over: it stays on the node."""
        raylet = self._p.observer.naming.raylets.get(one.to_node)
        if not one.output:
            return {"text": "", "next": begin, "more": False}
        read = self._control.processes.read_log
        try:
            if raylet is None:
                raise NodeSilent(one.to_node)
            return await threads.READING.run(read, raylet.node_id, one.output, one.output_from, begin)
        except NodeSilent:
            raise Unavailable(f"{one.to_node}, which has the log {one.output}, does not answer") from None

    def _check_not_moving(self, move: Move) -> None:
        for one in self.processes.all():
            if not one.is_over and not one.kept and (one.from_node, one.from_pid) == (move.facts.node, move.facts.pid):
                raise CannotMove(f"Process {one.from_pid} is already being moved to {one.to_node}")

    @contextlib.contextmanager
    def _refusals_noted(self, request: MoveRequest, asker: Principal) -> Iterator[None]:
        try:
            yield
        except GridError as error:
            of = "" if request.node is None else f" of {request.node}"
            self._p.journal.note(
                "offload_refused",
                f"process {request.pid}{of}: {error.message}",
                node=request.node,
                who=asker.name,
                code=error.code,
                because=list(error.because),
            )
            raise


def _begun(p: EngineContext, lease: Lease, move: Move, asker: Principal) -> Offloaded:
    return Offloaded(
        id=lease.id,
        label=lease.label,
        from_node=move.facts.node,
        from_pid=move.facts.pid,
        to_node=lease.source,
        requester=asker.name,
        team=lease.team,
        kept=move.request.keep,
        state=OffloadState.MOVING,
        began_at=p.now(),
        by_hand=move.by_hand,
    )
