"""One run, from its lease to its exit code, with a private Ray cluster if requested.

Whatever happens, the lease is released and nothing is left over.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Unpack

from distributed_grid.client import GridClient
from distributed_grid.cluster.ports import LockedPorts, own_address
from distributed_grid.errors import ClusterStartFailed, GridError, LeaseLost, Unavailable
from distributed_grid.execution.on_node_raylet import OwnRay
from distributed_grid.execution.ray_start import LOOPBACK, LOOPBACK_HOST
from distributed_grid.model.endings import what_to_do, why_it_ends
from distributed_grid.model.nodes import in_words
from distributed_grid.monitoring.cpu_meter import CpuMeter
from distributed_grid.run.driver import Driver, captured, private
from distributed_grid.run.held_lease import HeldLease, Wanted, amounts_by_node, lenders_of
from distributed_grid.run.monitor import MessageFiles, RunMonitor, RunOutput
from distributed_grid.run.progress import Progress, counts
from distributed_grid.run.records import Run, RunChanges, Runs, State
from distributed_grid.run.reports import Reports
from distributed_grid.run.signals import Cancelled, Signals, signals_blocked

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import Boost

_STANDS_STILL_S: Final = 60.0
"""A head that makes progress may take as long as it needs on a busy machine."""


class PrivateCluster:
    """A private Ray cluster. It starts with the object, and is gone after `end` or when this process ends."""

    def __init__(self, client: GridClient, boost: Boost) -> None:
        self._client, self._boost_id = client, boost["boost_id"]
        self._has_joined = False
        with LockedPorts() as ports:
            shared, port = client.ray_address(), ports.take()
            # Where the shared cluster is on loopback, the private head is, too.
            on_loopback = shared.startswith(f"{LOOPBACK_HOST}:")
            host = LOOPBACK if on_loopback else own_address(facing=shared.rpartition(":")[0])
            self.address = f"{LOOPBACK_HOST if on_loopback else host}:{port}"
            # Passed to every part: otherwise Ray decides for each by whether its machine has a token file.
            self.auth_mode = str(client.cluster_status()["ray_auth_mode"])
            self._head = OwnRay(_head_arguments(host, port, ports.take()), {"RAY_AUTH_MODE": self.auth_mode})
            try:
                why = self._head.why_not_up(_STANDS_STILL_S)
                if why is not None:
                    raise ClusterStartFailed("The head of the private cluster did not start", because=[why])
                client.join_private_cluster(self._boost_id, self.address)
                self._has_joined = True
            except BaseException:
                self.end()
                raise

    def end(self) -> None:
        if self._has_joined:
            with suppress(GridError):  # then its raylet ends with the lease, or after its head
                self._client.leave_private_cluster(self._boost_id)
        with suppress(OSError):
            self._head.end()


def _head_arguments(host: str, port: int, client_port: int) -> list[str]:
    """No work can run on the head: the lease is the cluster's only capacity."""
    return [
        *("--head", "--port", str(port), "--node-ip-address", host),
        *("--include-dashboard", "false", "--ray-client-server-port", str(client_port)),
        *("--num-cpus", "0", "--num-gpus", "0", "--memory", "1"),
        *("--object-store-memory", "100000000"),
    ]


class Wrapper:
    """Holds the lease and the program together."""

    def __init__(
        self, client: GridClient, wanted: Wanted, command: Sequence[str], run: Run, runs: Runs, output: RunOutput
    ) -> None:
        self._client, self._wanted, self._command = client, wanted, command
        self._run, self._runs, self._output = run, runs, output
        self._cancelled: int | None = None

    def carry_out(self, output: BinaryIO | None = None) -> int:
        """The program's exit code; if it was cancelled and did not exit with 0, 128 plus the signal's number.

        Raises `LeaseLost` if the lease was taken meanwhile.
        """
        with Signals() as signals:
            lease: HeldLease | None = None
            try:
                lease = self._leased()
                return self._inside(lease, output, signals)
            except Cancelled as cancelled:
                self._cancelled = cancelled.number
                self._output.say("grid: cancelled before the program began")
                self._never_began("cancelled", ())
                return self._cancelled_code
            except BaseException as error:
                if not self._run.is_over:
                    self._note(state="failed", ended=time.time(), messages=(*self._run.messages, str(error)))
                raise
            finally:
                if lease is not None:
                    with signals_blocked():  # an interrupt here would leave the lease behind
                        lease.give_back()

    def _leased(self) -> HeldLease:
        try:
            lease = HeldLease.of(self._client, self._wanted, self._run.id, self._run.label)
        except GridError as error:
            state: State = "failed" if isinstance(error, Unavailable) else "refused"
            self._never_began(state, (error.message, *error.because))
            raise
        where = lease.boost
        sources = lenders_of(where)
        self._note(
            boost_id=lease.id,
            source_node=where["source_node"],
            source_nodes=sources,
            target_node=where["target_node"],
        )
        if len(sources) > 1:
            self._output.say(f"grid: boost {lease.id[:8]} is on {len(sources)} nodes: {amounts_by_node(where)}")
        return lease

    def _inside(self, lease: HeldLease, output: BinaryIO | None, signals: Signals) -> int:
        report = Path(self._run.folder) / "report.jsonl"
        reports, files = Reports(report), MessageFiles(Path(self._run.folder))
        cluster = None
        if self._run.isolation == "cluster":
            self._output.say(f"Starting a private cluster on {in_words(lenders_of(lease.boost))} ...")
            cluster = PrivateCluster(self._client, lease.boost)
            environment = private(lease.boost, cluster.address, cluster.auth_mode)
        else:
            environment = captured(
                self._client, lease.boost, report, run_id=self._run.id, allow_escapes=self._run.allow_escapes
            )
        environment |= files.environment
        try:
            with signals.while_the_program_runs():
                driver = Driver(self._command, environment, output)
                lease.measure(CpuMeter(driver.pid).read)
                self._note(state="running")
                progress = Progress(
                    self._client,
                    lambda: lease.boost,
                    self._run.id,
                    driver.is_above,
                    reports,
                    self._output.status,
                    is_private=cluster is not None,
                )
                monitor = RunMonitor(driver, lease, reports, self._output, signals, files)
                try:
                    code = monitor.until_it_ends()
                finally:
                    progress.finish()
                self._cancelled = monitor.cancelled
                if self._cancelled is not None and code != 0 and not monitor.is_taken:
                    code = self._cancelled_code
                return self._over(code, reports, progress, lease, lost=monitor.is_taken)
        finally:
            if cluster is not None:
                cluster.end()

    @property
    def _cancelled_code(self) -> int:
        """As a shell reports it."""
        return 128 + (self._cancelled or 0)

    def _never_began(self, state: State, why: Sequence[str]) -> None:
        """A foreground run has shown the reason to its user; for a run in the background it is recorded."""
        if self._run.detached:
            self._note(state=state, ended=time.time(), messages=tuple(why))
        else:
            self._runs.forget(self._run)
            self._run = replace(self._run, ended=time.time())

    def _over(self, code: int, reports: Reports, progress: Progress, lease: HeldLease, *, lost: bool) -> int:
        if progress.has_strays or self._run.allow_escapes:
            self._end_what_is_left(progress, lease, reports)
        for _ in reports.news():
            pass
        messages = reports.summary(progress.outside)
        self._sum_up(code, progress, messages, reports)
        ended: State = "done" if code == 0 else "failed"
        state: State = "lost" if lost else "cancelled" if self._cancelled is not None else ended
        self._note(state=state, ended=time.time(), exit_code=code, messages=tuple(messages))
        if not lost:
            with suppress(GridError):
                self._client.report_run(lease.id, time.time() - self._run.began, code)
        if lost:
            ending = lease.ending
            raise LeaseLost(
                "The run's lease ended, and the program with it",
                because=[lease.ended or "it is gone" if ending is None else why_it_ends(ending)],
                try_next=what_to_do(
                    ending, boost_id=lease.id, priority=lease.boost["priority"], is_own_lease=lease.is_ours
                ),
            )
        return code

    def _end_what_is_left(self, progress: Progress, lease: HeldLease, reports: Reports) -> None:
        """End the run's work outside the lease; work inside ends with the lease."""
        from distributed_grid.execution.group_work import end_what_is_left

        address, group = self._client.ray_address(), lease.boost["placement_group"]
        assert group is not None, "a run has a reserved lease"
        for what in end_what_is_left(address, progress.jobs, group):
            reports.add("note", f"{what} is ended", "it was outside the lease of a run that is over")

    def _sum_up(self, code: int, progress: Progress, messages: Sequence[str], reports: Reports) -> None:
        work = f", {counts(progress.work)}" if progress.work is not None else ""
        self._output.say(f"grid: exit code {code}{work}, {progress.used()}".rstrip(", "))
        for text in messages:
            self._output.say(f"grid: {text}")
        if messages:
            self._output.say(f"grid: all reports are in {reports.path}")

    def _note(self, **changes: Unpack[RunChanges]) -> None:
        self._run = self._runs.save(self._run, **changes)
