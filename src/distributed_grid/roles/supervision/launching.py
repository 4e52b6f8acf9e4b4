"""Starts a whole workload: plan, hold, start, wait until it is up. A failed start leaves nothing, and says why."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from distributed_grid.decide.roles.checks import what_waits
from distributed_grid.decide.roles.planner import plan_workload
from distributed_grid.errors import GridError, MemberFailed, NoCapacity, StartTimedOut
from distributed_grid.execution.actors import how_far
from distributed_grid.model.roles.plan import DoesNotFit
from distributed_grid.roles.calls.failures import did_not_start
from distributed_grid.roles.on_node.making import ON_PEERS
from distributed_grid.roles.supervision.managed import Fault, ManagedProcess, ProcessSet
from distributed_grid.roles.supervision.parts import RunParts
from distributed_grid.roles.supervision.places import NotHeld

Progress = Callable[[str], None]

_TRIES: Final = 3
"""Another request may take the capacity between the look and the hold."""
_LOOK_AGAIN_S: Final = 1.0
_LOOK_S: Final = 0.5
_MOST_LISTED: Final = 8


class Launching:
    def __init__(self, parts: RunParts, progress: Progress) -> None:
        self._p = parts
        self._progress = progress

    def place(self, wait_s: float) -> None:
        """Find room for all and take it. Raises `DoesNotFit` or `NoCapacity` after waiting for `wait_s`."""
        until = time.monotonic() + wait_s
        tries = 0
        while True:
            survey = self._p.surveyor.look()
            found = plan_workload(self._p.workload, survey.inventory)
            error: GridError
            if isinstance(found, DoesNotFit):
                error = found.error()
            else:
                try:
                    self._p.occupy(found, survey)
                except NotHeld as refused:
                    error, tries = self._explain(refused), tries + 1
                    if tries < _TRIES:
                        self._progress(f"another program took the capacity; retrying: {error.because[0]}")
                        continue
                else:
                    self._p.wanted = found.counts
                    return
            left = until - time.monotonic()
            if left <= 0:
                raise error
            self._progress(f"waiting for capacity, {left:.0f} s left: {(*error.because, error.message)[0]}")
            time.sleep(min(_LOOK_AGAIN_S, left))

    def _explain(self, refused: NotHeld) -> NoCapacity:
        waits = what_waits(refused.holdings, self._p.surveyor.look().inventory)
        return NoCapacity(
            f"The run {self._p.name} could not reserve its places",
            because=[*waits, *refused.said],
            try_next=refused.try_next or "Try again, or wait for them: wait_s=60, or grid roles up --wait 60.",
        )

    def await_up(self) -> None:
        """Wait until all members are up. Raises for the first that failed or took too long."""
        process_set = self._p.process_set
        while process_set.coming:
            if faults := process_set.look(within_s=_LOOK_S):
                if all(map(_may_be_anothers, faults)):
                    faults += process_set.look(within_s=_LOOK_S)
                raise self._failed(sorted(faults, key=_may_be_anothers))
            total = len(process_set.by_name)
            self._progress(f"{total - len(process_set.coming)} of {total} actors are up")
            if late := self._p.late():
                raise self._timed_out([fault.process for fault in late])

    def _failed(self, faults: Sequence[Fault]) -> MemberFailed:
        fault = faults[0]
        process = fault.process
        endpoint = next(
            (endpoint for endpoint in process.endpoints if endpoint.role == fault.role), process.endpoints[0]
        )
        error = did_not_start(endpoint, fault.why, fault.remote_traceback)
        others = [f"{one.process.title} on {one.process.spec.node}: {one.why}" for one in faults[1:_MOST_LISTED]]
        error.because += tuple(others)
        return error

    def _timed_out(self, late: Sequence[ManagedProcess]) -> StartTimedOut:
        process_set: ProcessSet = self._p.process_set
        reasons = [
            f"{process.title} on {process.spec.node}: {how_far(process.handle)}" for process in late[:_MOST_LISTED]
        ]
        more = [f"and {len(late) - _MOST_LISTED} more"] if len(late) > _MOST_LISTED else []
        up = len(process_set.by_name) - len(process_set.coming)
        return StartTimedOut(
            f"{up} of {len(process_set.by_name)} actors of {self._p.name} were up in time",
            because=[*reasons, *more],
            try_next="If a constructor needs longer, raise startup_deadline_seconds of its role.",
        )


def _may_be_anothers(fault: Fault) -> bool:
    """Its own constructor has returned, but it called a peer whose constructor has not: blame the peer first."""
    return ON_PEERS in fault.what
