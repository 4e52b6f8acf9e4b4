"""The run's progress by Ray's own records: for a line on a terminal, and to notice problems."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from distributed_grid.client import GridClient
from distributed_grid.errors import GridError
from distributed_grid.loops import ThreadLoop
from distributed_grid.run.reports import Reports
from distributed_grid.run.signals import signals_blocked

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import Boost, RayDriver, WorkStatus

EVERY_S: Final = 1.0
SETTLED_S: Final = 1.5
_ASKING_COSTS: Final = 20
"""The pause is at least this many times the last answer's time, so a run of many tasks is polled less often."""
_MOST_JOBS: Final = 64
_CLOCKS_APART_S: Final = 60.0
_WAITS_FOR_ITSELF_S: Final = 30.0
_NOT_HOOKED: Final = (
    "grid's hook is not loaded: Python was started with -I, -E or -S, or without PYTHONPATH; "
    "--isolation cluster keeps such programs inside"
)
_NOT_ITS_OWN: Final = "it is connected to the shared cluster, not to the private one that RAY_ADDRESS names"


def of_the_run(drivers: Iterable[RayDriver], run_id: str, is_below: Callable[[int, str], bool]) -> list[RayDriver]:
    """The drivers that name the run, and those that name none but descend from its program."""

    def is_silent_below(driver: RayDriver) -> bool:
        says = driver["run_id"] or driver["is_hooked"]
        return not says and is_below(driver["pid"], driver["address"])

    return [driver for driver in drivers if driver["run_id"] == run_id or is_silent_below(driver)]


class Progress:
    """Asks the controller what the run's jobs do, and counts the CPU seconds that they use of the lease.

    It adds problems to the reports: a driver without the hook, a run that waits for itself.
    """

    def __init__(
        self,
        client: GridClient,
        boost: Callable[[], Boost],
        run_id: str,
        is_below: Callable[[int, str], bool],
        reports: Reports,
        show: Callable[[str], None],
        *,
        is_private: bool = False,
    ) -> None:
        """`boost`: the run's boost as last seen, since an elastic one grows and shrinks. `is_private`: the run has a
        private Ray cluster, which the controller cannot see. Then only the time is shown, and every job of the run in
        the shared cluster is an escape."""
        self._client = GridClient(client.home, retry_s=0.0)
        self._boost, self._boost_id = boost, boost()["boost_id"]
        self._is_private = is_private
        self._run_id, self._is_below, self._reports = run_id, is_below, reports
        self._show = show
        self._began = self._watched_at = time.monotonic()
        self._since = time.time() - _CLOCKS_APART_S
        self._waits_since: float | None = None
        self._has_reported_waiting = False
        self._jobs: dict[str, bool] = {}
        """The run's jobs in the shared cluster, and whether the hook keeps each in the lease."""
        self._looked_into: tuple[str, ...] = ()
        self.cpu_seconds = self._held_seconds = 0.0
        self.work: WorkStatus | None = None
        """The work of the run in its lease, if the controller can see it."""
        self.outside: Mapping[str, int] = {}
        """Name -> how many of these the run's jobs have run outside the lease."""
        self._pause_s = EVERY_S
        self._loop = ThreadLoop("grid-run-progress", self._watch, lambda: self._pause_s, waits_first=True)
        with signals_blocked():  # signals are for the main thread
            self._loop.start()

    def finish(self) -> None:
        """Take a last look, for the summary: Ray records what its workers did last a second later."""
        self._loop.stop(within_s=10)
        deadline = time.monotonic() + SETTLED_S
        self._look()
        if self._looked_into != self.jobs:  # this look has found new jobs
            self._look()
        while self.work and self.work["running"] + self.work["waiting"] and time.monotonic() < deadline:
            time.sleep(SETTLED_S / 10)
            self._look()
        self._client.close()

    def line(self) -> str:
        """ "12 s · 4 running, 10 waiting, 86 done · 31 of 48 CPU seconds"."""
        elapsed = time.monotonic() - self._began
        parts = [f"{elapsed:.0f} s"]
        if self.work is not None:
            parts.append(counts(self.work))
        if self._boost()["at_most"] is not None:
            parts.append(f"{self._cpus:g} CPUs")
        parts.append(self.used(elapsed))
        return " · ".join(part for part in parts if part)

    def used(self, elapsed: float | None = None) -> str:
        now = time.monotonic() if elapsed is None else self._began + elapsed
        has = 0 if self._is_private else round(self._held_seconds + self._cpus * max(0.0, now - self._watched_at))
        return f"{self.cpu_seconds:.0f} of {has} CPU seconds used" if has else ""

    @property
    def _cpus(self) -> float:
        return float(self._boost()["capacity"].get("cpu", 0))

    def _watch(self) -> None:
        began = time.monotonic()
        self._look()
        now = time.monotonic()
        if self.work is not None:
            self.cpu_seconds += self.work["cpus_in_use"] * (now - self._watched_at)
        self._held_seconds += self._cpus * (now - self._watched_at)
        self._watched_at = now
        self._pause_s = max(EVERY_S, _ASKING_COSTS * (now - began))
        self._show(self.line())

    @property
    def jobs(self) -> tuple[str, ...]:
        """The run's known Ray jobs."""
        return tuple(dict.fromkeys((*self._reports.jobs, *self._jobs)))[-_MOST_JOBS:]

    @property
    def has_strays(self) -> bool:
        """Whether the run has jobs that the hook does not keep in the lease."""
        return not all(self._jobs.values())

    def _look(self) -> None:
        jobs = self.jobs
        try:
            work = self._client.work_in(self._boost_id, jobs, self._since)
        except GridError:
            return
        self._find_jobs(work["drivers"])
        self._looked_into = jobs
        if jobs:
            self.outside = work["outside"]
        if jobs and not self._is_private:
            self.work = work
            self._notice_waiting(work, time.monotonic())

    def _find_jobs(self, drivers: Iterable[RayDriver]) -> None:
        for driver in of_the_run(drivers, self._run_id, self._is_below):
            if driver["job_id"] not in self._jobs:
                is_captured = self._jobs[driver["job_id"]] = driver["is_hooked"] and not self._is_private
                if not is_captured:
                    what = f"Ray job {driver['job_id']} of process {driver['pid']}, and all its work"
                    self._reports.add("escaped", what, _NOT_ITS_OWN if self._is_private else _NOT_HOOKED)

    def _notice_waiting(self, work: WorkStatus, now: float) -> None:
        if not work["waits_for_its_actors"]:
            self._waits_since = None
            return
        self._waits_since = now if self._waits_since is None else self._waits_since
        if now - self._waits_since >= _WAITS_FOR_ITSELF_S and not self._has_reported_waiting:
            self._has_reported_waiting = True
            self._reports.add(
                "note",
                f"the run has been blocked by its own actors for {_WAITS_FOR_ITSELF_S:.0f} s",
                f"{work['unplaced']} of its tasks and actors wait for CPUs, and its own actors hold all "
                f"{work['cpus_in_use']:g} that are in use until they end; a larger lease (--cpus) lets it continue",
            )


def counts(work: WorkStatus) -> str:
    parts = [
        f"{work[name]} {name}" for name in ("running", "waiting", "done", "failed") if work[name] or name == "done"
    ]
    if work["actors"]:
        parts.append(f"{work['actors']} actor{'s' * (work['actors'] != 1)}")
    return ", ".join(parts)
