"""Whether what this process submits belongs into the lease, and what is shared by all that see to it."""

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

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
        told_at = environ.get("GRID_RECLAIM_FILE")
        self._reclaim_file = Path(told_at) if told_at and not in_worker else None
        self._escapes_are_allowed = environ.get("GRID_ALLOW_ESCAPES") == "1"
        self._connected_to_its_cluster = False
        self._in_worker = in_worker

    def connected(self, gcs_address: str) -> None:
        """A driver has connected. In another cluster there is no such group, and its work would wait for ever."""
        self.lease.forget()
        known = bool(self.lease.seen())
        self._connected_to_its_cluster = known or gcs_address == self.ray_address
        if not self._connected_to_its_cluster:
            self.reports.escaped(f"ray at {gcs_address}", "the program connected to another cluster than the lease's")
            return
        self.reports.job(ray_worker.global_worker.current_job_id.hex())
        if not self.lease.stands:
            self.reports.note("the lease has ended", "Ray refuses what the program submits from now on")

    def drives(self) -> bool:
        """This process is a driver, and connected to the lease's cluster."""
        worker = ray_worker.global_worker
        return bool(self._connected_to_its_cluster and worker.connected and worker.mode == ray_worker.SCRIPT_MODE)

    def is_on(self) -> bool:
        """What this process submits belongs into the lease: it is a driver, or a worker that was sent the hook."""
        return self.drives() or (self._in_worker and bool(ray_worker.global_worker.connected))

    def is_within(self) -> bool:
        """What says nothing about where it goes is put into the lease by Ray itself."""
        worker = ray_worker.global_worker
        return bool(
            worker.placement_group_id == self.lease.group_id and worker.should_capture_child_tasks_in_placement_group
        )

    def ready(self) -> bool:
        """The same, for calls that connect by themselves if need be."""
        if not ray.is_initialized():
            from ray._private.auto_init_hook import auto_init_ray

            auto_init_ray()
        return self.is_on()

    def check_lease(self, named: Callable[[], tuple[str, str]]) -> None:
        """`Refusal` if whoever started this program says that the lease is gone: Ray would let work wait for ever for
        a group that was removed."""
        if self._reclaim_file is None or not self._reclaim_file.exists():
            return
        with contextlib.suppress(OSError, ValueError):  # it was taken away just now
            told = json.loads(self._reclaim_file.read_text())
            if why := told.get("gone"):
                what = " ".join(named())
                self.reports.refused(what, why)
                raise Refusal(f"grid: {what} cannot run: boost {told['boost_id'][:8]} has gone home: {why}")

    def let_out(self, what: str, why: str, advice: str = "") -> None:
        """Report work that cannot be in the lease; `Refusal`, unless the user lets such work run outside."""
        if self._escapes_are_allowed:
            self.reports.escaped(what, why)
            return
        self.reports.refused(what, why)
        first = advice or "Give the program a Ray of its own (--isolation cluster)"
        raise Refusal(
            f"grid: {what} cannot be in this lease: {why}. "
            f"{first}, or let such work run outside of the lease (--allow-escapes)."
        )

    def guarded(self, where: str, ours: Callable[[], T], otherwise: T) -> T:
        """What we make of it; if we fail, what it would be without us. Only a refusal reaches the program."""
        try:
            return ours()
        except Refusal:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is ours
            self.reports.failed(where, error)
            return otherwise


def describe(value: Any) -> str:
    """For reports: short, and never a failure."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - somebody else's class
        text = type(value).__name__
    return text if len(text) <= 40 else text[:37] + "..."
