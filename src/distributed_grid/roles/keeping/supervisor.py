"""Looks after a run while it lives: who died, what is wished, who scales; one thread, one thing after the other."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import ray

from distributed_grid.errors import Unavailable, said_by
from distributed_grid.execution.role_records import RoleRecords
from distributed_grid.model.roles.runs import Record, RunState
from distributed_grid.roles.asked_counts import scaled_counts
from distributed_grid.roles.calls.ray_transport import unfinished
from distributed_grid.roles.keeping.following import Following
from distributed_grid.roles.keeping.health import Health
from distributed_grid.roles.keeping.introducing import Introducing
from distributed_grid.roles.keeping.mending import Mending
from distributed_grid.roles.keeping.parts import RunParts
from distributed_grid.roles.keeping.posts import Fault, PostState
from distributed_grid.roles.keeping.reclaims import Reclaims
from distributed_grid.roles.keeping.reporting import record_of
from distributed_grid.roles.keeping.resizing import Resizing

_TICK_S: Final = 0.25
_WISHES_S: Final = 0.5
_TELL_S: Final = 2.0
_DROPPED: Final = "the program holds neither its manager nor any of its members any more"


class Supervisor:
    """`tick` is one round; a thread repeats it, sooner when it is poked."""

    def __init__(self, parts: RunParts, records: RoleRecords, health: Health, following: Following) -> None:
        self._p = parts
        self._records = records
        self._health = health
        self._following = following
        self._mending = Mending(parts)
        self.resizing = Resizing(parts)
        self._introducing = Introducing(parts)
        self._reclaims = Reclaims(parts)
        self._faults: list[Fault] = []
        """Kept until something is done about them: what raises between must not make them forgotten."""
        self._wishes: deque[tuple[str, int]] = deque()
        self._poked = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._wishes_at = self._told_at = 0.0
        self._job_id = ray.get_runtime_context().get_job_id()
        self._worker_id = ray.get_runtime_context().get_worker_id()
        self._node = parts.surveyor.name_of(ray.get_runtime_context().get_node_id())
        self._on_down: Callable[[str, RunState], None] = lambda _why, _state: None
        self.dropped = False
        """No part of the program can use the run any more. It is read in every round, so setting it is enough."""

    def start(self, on_down: Callable[[str, RunState], None]) -> None:
        """`on_down`: ends the run, with why."""
        self._introducing.begin()
        self._on_down = on_down
        self._thread = threading.Thread(target=self._run, name=f"grid-roles-{self._p.name}", daemon=True)
        self._thread.start()

    def stopping(self) -> None:
        """The rounds end."""
        self._stopping.set()
        self._poked.set()

    def stop(self) -> None:
        self.stopping()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._following.finish()

    def poke(self) -> None:
        self._poked.set()

    def wish(self, role: str, count: int) -> None:
        scaled_counts(self._p.workload, role, count)  # raises what makes no sense, before anybody waits
        self._wishes.append((role, count))
        self.poke()

    def record(self) -> Record:
        return record_of(self._p, self._job_id, self._worker_id, self._node)

    def tell(self) -> None:
        """Write down how things are."""
        self._told_at = time.monotonic()
        with suppress(ray.exceptions.RpcError, Unavailable):  # it is told again soon
            self._records.write_record(self.record())

    # -- rounds --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._poked.wait(_TICK_S)
            self._poked.clear()
            if self._stopping.is_set():
                return
            try:
                self.tick()
            except Exception as error:  # noqa: BLE001 (a run that nobody looks after is worse than any error)
                self._p.note(f"looking after the run failed, and is tried again: {said_by(error)}")

    def tick(self) -> None:
        before = self._shape()
        self._faults += self._p.crew.look()
        self._p.crew.settle()
        self._reclaims.look()
        self._faults += self._health.look()
        self._faults += self._p.late() + self._unplaced()
        here = [fault for fault in self._faults if self._p.crew.posts.get(fault.post.name) is fault.post]
        faults, self._faults = self.resizing.take(here), []
        if faults and (why := self._mending.mend(faults)):
            self._on_down(why, RunState.FAILED)
            return
        if not faults:
            self._mending.house()
        self.resizing.look()
        if self.dropped:
            self._wind_up()
            return
        if self._take_wishes():
            return
        self._follow()
        self._introducing.look()
        self._judge()
        if self._shape() != before or time.monotonic() - self._told_at > _TELL_S:
            self._p.crew.roster.forget_finished(unfinished)
            self.tell()

    def _wind_up(self) -> None:
        """All members finish the calls that they have, and the run ends with the last of them.

        However long that takes: the program may still hold references to their results.
        """
        if self._p.state is not RunState.STOPPING:
            self._p.state, self._p.why = RunState.STOPPING, _DROPPED
            self._p.wanted = dict.fromkeys(self._p.wanted, 0)
            self.resizing.leaving.leave(self._p.crew.staying, _DROPPED, finish_s=math.inf)
            self.tell()
        if not self._p.crew.posts:
            self._on_down(_DROPPED, RunState.ENDED)

    def _unplaced(self) -> list[Fault]:
        """Those whose place was taken from them: a lease that was preempted, or ended otherwise."""
        found = []
        for post in self._p.crew.posts.values():
            why = self._p.places.lost(post.held) if post.handle is not None else None
            if why is not None:
                found.append(Fault(post, why, what="lost its place"))
        return found

    def _take_wishes(self) -> bool:
        """Whether it is to end."""
        now = time.monotonic()
        if now - self._wishes_at > _WISHES_S:
            self._wishes_at = now
            wished = self._records.take_wish(self._p.name)  # what is wished here is still there if this raises
            if wished is not None:
                if wished["down"]:
                    self._on_down("it was asked to go down", RunState.ENDED)
                    return True
                self._wishes.extend(wished["counts"].items())
        while self._wishes:
            self._towards(*self._wishes.popleft())
        return False

    def _follow(self) -> None:
        for role, count in self._following.wanted():
            self._towards(role, count)
        # Who could not grow when it was wished may be able to now.
        for role, count in [*self._p.wanted.items()]:
            if self._p.crew.count(role) < count and self._following.may_retry(role):
                self._towards(role, count)

    def _towards(self, role: str, count: int) -> None:
        try:
            why = self.resizing.towards(role, count)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is told, and others are still to be scaled)
            why = said_by(error)
        if why and why != self._p.short.get(role):
            self._p.note(f"{role} does not have {count} members: {why}")
        self._p.short[role] = why
        together = self._p.together(role)
        follows = any(self._p.spec(one).scaling is not None for one in together)
        if why and follows and not self.resizing.borrowing.borrows_for(role):
            # Their signal is asked again; a number that somebody wished stays wished.
            self._p.wanted |= {one: self._p.crew.count(one) for one in together}

    def _judge(self) -> None:
        """Whether all is as it should be."""
        away = [post for post in self._p.crew.staying if post.state is not PostState.UP]
        few = [role for role, count in self._p.wanted.items() if self._p.crew.count(role) < count]
        whys = [f"{post.name.partition('/')[2]} is {post.state}" for post in away]
        whys += [f"{role} has {self._p.crew.count(role)} of {self._p.wanted[role]}" for role in few]
        self._p.state = RunState.DEGRADED if whys else RunState.RUNNING
        self._p.why = "; ".join(whys[:3]) + (f" and {len(whys) - 3} more" if len(whys) > 3 else "")

    def _shape(self) -> object:
        posts = self._p.crew.posts.values()
        return (
            self._p.state,
            len(self._p.events),
            [(p.name, p.state, p.restarts, p.pid, p.process.node, p.leaving_since) for p in posts],
        )
