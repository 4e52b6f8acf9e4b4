"""The supervisor of a run: one thread that handles deaths, commands and scaling one after the other.

It also tells members of their peers, and writes the run's record.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import ray

from distributed_grid.errors import Unavailable, said_by
from distributed_grid.execution.actors import why_gone
from distributed_grid.execution.role_records import RoleRecords
from distributed_grid.loops import ThreadLoop
from distributed_grid.model.roles.runs import Record, RunState
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.roles.workload import scaled_counts
from distributed_grid.model.times import instant
from distributed_grid.roles.calls.endpoints import Endpoint, Ref
from distributed_grid.roles.calls.ray_transport import unfinished
from distributed_grid.roles.on_node.making import ON_PEERS
from distributed_grid.roles.record import member_row, role_row
from distributed_grid.roles.supervision.health import Health
from distributed_grid.roles.supervision.managed import Fault, ManagedProcess
from distributed_grid.roles.supervision.parts import RunParts
from distributed_grid.roles.supervision.reclaims import Reclaims
from distributed_grid.roles.supervision.recovery import Restarts
from distributed_grid.roles.supervision.resizing import Resizing
from distributed_grid.roles.supervision.signals import Following

if TYPE_CHECKING:
    from distributed_grid.wire.roles import MemberOfRun, RoleOfRun


class PeerNotifier:
    def __init__(self, parts: RunParts) -> None:
        self._p = parts
        self._known: frozenset[tuple[str, int]] = frozenset()
        self._notifications: dict[Ref, ManagedProcess] = {}
        """References to the notifications of members."""

    def begin(self) -> None:
        """The current members know each other already."""
        self._known = self._there(self._p.process_set.staying)

    def look(self) -> None:
        self._note_failures()
        met = [process for process in self._p.process_set.staying if not process.status.is_starting]
        if self._there(met) != self._known:
            begun = self._p.process_set.introduce(met)
            self._known = self._there(met)
            self._notifications |= {ref: process for process, refs in begun for ref in refs}

    def _note_failures(self) -> None:
        """A member that failed in `on_peers` is up and can be called, so it continues. The failure is recorded."""
        if not self._notifications:
            return
        done, _ = ray.wait([*self._notifications], num_returns=len(self._notifications), timeout=0, fetch_local=False)
        for ref in done:
            process = self._notifications.pop(ref)
            try:
                ray.get(ref)
            except ray.exceptions.RayTaskError as error:
                self._p.note(f"{process.title} failed in {ON_PEERS}(): {why_gone(error)}")
            except ray.exceptions.RayError:
                pass  # it has ended, which is noticed elsewhere

    @staticmethod
    def _there(processes: list[ManagedProcess]) -> frozenset[tuple[str, int]]:
        return frozenset((process.name, process.status.life) for process in processes)


def record_of(parts: RunParts, job_id: str, worker_id: str, node: str) -> Record:
    user, team = parts.surveyor.user_and_team
    processes = sorted(parts.process_set.by_name.values(), key=lambda process: (process.key, process.spec.index))
    return {
        "name": parts.name,
        "workload": parts.workload.name,
        "state": str(parts.state),
        "why": parts.why,
        "progress": parts.progress,
        "owner": {
            "node": node,
            "pid": os.getpid(),
            "job_id": job_id,
            "worker_id": worker_id,
            "user": user,
            "team": team,
        },
        "began_at": _at(parts.began),
        "updated_at": instant(datetime.now(UTC)),
        "roles": [_role(parts, role, processes) for role in parts.workload.roles],
        "members": _members(parts, processes),
        "holdings": [
            {
                "node": one.holding.node,
                "pool": one.holding.pool,
                "resources": one.holding.resources.to_amounts(),
                "boost_id": one.boost_id,
            }
            for one in list(parts.held)
        ],
        "events": parts.events.rows(),
    }


def _role(parts: RunParts, role: RoleSpec, processes: list[ManagedProcess]) -> RoleOfRun:
    return role_row(
        role,
        wanted=parts.wanted.get(role.name, role.least),
        up=len([process for process in processes if role.name in process.key and process.status.shown == "up"]),
        failures=parts.failures[role.name],
        scaling=parts.scaling.get(role.name, ""),
    )


def _members(parts: RunParts, processes: list[ManagedProcess]) -> list[MemberOfRun]:
    found = [_member(process, endpoint) for process in processes for endpoint in process.endpoints]
    order = {role.name: number for number, role in enumerate(parts.workload.roles)}
    return sorted(found, key=lambda one: (order[one["role"]], one["rank"]))


def _member(process: ManagedProcess, endpoint: Endpoint) -> MemberOfRun:
    status = process.status
    return member_row(
        endpoint,
        status.shown,
        process.name,
        gpus=status.gpus,
        restarts=status.restarts,
        queue=status.load.queue,
        running=status.load.running,
        pid=status.pid,
        why=status.why,
    )


def _at(moment: float) -> str:
    return instant(datetime.fromtimestamp(moment, UTC))


_TICK_S: Final = 0.25
_COMMANDS_S: Final = 0.5
_TELL_S: Final = 2.0
_DROPPED: Final = "the program no longer references its manager or any of its members"


class Supervisor:
    """`tick` is one round. A thread repeats it, sooner when poked."""

    def __init__(self, parts: RunParts, records: RoleRecords, health: Health, following: Following) -> None:
        self._p = parts
        self._records = records
        self._health = health
        self._following = following
        self._restarts = Restarts(parts)
        self.resizing = Resizing(parts)
        self._peer_notifier = PeerNotifier(parts)
        self._reclaims = Reclaims(parts)
        self._faults: list[Fault] = []
        """Kept until they are handled: an exception in between must not lose them."""
        self._commands: deque[tuple[str, int]] = deque()
        name = f"grid-roles-{parts.name}"
        self._loop = ThreadLoop(name, self._turn, lambda: _TICK_S, waits_first=True, at_end=following.finish)
        self._commands_at = self._reported_at = 0.0
        self._job_id = ray.get_runtime_context().get_job_id()
        self._worker_id = ray.get_runtime_context().get_worker_id()
        self._node = parts.surveyor.name_of(ray.get_runtime_context().get_node_id())
        self.on_down: Callable[[str, RunState], None] = lambda _why, _state: None
        self.dropped = False
        """No part of the program can use the run any more. Every round reads this, so setting it is enough."""

    def start(self, on_down: Callable[[str, RunState], None]) -> None:
        """`on_down`: ends the run, given why."""
        self._peer_notifier.begin()
        self.on_down = on_down
        self._loop.start()

    def stopping(self) -> None:
        """End the rounds."""
        self._loop.end()

    def stop(self) -> None:
        self._loop.stop()

    def poke(self) -> None:
        self._loop.wake()

    def request_count(self, role: str, count: int) -> None:
        scaled_counts(self._p.workload, role, count)  # raises for an invalid count, before the caller waits
        self._commands.append((role, count))
        self.poke()

    def record(self) -> Record:
        return record_of(self._p, self._job_id, self._worker_id, self._node)

    def tell(self) -> None:
        """Write the record."""
        self._reported_at = time.monotonic()
        with suppress(ray.exceptions.RpcError, Unavailable):  # it is written again soon
            self._records.write_record(self.record())

    # -- rounds --------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        try:
            self.tick()
        except Exception as error:  # noqa: BLE001 (the run's record tells it, not only the log)
            self._p.note(f"a supervision round failed; retrying: {said_by(error)}")

    def tick(self) -> None:
        before = self._shape()
        self._faults += self._p.process_set.look()
        self._p.process_set.settle()
        self._reclaims.look()
        self._faults += self._health.look()
        self._faults += self._p.late() + self._unplaced()
        here = [fault for fault in self._faults if self._p.process_set.by_name.get(fault.process.name) is fault.process]
        faults, self._faults = self.resizing.take(here), []
        if faults and (why := self._restarts.recover(faults)):
            self.on_down(why, RunState.FAILED)
            return
        if not faults:
            self._restarts.start_pending()
        self.resizing.look()
        if self.dropped:
            self._wind_up()
            return
        if self._take_commands():
            return
        self._follow()
        self._peer_notifier.look()
        self._judge()
        if self._shape() != before or time.monotonic() - self._reported_at > _TELL_S:
            self._p.process_set.registry.forget_finished(unfinished)
            self.tell()

    def _wind_up(self) -> None:
        """All members finish the calls they have, and the run ends with the last of them.

        There is no time limit: the program may still hold references to their results.
        """
        if self._p.state is not RunState.STOPPING:
            self._p.become(RunState.STOPPING, _DROPPED)
            self._p.wanted = dict.fromkeys(self._p.wanted, 0)
            self.resizing.leaving.leave(self._p.process_set.staying, _DROPPED, finish_s=math.inf)
            self.tell()
        if not self._p.process_set.by_name:
            self.on_down(_DROPPED, RunState.ENDED)

    def _unplaced(self) -> list[Fault]:
        """The processes whose place was taken: its lease was preempted, or ended otherwise."""
        found = []
        for process in self._p.process_set.by_name.values():
            why = self._p.places.lost(process.held) if process.handle is not None else None
            if why is not None:
                found.append(Fault(process, why, what="lost its place"))
        return found

    def _take_commands(self) -> bool:
        """Whether the run should end."""
        now = time.monotonic()
        if now - self._commands_at > _COMMANDS_S:
            self._commands_at = now
            pending_command = self._records.take_command(
                self._p.name
            )  # if this raises, this process's own requests are kept
            if pending_command is not None:
                if pending_command["down"]:
                    self.on_down("a shutdown was requested", RunState.ENDED)
                    return True
                self._commands.extend(pending_command["counts"].items())
        while self._commands:
            self._towards(*self._commands.popleft())
        return False

    def _follow(self) -> None:
        for role, count in self._following.wanted():
            self._towards(role, count)
        # A role that could not grow when asked may be able to now.
        for role, count in [*self._p.wanted.items()]:
            if self._p.process_set.count(role) < count and self._following.may_retry(role):
                self._towards(role, count)

    def _towards(self, role: str, count: int) -> None:
        try:
            why = self.resizing.towards(role, count)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is reported, and other roles are still scaled)
            why = said_by(error)
        if why and why != self._p.short.get(role):
            self._p.note(f"{role} does not have {count} members: {why}")
        self._p.short[role] = why
        together = self._p.together(role)
        follows = any(self._p.spec(one).scaling is not None for one in together)
        if why and follows and not self.resizing.borrowing.borrows_for(role):
            # A role that follows a signal reads it again. For other roles, a requested count stays wanted.
            self._p.wanted |= {one: self._p.process_set.count(one) for one in together}

    def _judge(self) -> None:
        """Whether the run is as it should be."""
        away = [process for process in self._p.process_set.staying if process.status.shown != "up"]
        few = [role for role, count in self._p.wanted.items() if self._p.process_set.count(role) < count]
        whys = [f"{process.name.partition('/')[2]} is {process.status.shown}" for process in away]
        whys += [f"{role} has {self._p.process_set.count(role)} of {self._p.wanted[role]}" for role in few]
        why = "; ".join(whys[:3]) + (f" and {len(whys) - 3} more" if len(whys) > 3 else "")
        self._p.become(RunState.DEGRADED if whys else RunState.RUNNING, why)

    def _shape(self) -> object:
        statuses = [one.status for one in self._p.process_set.by_name.values()]
        shown = [(one.name, one.shown, one.restarts, one.pid, one.spec.node) for one in statuses]
        return self._p.state, len(self._p.events), shown
