"""How the number of a role's members follows a signal."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from distributed_grid.model.roles import checks
from distributed_grid.model.roles.checks import Problems, Wrong
from distributed_grid.model.roles.signals import QueueSignal, Signal, signal

_MOST_AT_A_TIME: Final = 100_000


@dataclass(frozen=True, slots=True)
class Scaling:
    """Two thresholds with a band between them in which nothing changes. Says all that is wrong with it at once.

    With `up_at` above `down_at`, a signal that rises brings more members (a queue gets longer); with `up_at` below it,
    one that falls does (a pool gets emptier).
    """

    signal: Signal | str | Mapping[str, str] | Callable[[], float]
    up_at: float
    """More members if the signal is here or beyond."""
    down_at: float
    """Fewer if it is here or beyond, on the other side."""
    step: int = 1
    """Members at a time."""
    stable_seconds: float = 5.0
    """So long it must have been beyond the threshold, each time it was read."""
    cooldown_seconds: float = 10.0
    """So long nothing changes after a change."""
    every_seconds: float = 1.0
    """How often it is read."""
    boost: bool = False
    """Where there is no room for more members, a boost may be asked for."""
    boost_duration_seconds: float = 600.0
    """Of each such boost; it is renewed while it is needed."""

    def __post_init__(self) -> None:
        problems = Problems()
        for name, (check, otherwise) in _CHECKS.items():
            object.__setattr__(self, name, problems.checked(name, check, getattr(self, name), otherwise))
        if not problems.found:
            self._check_band(problems)
        problems.complain("The scaling")

    @classmethod
    def parse(cls, value: object) -> "Scaling":
        """From a mapping with the same keys."""
        if isinstance(value, cls):
            return value
        given: dict[str, Any] = dict.fromkeys(_NEEDED) | checks.mapping(value)
        if unknown := [key for key in given if key not in SCALING_KEYS]:
            raise Wrong(f"has no {', '.join(unknown)}; it has {', '.join(SCALING_KEYS)}")
        return cls(**given)

    @property
    def source(self) -> Signal:
        """Where the signal comes from."""
        return signal(self.signal)

    @property
    def rises(self) -> bool:
        """More members if the signal rises."""
        return self.up_at > self.down_at

    def describe(self) -> str:
        """ "queue: up at 4, down at 1"."""
        return f"{self.source.describe()}: up at {self.up_at:g}, down at {self.down_at:g}"

    def _check_band(self, problems: Problems) -> None:
        if self.up_at == self.down_at:
            said = f"must differ from up_at, which is {self.up_at:g}, too: between them nothing changes"
            problems.add(("down_at",), said)
        elif isinstance(self.signal, QueueSignal) and not self.rises:
            problems.add(("up_at",), f"must be above down_at ({self.down_at:g}): a longer queue needs more members")


def _number(value: object) -> float:
    if value is None:
        raise Wrong("is missing")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Wrong(f"must be a number, not {checks.shown(value)}")
    return float(value)


def _yes_or_no(value: object) -> bool:
    if not isinstance(value, bool):
        raise Wrong(f"must be true or false, not {checks.shown(value)}")
    return value


_CHECKS: Final[Mapping[str, tuple[Any, Any]]] = {
    "signal": (signal, QueueSignal()),
    "up_at": (_number, 1.0),
    "down_at": (_number, 0.0),
    "step": (checks.whole(1, _MOST_AT_A_TIME), 1),
    "stable_seconds": (checks.seconds_or_zero, 1.0),
    "cooldown_seconds": (checks.seconds_or_zero, 1.0),
    "every_seconds": (checks.seconds, 1.0),
    "boost": (_yes_or_no, False),
    "boost_duration_seconds": (checks.seconds, 1.0),
}
_NEEDED: Final = ("signal", "up_at", "down_at")
SCALING_KEYS: Final = tuple(one.name for one in fields(Scaling))
