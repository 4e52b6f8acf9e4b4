"""One line that says how the run is getting on, where somebody looks at a terminal."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from distributed_grid.client import GridClient
from distributed_grid.errors import GridError
from distributed_grid.running.signals import kept_back

_EVERY_S: Final = 1.0
_SETTLED_S: Final = 1.5
_ASKING_COSTS: Final = 20
"""The pause is at least so many times what the last answer took: a run of many tasks is asked less often."""


class Progress:
    """Asks the controller what the run's jobs do; counts the CPU seconds that they have used of the lease."""

    def __init__(
        self,
        client: GridClient,
        boost: Mapping[str, Any] | None,
        jobs: Callable[[], Sequence[str]],
        show: Callable[[str], None],
    ) -> None:
        """Without a boost to look into, as with a Ray of the run's own, only the time is shown."""
        self._client = GridClient(client.home, retry_s=0.0)
        self._boost = boost
        self._jobs = jobs
        self._show = show
        self._began = time.monotonic()
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

    def _look(self) -> None:
        jobs = self._jobs()
        try:
            if self._boost is not None and jobs:
                self.work = self._client.work_in(self._boost["boost_id"], jobs)
        except GridError:
            return


def counts(work: Mapping[str, Any]) -> str:
    parts = [
        f"{work[name]} {name}" for name in ("running", "waiting", "done", "failed") if work[name] or name == "done"
    ]
    if work["actors"]:
        parts.append(f"{work['actors']} actor{'s' * (work['actors'] != 1)}")
    return ", ".join(parts)
