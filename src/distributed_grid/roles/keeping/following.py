"""Roles that scale: their signals are read now and then, beside everything else, since a reading may take its time."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from functools import partial
from typing import Final

from distributed_grid.decide.roles.scaling import NoReading, ScalingState, follow_signal
from distributed_grid.model.roles.signals import MethodSignal
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.roles.keeping.aside import aside
from distributed_grid.roles.keeping.followed import Followed

_RETRY_S: Final = 2.0
ANSWER_S: Final = 5.0
"""So long the answer to a signal is waited for."""

Read = Callable[[RoleSpec], float]
"""The value of a role's signal now; raises what keeps it from being read."""


class Following:
    def __init__(self, parts: Followed, read: Read) -> None:
        self._p = parts
        self._read = read
        self._roles = [role for role in parts.workload.roles if role.scaling is not None]
        self._states = {role.name: ScalingState() for role in self._roles}
        self._readings: dict[str, Future[float]] = {}
        self._asked_at: dict[str, float] = {}
        self._tried_at: dict[str, float] = {}

    def wanted(self) -> Iterator[tuple[str, int]]:
        """The roles that are to have another number of members now."""
        now = time.monotonic()
        for role in self._roles:
            scaling = role.follows
            assert scaling is not None
            reading = self._readings.get(role.name)
            if reading is None:
                if now - self._asked_at.get(role.name, -1e9) >= scaling.every_seconds:
                    self._asked_at[role.name] = now
                    self._readings[role.name] = aside(f"grid-roles-signal-{role.name}", partial(self._read, role))
                continue
            if not reading.done():
                continue
            del self._readings[role.name]
            present = self._p.crew.count(role.name)
            found = follow_signal(
                scaling,
                self._states[role.name],
                _value(reading),
                present=present,
                least=role.least,
                most=role.most,
                now=now,
            )
            self._states[role.name] = found.state
            self._p.scaling[role.name] = found.told
            if found.wanted != present:
                self._p.note(f"{role.name}: {found.reason}")
            # Enough: what could not be had before is not wanted any more.
            if found.wanted != present or (found.enough and self._p.wanted.get(role.name, present) > present):
                yield role.name, found.wanted

    def finish(self) -> None:
        """Wait for those who call members just now; their calls have a deadline."""
        for role in self._roles:
            if role.name in self._readings and isinstance(role.follows and role.follows.source, MethodSignal):
                wait([self._readings[role.name]], timeout=2 * ANSWER_S)

    def may_retry(self, role: str) -> bool:
        """Looking for room again and again costs something, so it is done now and then."""
        now = time.monotonic()
        if now - self._tried_at.get(role, -1e9) < _RETRY_S:
            return False
        self._tried_at[role] = now
        return True


def _value(reading: "Future[float]") -> float | NoReading:
    error = reading.exception()
    return NoReading(str(error) or type(error).__name__) if error is not None else float(reading.result())
