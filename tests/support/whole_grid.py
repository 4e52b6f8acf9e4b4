"""The whole engine on a fake cluster, in an event loop whose time passes only when nothing is left to do.

Everything runs in one thread and in an order that a seed decides, so a failure can be repeated. A crash stops the
loop where it is: nothing is tidied up, as when a process is killed.
"""

import asyncio
import contextlib
import itertools
import random
import selectors
import warnings
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar
from unittest.mock import patch

from fake_clock import Clock
from fake_cluster import Crashed, FakeCluster, LostReply

from distributed_grid import threads
from distributed_grid.config import GridConfig
from distributed_grid.engine.engine import Engine
from distributed_grid.errors import GridError, StoreBroken
from distributed_grid.execution.capacity import Capacity, Convergence
from distributed_grid.execution.processes import ProcessControl
from distributed_grid.faults import Point, watched
from distributed_grid.leases import grant
from distributed_grid.leases.reconciler import Reconciler
from distributed_grid.leases.state import EngineContext
from distributed_grid.model.leases import Lease
from distributed_grid.monitoring.telemetry import Telemetry
from distributed_grid.queue.service import BoostService
from distributed_grid.store.boost_file import BoostFile
from distributed_grid.store.home import GridHome

T = TypeVar("T")

EPOCH: Final = datetime(2025, 6, 1, 12, 0, tzinfo=UTC)
RESTART_S: Final = 0.5
"""A controller that was killed is back no sooner than this."""


class _Selector(selectors.SelectSelector):
    """Never waits: moves the clock instead. Nothing comes from outside, as all happens in one thread."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everything waits for something that will never happen"
        self._clock.sleep(max(0.0, timeout))
        return []


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: Clock) -> None:
        self._virtual = clock
        super().__init__(_Selector(clock))
        self.audit = _Executor(self, 0)

    def time(self) -> float:
        return self._virtual.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Whichever pool a call is meant for, the seed decides when it runs; the audit log disturbs no other."""
        return super().run_in_executor(self.audit if executor is threads.AUDIT.executor else None, func, *args)

    def _write_to_self(self) -> None:
        """No other thread waits to be woken."""

    def _check_closed(self) -> None:
        """What a dead process left is swept up at any time after, perhaps in another test; that is no news."""


class _Executor(ThreadPoolExecutor):
    """Runs what is given to a thread a moment later in the loop itself, so that tasks overlap as a seed decides."""

    def __init__(self, loop: _Loop, seed: int) -> None:
        super().__init__(1)
        self._loop = loop
        self._chance = random.Random(seed)
        self.crashed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()

        def run() -> None:
            if self.crashed or not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except Crashed:
                self.crashed = True
                self._loop.stop()
            except BaseException as error:  # noqa: BLE001 - for the code that awaits it, as in a real executor
                future.set_exception(error)

        self._loop.call_later(self._chance.choice((0.0, 0.0, 0.001, 0.01)), run)
        return future


class _Capacity(Capacity):
    """Tells the cluster when a round is over, so that old excuses end."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(cluster, clock=cluster.clock, sleep=cluster.clock.sleep)
        self._cluster = cluster

    def converge(self, *args: Any, **kwargs: Any) -> Convergence:
        done = super().converge(*args, **kwargs)
        if not done.unsettled and not done.growth.unexplained:
            self._cluster.settle_excuses()
        return done


class _Engine(Engine):
    """The real one on parts that take their time from the clock."""

    def __init__(
        self,
        cluster: FakeCluster,
        config: GridConfig,
        home: GridHome,
        now: Callable[[], datetime],
        adopt: bool,
        telemetry: Telemetry | None,
        control: ProcessControl | None,
    ) -> None:
        super().__init__(cluster, config, home, adopt=adopt, now=now, telemetry=telemetry, control=control)
        self.disk_is_full = False
        self.parts.applier.capacity = _Capacity(cluster)
        self.parts.file.save = self._saving(self.parts.file.save)  # type: ignore[method-assign]
        self.failures: list[BaseException] = []
        self.reconciler.turn = self._turning(self.reconciler.turn)  # type: ignore[method-assign]

    def _saving(self, save: Callable[..., None]) -> Callable[..., None]:
        """A write is a step like a call to the cluster: it may fail, or be the last thing before a crash."""

        def watched(*args: Any, **kwargs: Any) -> None:
            self.parts.cluster.passing("save")
            if self.disk_is_full:
                raise StoreBroken("no space")
            save(*args, **kwargs)
            self.parts.cluster.passing("save", after=True)

        return watched

    def _turning(self, turn: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], Coroutine[Any, Any, None]]:
        """Reconciler tells of its failures and goes on; here they are kept, but for those that a test ordered."""

        async def watched() -> None:
            try:
                await turn()
            except (LostReply, StoreBroken):
                raise
            except Exception as error:
                self.failures.append(error)
                raise

        return watched


class WholeGrid:
    """One cluster, one home, and an engine that can be killed and started again."""

    def __init__(
        self,
        cluster: FakeCluster,
        config: GridConfig,
        folder: Path,
        seed: int = 0,
        *,
        first_id: int = 1,
        telemetry: Telemetry | None = None,
        control: ProcessControl | None = None,
    ) -> None:
        """Without `telemetry` nothing is measured, and nothing rebalanced; without `control` no process is moved."""
        self.cluster = cluster
        self.telemetry = telemetry
        self._control = control
        self.clock = cluster.clock
        self.config = config
        self.home = GridHome(folder)
        self._seed = seed
        self._lives = 0
        self._disk_is_full = False
        numbers = itertools.count(first_id)
        self.ids = patch.object(grant, "new_id", lambda: f"{next(numbers):08d}")
        self.ids.start()
        self.start()

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.clock.now)

    # -- life ----------------------------------------------------------------------------------------------

    def start(self, *, adopt: bool = False, strict: bool = True) -> None:
        """A new process: nothing is known but what is on disk and in the cluster.

        `strict`: raises if that is not readable.
        """
        while True:
            self._lives += 1
            self._loop = _Loop(self.clock)
            self._executor = _Executor(self._loop, self._seed + self._lives)
            self._loop.set_default_executor(self._executor)
            self._loop.set_exception_handler(lambda loop, context: None)
            self._engine = _Engine(self.cluster, self.config, self.home, self.now, adopt, self.telemetry, self._control)
            self._engine.disk_is_full = self._disk_is_full
            try:
                self.run(self._engine.start(strict=strict))
                return
            except Crashed:
                self.bury()  # Ray starts it again
            except GridError:
                self.bury()
                raise

    def bury(self) -> None:
        """The process is dead: its tasks stop where they are, its lock is free, its gates fall."""
        self._executor.crashed = True
        # What they would still do has no effect. Now, since the garbage collector would do it in another test.
        with warnings.catch_warnings(action="ignore"):
            for task in asyncio.all_tasks(self._loop):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(BaseException):
                    task.get_coro().close()  # type: ignore[union-attr]
        self._engine.parts.lock.release()
        self.cluster.forget_process()
        self._loop.close()
        self._executor.shutdown(wait=False)
        self._loop.audit.shutdown(wait=False)
        self.clock.sleep(RESTART_S)

    def crash(self) -> None:
        self.bury()
        self.start()

    def stop(self) -> None:
        """End as when asked to."""
        self.run(self._engine.stop())
        self.bury()

    def close(self) -> None:
        self.bury()
        self.ids.stop()

    # -- doing ---------------------------------------------------------------------------------------------

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        """Until it is done; raises `Crashed` if the process died on the way (and is not yet started again)."""
        task = self._loop.create_task(doing)
        task.add_done_callback(lambda _: self._loop.stop())
        with watched(self._at_point):
            self._loop.run_forever()
        if self._executor.crashed:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            raise Crashed
        return task.result()

    def _at_point(self, point: Point) -> None:
        """A fault point is a call like those to the cluster. Of a dead process, no other task may go on."""
        try:
            self.cluster.passing(point)
        except Crashed:
            self._executor.crashed = True
            self._loop.stop()
            raise

    def wait(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @property
    def disk_is_full(self) -> bool:
        return self._disk_is_full

    @disk_is_full.setter
    def disk_is_full(self, full: bool) -> None:
        self._disk_is_full = self._engine.disk_is_full = full

    # -- what is known -------------------------------------------------------------------------------------

    def notes(self) -> str:
        """What its starter was told."""
        return "\n".join(self._engine.notes)

    def problems(self) -> str:
        return "\n".join(self._engine.problems())

    def events(self, name: str) -> list[str]:
        """What watchers were told under this name in this life."""
        return [event.message for event in self.parts.journal.since(0) if event.event == name]

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def service(self) -> BoostService:
        return self._engine.service

    @property
    def parts(self) -> EngineContext:
        return self._engine.parts

    @property
    def failures(self) -> list[BaseException]:
        """What reconciler stumbled over in this life, without having been made to."""
        return self._engine.failures

    @property
    def reconciler(self) -> Reconciler:
        return self._engine.reconciler

    @property
    def leases(self) -> dict[str, Lease]:
        return {lease.id: lease for lease in self.parts.ledger}

    def on_disk(self) -> dict[str, Lease]:
        return {lease.id: lease for lease in BoostFile(self.home.boosts).load().leases}


async def together(*doing: Coroutine[Any, Any, Any]) -> list[Any]:
    """All of them at the same time; errors are results."""
    return await asyncio.gather(*doing, return_exceptions=True)


def at_home(grid: WholeGrid) -> None:
    """Nothing is lent, nothing is known, nothing is left over."""
    assert not grid.leases, grid.leases
    assert not grid.on_disk(), grid.on_disk()
    assert grid.cluster.is_at_base(), grid.cluster.differences()
    assert not grid.cluster.violations, grid.cluster.violations[0]
    assert not grid.failures, repr(grid.failures[0])


def raising(error: BaseException) -> Callable[[], None]:
    """For `FakeCluster.upcoming`."""

    def fail() -> None:
        raise error

    return fail
