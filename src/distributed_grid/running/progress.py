"""How the run is getting on, by Ray's own records: for a line on a terminal, and to notice what goes wrong with it."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from distributed_grid.client import GridClient
from distributed_grid.errors import GridError
from distributed_grid.running.reports import Reports
from distributed_grid.running.signals import kept_back

_EVERY_S: Final = 1.0
_SETTLED_S: Final = 1.5
_ASKING_COSTS: Final = 20
"""The pause is at least so many times what the last answer took: a run of many tasks is asked less often."""
_MOST_JOBS: Final = 64
_CLOCKS_APART_S: Final = 60.0
_WAITS_FOR_ITSELF_S: Final = 30.0
_NOT_HOOKED: Final = (
    "grid's hook is not in it: Python was started with -I, -E or -S, or without PYTHONPATH; "
    "--isolation cluster keeps such programs inside"
)


def of_the_run(
    drivers: Iterable[Mapping[str, Any]], run_id: str, is_below: Callable[[int, str], bool]
) -> list[Mapping[str, Any]]:
    """The drivers that say that they belong to the run; those that say nothing, if they are below its program."""

    def is_silent_below(driver: Mapping[str, Any]) -> bool:
        says = driver["run_id"] or driver["is_hooked"]
        return not says and is_below(driver["pid"], driver["address"])

    return [driver for driver in drivers if driver["run_id"] == run_id or is_silent_below(driver)]


class Progress:
    """Asks the controller what the run's jobs do; counts the CPU seconds that they have used of the lease.

    What is wrong it adds to the reports: a driver without the hook, a run that waits for itself.
    """

    def __init__(
        self,
        client: GridClient,
        boost: Mapping[str, Any] | None,
        run_id: str,
        is_below: Callable[[int, str], bool],
        reports: Reports,
        show: Callable[[str], None],
    ) -> None:
        """Without a boost to look into, as with a Ray of the run's own, only the time is shown."""
        self._client = GridClient(client.home, retry_s=0.0)
        self._boost = boost
        self._run_id, self._is_below, self._reports = run_id, is_below, reports
        self._show = show
        self._began = time.monotonic()
        self._since = time.time() - _CLOCKS_APART_S
        self._waits_since: float | None = None
        self._waits_is_told = False
        self._jobs: dict[str, bool] = {}
        """The run's Ray jobs, and whether the hook is in each."""
        self._stop = threading.Event()
        self.cpu_seconds = 0.0
        self.work: dict[str, Any] | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)
        with kept_back():  # signals are for the main thread
            self._thread.start()

    def finish(self) -> None:
        """A last look, for the summary: what Ray's workers did last is known a second later."""
        self._stop.set()
        self._thread.join(10)
        deadline = time.monotonic() + _SETTLED_S
        self._look()
        if self.work is None and self.jobs:  # jobs that only this look has found
            self._look()
        while self.work and self.work["running"] + self.work["waiting"] and time.monotonic() < deadline:
            time.sleep(_SETTLED_S / 10)
            self._look()
        self._client.close()

    def line(self) -> str:
        """ "12 s · 4 running, 10 waiting, 86 done · 31 of 48 CPU seconds"."""
        elapsed = time.monotonic() - self._began
        parts = [f"{elapsed:.0f} s"]
        if self.work is not None:
            parts.append(counts(self.work))
        parts.append(self.used(elapsed))
        return " · ".join(part for part in parts if part)

    def used(self, elapsed: float | None = None) -> str:
        cpus = 0.0 if self._boost is None else float(self._boost["resources"].get("cpu", 0))
        seconds = time.monotonic() - self._began if elapsed is None else elapsed
        has = round(cpus * seconds)
        return f"{self.cpu_seconds:.0f} of {has} CPU seconds used" if has else ""

    def _watch(self) -> None:
        pause, last = _EVERY_S, time.monotonic()
        while not self._stop.wait(pause):
            asked = time.monotonic()
            self._look()
            now = time.monotonic()
            if self.work is not None:
                self.cpu_seconds += self.work["cpus_in_use"] * (now - last)
            last = now
            pause = max(_EVERY_S, _ASKING_COSTS * (now - asked))
            self._show(self.line())

    @property
    def jobs(self) -> tuple[str, ...]:
        """The run's Ray jobs, as far as they are known."""
        return tuple(dict.fromkeys((*self._reports.jobs, *self._jobs)))[-_MOST_JOBS:]

    @property
    def has_strays(self) -> bool:
        """There are jobs of the run that the hook has not reached."""
        return not all(self._jobs.values())

    def _look(self) -> None:
        if self._boost is None:
            return
        jobs = self.jobs
        try:
            work = self._client.work_in(self._boost["boost_id"], jobs, self._since)
        except GridError:
            return
        self._find_jobs(work["drivers"])
        if jobs:
            self.work = work
            self._notice_waiting(work, time.monotonic())

    def _find_jobs(self, drivers: Iterable[Mapping[str, Any]]) -> None:
        for driver in of_the_run(drivers, self._run_id, self._is_below):
            if driver["job_id"] not in self._jobs:
                self._jobs[driver["job_id"]] = driver["is_hooked"]
                if not driver["is_hooked"]:
                    what = f"Ray job {driver['job_id']} of process {driver['pid']}, and all its work"
                    self._reports.add("escaped", what, _NOT_HOOKED)

    def _notice_waiting(self, work: Mapping[str, Any], now: float) -> None:
        if not work["waits_for_its_actors"]:
            self._waits_since = None
            return
        self._waits_since = now if self._waits_since is None else self._waits_since
        if now - self._waits_since >= _WAITS_FOR_ITSELF_S and not self._waits_is_told:
            self._waits_is_told = True
            self._reports.add(
                "note",
                f"the run waits for itself, for {_WAITS_FOR_ITSELF_S:.0f} s by now",
                f"{work['unplaced']} of its tasks and actors wait for CPUs, and its own actors hold the "
                f"{work['cpus_in_use']:g} that are in use until they end; a larger lease (--cpus) lets it go on",
            )


def counts(work: Mapping[str, Any]) -> str:
    parts = [
        f"{work[name]} {name}" for name in ("running", "waiting", "done", "failed") if work[name] or name == "done"
    ]
    if work["actors"]:
        parts.append(f"{work['actors']} actor{'s' * (work['actors'] != 1)}")
    return ", ".join(parts)
