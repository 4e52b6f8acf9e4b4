"""A run: a live workload, in the process that started it."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import ray

from distributed_grid.errors import CannotScale, GridError, RoleRunInUse, Unavailable, said_by
from distributed_grid.execution.role_records import RoleRecords, checked_name
from distributed_grid.model.roles.runs import Record, RunState
from distributed_grid.model.roles.workload import Workload, spec_named
from distributed_grid.roles.calls.endpoints import Endpoint, EndpointRegistry
from distributed_grid.roles.calls.groups import CallOptions, RoleGroup
from distributed_grid.roles.calls.ray_transport import RayTransport
from distributed_grid.roles.ending import RAY_EXIT, attempt, leave_record, let_go, uninterrupted
from distributed_grid.roles.known_runs import KnownRuns
from distributed_grid.roles.supervision.health import Health
from distributed_grid.roles.supervision.hosting import Hosting
from distributed_grid.roles.supervision.launching import Launching, Progress
from distributed_grid.roles.supervision.managed import ProcessSet
from distributed_grid.roles.supervision.parts import RunParts
from distributed_grid.roles.supervision.places import Places
from distributed_grid.roles.supervision.signals import Following, SignalReader
from distributed_grid.roles.supervision.supervisor import Supervisor
from distributed_grid.roles.supervision.surveying import Surveyor, controller_here

_POLL_S: Final = 0.1

T = TypeVar("T")


class Starting:
    """A run that starts in a thread of its own: what its process began ends, in order, before the process leaves Ray.

    Signal handlers run in the main thread, between any two of its lines, and may call `ray.shutdown()`, or raise. So
    the thread that asked for the run only waits, and calls nothing of Ray meanwhile.
    """

    def __init__(self, begin: Callable[[Progress], "Run"], name: str) -> None:
        """`begin`: gets the function to report progress to, which raises once the start should be given up."""
        self._begin, self._name = begin, name
        self._thread = threading.Thread(target=self._start, name=f"grid-roles-{name}-starts", daemon=True)
        self._progress: SimpleQueue[str | None] = SimpleQueue()
        self._said = ""
        self._given_up = self._is_over = False
        self._run: Run | None = None
        self._error: BaseException | None = None

    def result(self, progress: Progress) -> "Run":
        """The started run. `progress` is called in this thread. A failed start raises, once nothing is left."""
        try:
            RAY_EXIT.add(self, self.give_up)
            self._thread.start()
            while (said := self._progress.get()) is not None:
                progress(said)
        except BaseException:
            self.give_up()
            raise
        try:
            if self._error is not None:
                raise self._error
            assert self._run is not None
            return self._run
        finally:
            del self  # otherwise the error and this object would keep each other alive

    def give_up(self) -> None:
        """End what has begun, or the run if it has started. Returns when nothing is left."""
        self._given_up = True
        # This waits for no lock: the interrupted thread might hold it. Without a number, nothing has begun.
        while self._thread.ident is not None and not self._is_over:
            time.sleep(_POLL_S)
        RAY_EXIT.drop(self)
        if self._run is not None:
            self._run.leave_ray()

    def _start(self) -> None:
        try:
            self._tell("")
            self._run = self._begin(self._tell)
        except BaseException as error:  # noqa: BLE001 (for the waiting thread)
            self._error = error
        finally:
            RAY_EXIT.drop(self)
            self._is_over = True
            self._progress.put(None)
            del self

    def _tell(self, said: str) -> None:
        if self._given_up:
            raise GridError(f"{self._name} did not start: its process leaves Ray")
        if said != self._said:
            self._said = said
            self._progress.put(said)


class Run:
    """Made by `launch`. It ends with `shutdown`, with its `with` block, or with this process."""

    def __init__(
        self, workload: Workload, name: str, surveyor: Surveyor, places: Places, silent_after_s: float
    ) -> None:
        self.name = checked_name(name)
        self._registry = EndpointRegistry(name)
        for role in workload.roles:
            self._registry.add_role(role.name)
        process_set = ProcessSet(name, Hosting(workload, env_allow=surveyor.env_allow), self._registry)
        self._p = RunParts(name, workload, process_set, places, surveyor)
        self._transport = RayTransport(self._lost)
        self._records = RoleRecords.connected()
        self._runs = KnownRuns(self._records, controller_here)
        reader = SignalReader(self._p, self.__getitem__)
        self._supervisor = Supervisor(
            self._p,
            self._records,
            Health(process_set, surveyor.gateway, silent_after_s),
            Following(self._p, reader.read),
        )
        self._ending = threading.Lock()
        self._over = threading.Event()

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self, wait_s: float, progress: Progress) -> None:
        """All or nothing: an error is raised once nothing is left. `progress` raises to give up the start."""
        there = self._runs.register(self._supervisor.record())
        if there is not None:
            raise RoleRunInUse(
                f"A run named {self.name} already exists and is {there['state']}, since {there['began_at']}",
                try_next=f"Use another name, or end that one: grid roles down {self.name}",
            )

        def tell(said: str) -> None:
            progress(said)
            if said != self._p.progress:
                self._p.progress = said
                self._supervisor.tell()

        launching = Launching(self._p, tell)
        try:
            with suppress(Unavailable):
                self._runs.forget_old(datetime.now(UTC))
                self._runs.free_lost()
            launching.place(wait_s)
            launching.await_up()
            self._p.process_set.settle()
        except BaseException as error:
            why = said_by(error)
            self._end(why, RunState.FAILED, forget=True)
            raise
        self._p.become(RunState.RUNNING, "")
        self._p.progress = ""
        self._supervisor.tell()
        RAY_EXIT.add(self, self.leave_ray)
        self._supervisor.start(self._end)

    def shutdown(self) -> None:
        """End the whole run. May be called again, and by several threads."""
        self._stop_and_end("it was shut down")

    def leave_ray(self) -> None:
        """The same, before this process leaves Ray. Returns when no thread of the run calls Ray any more."""
        self._stop_and_end("the process that owns it left Ray")

    def _stop_and_end(self, why: str) -> None:
        def end() -> None:
            self._supervisor.stop()  # first, so that nothing is started meanwhile
            self._end(why, RunState.ENDED)

        uninterrupted(end)

    def drop(self) -> None:
        """End the run soon, once its calls have ended: no part of the program can use it any more.

        Safe where Python collects garbage, in any thread and at any line: nothing is called and no lock is taken.
        """
        self._supervisor.dropped = True

    @property
    def is_dropped(self) -> bool:
        return self._supervisor.dropped

    @property
    def what_keeps_it(self) -> str:
        """For a dropped run: what it waits for before it ends."""
        return "; ".join(self._supervisor.resizing.leaving.finishing()) or "it is releasing its capacity"

    def _end(self, why: str, state: RunState, *, forget: bool = False) -> None:
        """`forget`: remove the record even if the run failed."""
        with self._ending:
            if self._over.is_set():
                return
            self._supervisor.stopping()
            self._p.become(RunState.STOPPING, why)
            self._p.progress = ""
            if ray.is_initialized():
                attempt(self._p, self._supervisor.tell)
            self._registry.close(f"the run {self.name} is over: {why}")
            let_go(self._p, self._supervisor.resizing.borrowing.give_back_all)
            self._p.become(state, why)
            forget = forget or state is not RunState.FAILED
            leave_record(self._p, self._records, self._supervisor.record(), forget=forget)
            RAY_EXIT.drop(self)
            self._over.set()

    def _lost(self, endpoint: Endpoint) -> None:
        """A call found that a member is gone: check it now."""
        self._p.process_set.suspect(endpoint)
        self._supervisor.poke()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the run has ended. False: it has not within `timeout_s`."""
        return self._over.wait(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    # -- use -----------------------------------------------------------------------------------------------------

    @property
    def roles(self) -> tuple[str, ...]:
        return self._registry.roles

    @property
    def parts(self) -> RunParts:
        """The state that the parts of the run share; the run's own threads change it."""
        return self._p

    @property
    def state(self) -> RunState:
        return self._p.state

    @property
    def why(self) -> str:
        """Why the run has ended, or is degraded."""
        return self._p.why

    def __getitem__(self, role: str | Enum) -> RoleGroup[Any]:
        """The members of a role."""
        spec = spec_named(self._p.workload, role)
        return RoleGroup(self._registry, self._transport, spec.name, CallOptions(spec.call_deadline_seconds))

    def group(self, role: str | Enum, cls: type[T]) -> RoleGroup[T]:
        """The same group with its class stated: `run.group("trainer", Trainer)`."""
        return self[role]

    def endpoints(self, role: str) -> tuple[Endpoint, ...]:
        """The endpoints of a role's members in rank order, for interfaces other than its groups."""
        return self._registry.endpoints(role)

    def status(self) -> Record:
        """All that is known of the run, as `grid roles status --json` shows it."""
        return self._supervisor.record()

    def scale(self, role: str | Enum, count: int, wait_s: float | None = 60.0) -> None:
        """Bring a role to `count` members, and wait until they are up. None or 0: do not wait."""
        name = spec_named(self._p.workload, role).name
        failed_additions = self._p.failed_additions[name]
        self._supervisor.request_count(name, count)
        until = time.monotonic() + (wait_s or 0.0)
        while not self._registry.is_at(name, count):
            if self._over.is_set():
                raise GridError(f"{self.name} ended: {self.why}")
            if not wait_s:
                return
            failed = self._p.failed_additions[name] > failed_additions
            if failed or time.monotonic() >= until:
                within = ": the added members did not start" if failed else f" after {wait_s:g} s"
                raise CannotScale(
                    f"{name} has {len(self[name])} of {count} members{within}",
                    because=[why for why in [self._p.short.get(name)] if why],
                )
            time.sleep(_POLL_S)
