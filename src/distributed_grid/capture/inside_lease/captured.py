"""Whether this process's submissions belong in the lease, and the state that the hook's parts share."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import ray
from ray._private import worker as ray_worker

from .lease import Lease
from .reporting import Refusal, Reports

T = TypeVar("T")


class Captured:
    """One for each process."""

    def __init__(self, environ: Mapping[str, str], *, in_worker: bool = False) -> None:
        self.reports = Reports(environ.get("GRID_RUN_REPORT"), only_escapes=in_worker)
        self.lease = Lease(environ)
        self.ray_address = environ.get("RAY_ADDRESS", "")
        reclaim_file = environ.get("GRID_RECLAIM_FILE")
        self._reclaim_file = Path(reclaim_file) if reclaim_file and not in_worker else None
        self._escapes_are_allowed = environ.get("GRID_ALLOW_ESCAPES") == "1"
        self._connected_to_its_cluster = False
        self._in_worker = in_worker
        self._turn = 0

    def connected(self, gcs_address: str) -> None:
        """A driver has connected. Another cluster does not have the group: work there would wait for ever."""
        self.lease.forget()
        known = bool(self.lease.seen())
        self._connected_to_its_cluster = known or gcs_address == self.ray_address
        if not self._connected_to_its_cluster:
            self.reports.escaped(f"ray at {gcs_address}", "the program connected to a cluster other than the lease's")
            return
        self.reports.job(ray_worker.global_worker.current_job_id.hex())
        if not self.lease.stands:
            self.reports.note("the lease has ended", "Ray refuses what the program submits from now on")

    def drives(self) -> bool:
        """Whether this process is a driver that is connected to the lease's cluster."""
        worker = ray_worker.global_worker
        return bool(self._connected_to_its_cluster and worker.connected and worker.mode == ray_worker.SCRIPT_MODE)

    def is_on(self) -> bool:
        """Whether submissions belong in the lease: this process is a driver, or a worker that was sent the hook."""
        return self.drives() or (self._in_worker and bool(ray_worker.global_worker.connected))

    def is_within(self) -> bool:
        """Whether Ray itself puts work without placement options into the lease."""
        worker = ray_worker.global_worker
        return bool(
            worker.placement_group_id == self.lease.group_id and worker.should_capture_child_tasks_in_placement_group
        )

    def ready(self) -> bool:
        """As `is_on`, for calls that connect by themselves if needed."""
        if not ray.is_initialized():
            from ray._private.auto_init_hook import auto_init_ray

            auto_init_ray()
        return self.is_on()

    def check_lease(self, named: Callable[[], tuple[str, str]]) -> None:
        """Raises `Refusal` if the process that started this program says that the lease is gone.

        Ray would let work wait for ever for a group that was removed.
        """
        if self._reclaim_file is None or not self._reclaim_file.exists():
            return
        with contextlib.suppress(OSError, ValueError):  # the file has just been removed
            notice = json.loads(self._reclaim_file.read_text())
            if why := notice.get("gone"):
                what = " ".join(named())
                self.reports.refused(what, why)
                raise Refusal(f"grid: {what} cannot run: boost {notice['boost_id'][:8]} has ended: {why}")

    def let_out(self, what: str, why: str, advice: str = "") -> None:
        """Report work that cannot be in the lease. Raises `Refusal` unless the user lets such work run outside."""
        if self._escapes_are_allowed:
            self.reports.escaped(what, why)
            return
        self.reports.refused(what, why)
        first = advice or "Run the program in a private Ray cluster (--isolation cluster)"
        raise Refusal(
            f"grid: {what} cannot run in this lease: {why}. "
            f"{first}, or let such work run outside the lease (--allow-escapes)."
        )

    def next_of(self, bundles: Sequence[int]) -> int:
        """One of these bundles of the lease, in turn; -1 if there are none."""
        if not bundles:
            return -1
        self._turn += 1
        return bundles[self._turn % len(bundles)]

    def guarded(self, where: str, ours: Callable[[], T], otherwise: T) -> T:
        """The hook's result; if the hook fails, `otherwise`. Only a refusal reaches the program."""
        try:
            return ours()
        except Refusal:
            raise
        except Exception as error:  # noqa: BLE001 - any error here is the hook's own
            self.reports.failed(where, error)
            return otherwise


def describe(value: object) -> str:
    """A short text for reports; never fails."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a foreign class
        text = type(value).__name__
    return text if len(text) <= 40 else text[:37] + "..."
