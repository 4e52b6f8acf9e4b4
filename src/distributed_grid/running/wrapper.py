"""One run from its lease to its exit code. Whatever happens, the lease goes home and nothing is left over."""

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from distributed_grid.client import GridClient
from distributed_grid.errors import GridError, LeaseLost
from distributed_grid.running.driver import GRACE_S, Driver
from distributed_grid.running.held_lease import HeldLease, Wanted
from distributed_grid.running.progress import Progress, counts
from distributed_grid.running.records import Run, Runs
from distributed_grid.running.reports import Reports
from distributed_grid.running.surroundings import captured, private

_POLL_S: Final = 0.1
_CANCELLED: Final = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@dataclass(frozen=True, slots=True)
class Voice:
    """How a run speaks to its user: lines that stay, and one that is written over."""

    say: Callable[[str], None]
    status: Callable[[str], None]
    is_watched: bool


class Wrapper:
    """Holds the lease and the program together."""

    def __init__(
        self, client: GridClient, wanted: Wanted, command: Sequence[str], run: Run, runs: Runs, voice: Voice
    ) -> None:
        self._client, self._wanted, self._command = client, wanted, command
        self._run, self._runs, self._voice = run, runs, voice
        self._signals: list[int] = []

    def carry_out(self, output: Any = None) -> int:
        """The program's exit code; 130 if it was cancelled; `LeaseLost` if its lease was taken meanwhile."""
        before = {number: signal.signal(number, self._on_signal) for number in _CANCELLED}
        lease: HeldLease | None = None
        try:
            lease = HeldLease.of(self._client, self._wanted, self._run.command)
            self._note(
                boost_id=lease.id, source_node=lease.boost["source_node"], target_node=lease.boost["target_node"]
            )
            return self._inside(lease, output)
        except BaseException as error:
            if not self._run.is_over:
                self._note(state="failed", ended=time.time(), told=(*self._run.told, str(error)))
            raise
        finally:
            if lease is not None:
                lease.give_back()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _inside(self, lease: HeldLease, output: Any) -> int:
        told = Path(self._run.folder) / "report.jsonl"
        reports = Reports(told)
        cluster = None
        if self._run.isolation == "cluster":
            from distributed_grid.running.private_cluster import PrivateCluster

            self._voice.say(f"Starting a private cluster on {lease.boost['source_node']} ...")
            cluster = PrivateCluster(self._client, lease.boost)
            environment = private(lease.boost, cluster.address)
        else:
            environment = captured(self._client, lease.boost, told)
        try:
            if self._signals:
                return self._over(self._cancelled_code, reports, None)
            driver = Driver(self._command, environment, output)
            self._note(state="running")
            watched = lease.boost if cluster is None else None
            progress = Progress(self._client, watched, lambda: reports.jobs, self._voice.status)
            try:
                code = self._until_it_ends(driver, lease, reports)
            finally:
                progress.finish()
            return self._over(code, reports, progress, lease)
        finally:
            if cluster is not None:
                cluster.end()

    def _until_it_ends(self, driver: Driver, lease: HeldLease, reports: Reports) -> int:
        passed_on = 0
        asked_at: float | None = None
        while (code := driver.wait(_POLL_S)) is None:
            for text in reports.news():
                self._voice.say(f"grid: {text}")
            if lease.ended is not None:
                self._voice.say(f"grid: the lease is gone: {lease.ended}. The program is ended.")
                return driver.end()
            for number in self._signals[passed_on:]:
                passed_on += 1
                if asked_at is not None:  # a second time means now
                    return self._ended_by_us(driver, 0.0)
                asked_at = time.monotonic()
                # A Ctrl-C at the terminal has reached the program, too.
                if not (number == signal.SIGINT and self._voice.is_watched):
                    driver.tell(number)
            if asked_at is not None and time.monotonic() - asked_at > GRACE_S:
                return self._ended_by_us(driver, GRACE_S)
        driver.end(0.0)  # what it has left
        if code != 0 and not self._signals and (why := lease.why_ended()) is not None:
            self._voice.say(f"grid: the lease is gone: {why}. That is why the program failed.")
        return self._cancelled_code if self._signals and code != 0 else code

    def _ended_by_us(self, driver: Driver, grace_s: float) -> int:
        driver.end(grace_s)
        return self._cancelled_code

    @property
    def _cancelled_code(self) -> int:
        return _CANCELLED[signal.Signals(self._signals[0])]

    def _over(self, code: int, reports: Reports, progress: Progress | None, lease: HeldLease | None = None) -> int:
        told = [*reports.told, *reports.news()]
        if progress is not None:
            outside = (progress.work or {}).get("outside", {})
            if outside:  # by Ray's own record: also what no hook has seen
                names = ", ".join(f"{name} ({count})" for name, count in outside.items())
                told.append(f"outside the lease, of all that ran: {names}")
            self._sum_up(code, progress, told)
        lost = lease is not None and lease.ended is not None
        state = "lost" if lost else "cancelled" if self._signals else "done" if code == 0 else "failed"
        self._note(state=state, ended=time.time(), exit_code=code, told=tuple(told))
        if lease is not None and not lost:
            with suppress(GridError):
                self._client.report_run(lease.id, time.time() - self._run.began, code)
        if lost:
            assert lease is not None
            raise LeaseLost(
                "The run's lease was taken, and the program ended",
                because=[str(lease.ended)],
                try_next="Run it again; with a higher --priority it is not taken back for others of that one.",
            )
        return code

    def _sum_up(self, code: int, progress: Progress, told: Sequence[str]) -> None:
        work = f", {counts(progress.work)}" if progress.work is not None else ""
        self._voice.say(f"grid: exit code {code}{work}, {progress.used()}".rstrip(", "))
        for text in told:
            if text.startswith("outside"):
                self._voice.say(f"grid: {text}")

    def _on_signal(self, number: int, _frame: Any) -> None:
        self._signals.append(number)

    def _note(self, **changes: Any) -> None:
        self._run = self._runs.save(self._run, **changes)
