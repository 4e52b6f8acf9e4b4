"""Moving one process to another node: everything is checked and ready there before anything is stopped here.

The order of the steps makes the move safe. First the lease and the actor that will run the command, then the old
process ends, then the new one starts. The actor records how far the move is, so after a crash the rest can be done, and
the command never starts while the old process may still run.
"""

import asyncio
import shlex
import uuid
from dataclasses import dataclass, replace
from typing import Final

from distributed_grid import threads
from distributed_grid.decide.leases.ownership import check_may_change, most_allowed, owned_process
from distributed_grid.decide.offload.movable import continues
from distributed_grid.decide.offload.recommend import Stuck, ask_for, label_of, recommendation_of
from distributed_grid.decide.offload.secrets import ChosenEnvironment, choose_environment, shown_command
from distributed_grid.errors import CannotMove, GridError, MoveFailed, ProcessNotFound, SameNode, Unavailable
from distributed_grid.execution.on_node_runner import FAILED, RunnerOrder, RunnerRecord, RunnerSaid
from distributed_grid.execution.processes import NodeSilent, ProcessControl, RunnerGone
from distributed_grid.leases.programs import leave
from distributed_grid.leases.state import EngineContext
from distributed_grid.model.endings import OnGraceEnd
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeName, connected
from distributed_grid.model.offload import (
    Elsewhere,
    MoveRequest,
    ObstacleCode,
    OffloadingRecommendation,
    ProcessFacts,
    StreamKind,
)
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.principals import Principal
from distributed_grid.model.teams import DEFAULT_TEAM
from distributed_grid.model.times import instant
from distributed_grid.offload.survey import ProcessSurvey
from distributed_grid.queue.service import BoostService


def refusal(facts: ProcessFacts, found: object) -> CannotMove:
    obstacles = found.obstacles if isinstance(found, Stuck) else ()
    room = [one for one in obstacles if one.code is ObstacleCode.NO_CAPACITY]
    smaller = "Ask for less with --cpus and --memory, or see what is free: grid node ls"
    return CannotMove(
        f"Process {facts.pid} ({facts.name}) cannot leave {facts.node}",
        because=[one.describe() for one in obstacles],
        try_next=smaller
        if obstacles and len(room) == len(obstacles)
        else "To see which processes can move: grid offload scan",
    )


def not_started(facts: ProcessFacts, to: NodeName, why: str, *, kept: bool, by_hand: str) -> MoveFailed:
    if kept:
        return MoveFailed(f"The command could not be started on {to}", because=[why])
    return MoveFailed(
        f"Process {facts.pid} was stopped on {facts.node} and could not be started on {to}: it now runs nowhere",
        because=[why],
        try_next=f"Start it again by hand on {facts.node}: {by_hand}",
    )


KEY: Final = "offload:"
"""The prefix of these leases' idempotency keys, which identifies them."""
PROGRAM: Final = "offload"
"""The program id of the process in its lease."""
DURATION_S: Final = 1800.0


@dataclass(frozen=True, slots=True)
class Move:
    """A planned move; nothing has happened yet."""

    request: MoveRequest
    facts: ProcessFacts
    wanted: OffloadingRecommendation
    environment: ChosenEnvironment
    order: RunnerOrder
    """The command to start, and the files that it reads and writes there."""
    by_hand: str


class Mover:
    def __init__(
        self, parts: EngineContext, service: BoostService, control: ProcessControl, survey: ProcessSurvey
    ) -> None:
        self._p = parts
        self._service = service
        self._control = control
        self._survey = survey

    async def plan(self, request: MoveRequest, asker: Principal) -> Move:
        """Check everything that can be checked; raise `CannotMove` with every reason."""
        if request.to is not None:
            connected(await self._survey.nodes(), request.to)
        facts = await self._survey.one(request.pid, request.node)
        if request.created_at not in (None, facts.created_at):
            raise ProcessNotFound(
                f"Process {request.pid} on {facts.node} is no longer the process that was scanned",
                try_next="Scan again: grid offload scan",
            )
        check_may_change(asker, owned_process(facts))
        if request.to == facts.node:
            raise SameNode(f"Process {facts.pid} is already on {facts.node}", try_next="Name another node, or auto.")
        chosen = choose_environment(facts.environment, request.env)
        measured = recommendation_of(facts)
        wanted = replace(
            measured,
            destination=request.to,
            cpu=measured.cpu if request.cpu is None else request.cpu,
            memory=measured.memory if request.memory is None else request.memory,
            gpu=measured.gpu if request.gpu is None else request.gpu,
        )
        found, there = await self._survey.place(wanted, facts)
        if isinstance(found, Stuck) or there is None:
            raise refusal(facts, found)
        order = _order(facts, there, kept=request.keep)
        return Move(request, facts, found, chosen, order, by_hand(facts))

    async def lease(self, move: Move, asker: Principal, key: str | None) -> Lease:
        """Request the lease that the process will run in."""
        ask = replace(
            ask_for(move.wanted),
            duration_s=DURATION_S,
            grace_s=move.request.grace_s,
            on_grace_end=OnGraceEnd.KILL,
            requester=asker.name,
            team=asker.team or DEFAULT_TEAM,
            priority=min(AllocationPriority.NORMAL, most_allowed(asker, self._p.teams), key=lambda one: one.rank),
            idempotency_key=f"{KEY}{key or uuid.uuid4().hex}",
        )
        return await self._service.request(ask)

    async def make_ready(self, move: Move, lease: Lease, asker: Principal) -> None:
        """Create an actor in the lease and give it the command."""
        p, control, facts = self._p, self._control, move.facts
        record: RunnerRecord = {
            "kind": "offload",
            "label": label_of(facts.command),
            "from_node": facts.node,
            "from_pid": facts.pid,
            "created_at": facts.created_at,
            "to_node": lease.source,
            "requester": asker.name,
            "team": lease.team,
            "kept": move.request.keep,
            "grace_s": move.request.grace_s,
            "began_at": instant(p.now()),
            "by_hand": move.by_hand,
            "stopping": False,
        }
        try:
            node_id = p.observer.naming.raylets[facts.node].node_id
            names = list(move.environment.copied)
            copied, _ = await asyncio.gather(
                threads.NODE_TASKS.run(control.processes.environment, node_id, facts.pid, facts.created_at, names),
                threads.NODE_TASKS.run(control.runners.create, lease, record),
            )
            await threads.NODE_TASKS.run(control.runners.prepare, lease.id, move.order, copied, move.environment.given)
        except (NodeSilent, RunnerGone, KeyError, TimeoutError) as error:
            raise Unavailable(
                f"Could not prepare {lease.source} for process {facts.pid}",
                because=[f"{type(error).__name__}: {error}"[:300], f"nothing was stopped on {facts.node}"],
                try_next="Try again, or use another node: --to NODE",
            ) from error

    async def stop_the_old(self, move: Move, lease: Lease) -> str | None:
        """End the process where it is; returns why the new one must not be started, if so.

        Raises `Unavailable` if the outcome is unknown: `OffloadedProcesses` then finds out.
        """
        facts, control = move.facts, self._control
        self._p.journal.note(
            "offload_stopping",
            f"process {facts.pid} of {facts.node} ({label_of(facts.command)}) ends, to continue on {lease.source}",
            lease=lease,
            node=facts.node,
            pid=facts.pid,
            by_hand=move.by_hand,
            who=lease.requester,
        )
        node_id = self._p.observer.naming.raylets[facts.node].node_id
        try:
            await threads.NODE_TASKS.run(control.runners.note, lease.id, {"stopping": True})
            done = await threads.NODE_TASKS.run(
                control.processes.stop, node_id, facts.pid, facts.created_at, move.request.grace_s
            )
        except RunnerGone:
            return f"its place on {lease.source} was lost before it was stopped"
        except NodeSilent as error:
            raise Unavailable(
                f"{facts.node} did not answer while process {facts.pid} was being stopped",
                because=["the command starts on the other node only once that process is known to have ended"],
                try_next="To follow the move: grid offload status",
            ) from error
        if not done["was_there"]:
            return f"process {facts.pid} ended by itself before it was stopped"
        return None if done["ended"] else f"process {facts.pid} did not end, even when it was killed"

    async def begin_the_new(self, move: Move, lease: Lease) -> RunnerSaid:
        try:
            said = await threads.NODE_TASKS.run(self._control.runners.go, lease.id)
        except TimeoutError as error:
            raise Unavailable(
                f"{lease.source} has not reported yet whether it could start the command",
                try_next="To follow the move: grid offload status",
            ) from error
        except RunnerGone as error:
            raise self._not_started(move, lease, str(error)) from error
        if said["state"] == FAILED:
            raise self._not_started(move, lease, str(said["why"]))
        return said

    def _not_started(self, move: Move, lease: Lease, why: str) -> MoveFailed:
        return not_started(move.facts, lease.source, why, kept=move.request.keep, by_hand=move.by_hand)

    async def undo(self, lease_id: str, reason: str) -> None:
        """Remove all of a move: the actor, what it runs, and the lease."""
        await threads.NODE_TASKS.run(self._control.runners.remove, lease_id)
        if (lease := self._p.ledger.get(lease_id)) is not None:
            await leave(self._p, lease, PROGRAM)
            try:
                await self._service.release(lease_id, reason=reason, grace_s=0.0, who="grid")
            except GridError:
                return  # it was released meanwhile


def by_hand(facts: ProcessFacts) -> str:
    """The command that starts it again; possible secrets are left for the user to fill in."""
    return f"cd {shlex.quote(facts.cwd)} && {shlex.join(shown_command(facts.command))}"


def _order(facts: ProcessFacts, there: Elsewhere, *, kept: bool) -> RunnerOrder:
    """The same command in the same folder. Its output goes on in the same files, if they are there and its own."""
    stdin, stdout, stderr = facts.streams

    def path(number: int) -> str | None:
        stream = (stdin, stdout, stderr)[number]
        return stream.path if not kept and continues(facts, stream, there) else None

    return {
        "command": list(facts.command),
        "cwd": facts.cwd,
        "stdin": stdin.path if stdin.kind is StreamKind.FILE else None,
        "stdout": path(1),
        "stderr": path(2),
    }
