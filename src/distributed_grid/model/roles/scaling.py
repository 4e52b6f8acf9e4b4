"""Signals that a role's size can follow, and how it follows them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final
from urllib.parse import urlsplit

from distributed_grid.model.roles import checks
from distributed_grid.model.roles.checks import Problems, Wrong, mapping, name, shown
from distributed_grid.model.validators import flag, number

QUEUE: Final = "queue"
_LONGEST_DESCRIPTION: Final = 60


@dataclass(frozen=True, slots=True)
class QueueSignal:
    """The number of waiting calls, as the mean over the role's own members."""

    def describe(self) -> str:
        return QUEUE


@dataclass(frozen=True, slots=True)
class MethodSignal:
    """The result of a method of a role in the same workload, called without arguments; the mean over its members."""

    role: str
    method: str

    def __post_init__(self) -> None:
        problems = Problems()
        object.__setattr__(self, "role", problems.checked("role", name, self.role, "?"))
        problems.checked("method", _method, self.method, "")
        problems.complain("The signal")

    def describe(self) -> str:
        return f"{self.role}.{self.method}"


@dataclass(frozen=True, slots=True)
class PrometheusSignal:
    """The answer of a Prometheus server to a query: one number."""

    prometheus: str
    """Its URL. It may contain a user and a password, so it is not shown."""
    query: str

    def __post_init__(self) -> None:
        problems = Problems()
        problems.checked("prometheus", _url, self.prometheus, "")
        problems.checked("query", _query, self.query, "")
        problems.complain("The signal")

    def __repr__(self) -> str:
        return f"PrometheusSignal(..., {self.query!r})"

    def describe(self) -> str:
        words = " ".join(self.query.split())
        return words if len(words) <= _LONGEST_DESCRIPTION else f"{words[: _LONGEST_DESCRIPTION - 3]}..."


@dataclass(frozen=True, slots=True)
class CallableSignal:
    """The result of the caller's function, called without arguments in the process that supervises the workload."""

    function: Callable[[], float]

    def describe(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))


Signal = QueueSignal | MethodSignal | PrometheusSignal | CallableSignal

_FORMS: Final[Mapping[frozenset[str], Callable[..., Signal]]] = {
    frozenset({"role", "method"}): MethodSignal,
    frozenset({"prometheus", "query"}): PrometheusSignal,
}
_EXPECTED: Final = "queue, {role: ROLE, method: METHOD} or {prometheus: URL, query: QUERY}"


def signal(value: object) -> Signal:
    """A signal from user input; functions are possible in Python only."""
    if isinstance(value, Signal):
        return value
    if value == QUEUE:
        return QueueSignal()
    if isinstance(value, Mapping):
        given = mapping(value)
        return _form(given)(**given)
    if callable(value):
        return CallableSignal(value)
    raise Wrong("is missing" if value is None else f"must be {_EXPECTED}, not {shown(value)}")


def _form(given: Mapping[str, object]) -> Callable[..., Signal]:
    if make := _FORMS.get(frozenset(given)):
        return make
    raise Wrong(f"must be {_EXPECTED}, not a mapping of {', '.join(given) or 'nothing'}")


def _method(value: object) -> str:
    if not isinstance(value, str) or not value.isidentifier() or value.startswith("_"):
        raise Wrong(f"must be the name of a public method, not {shown(value)}")
    return value


def _url(value: object) -> str:
    try:
        parts = urlsplit(value) if isinstance(value, str) else None
        good = parts is not None and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # an invalid port
        good = False
    if not good or not isinstance(value, str):
        raise Wrong("must be the URL of a Prometheus server, such as http://localhost:9090")
    return value


def _query(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Wrong(f"must be a query, not {shown(value)}")
    return value


_MOST_AT_A_TIME: Final = 100_000


@dataclass(frozen=True, slots=True)
class Scaling:
    """Two thresholds with a band between them in which nothing changes. Reports all problems at once.

    With `up_at` above `down_at`, a rising signal adds members (a queue gets longer). With `up_at` below `down_at`, a
    falling signal adds members (a pool gets emptier).
    """

    signal: Signal | str | Mapping[str, str] | Callable[[], float]
    up_at: float
    """More members if the signal is at or beyond this."""
    down_at: float
    """Fewer members if the signal is at or beyond this, on the other side."""
    step: int = 1
    """Members per change."""
    stable_seconds: float = 5.0
    """How long the signal must be beyond the threshold, at every reading, before a change."""
    cooldown_seconds: float = 10.0
    """How long nothing changes after a change."""
    every_seconds: float = 1.0
    """How often the signal is read."""
    boost: bool = False
    """Whether grid may ask for a boost if there is no room for more members."""
    boost_duration_seconds: float = 600.0
    """The duration of each such boost; it is renewed while it is needed."""

    def __post_init__(self) -> None:
        problems = Problems()
        for key, (check, otherwise) in _CHECKS.items():
            object.__setattr__(self, key, problems.checked(key, check, getattr(self, key), otherwise))
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
        """The source of the signal."""
        return signal(self.signal)

    @property
    def rises(self) -> bool:
        """Whether a rising signal adds members."""
        return self.up_at > self.down_at

    def describe(self) -> str:
        """ "queue: up at 4, down at 1"."""
        return f"{self.source.describe()}: up at {self.up_at:g}, down at {self.down_at:g}"

    def _check_band(self, problems: Problems) -> None:
        if self.up_at == self.down_at:
            said = f"must differ from up_at, which is also {self.up_at:g}: nothing changes between the two"
            problems.add(("down_at",), said)
        elif isinstance(self.signal, QueueSignal) and not self.rises:
            problems.add(("up_at",), f"must be above down_at ({self.down_at:g}): a longer queue needs more members")


def _number(value: object) -> float:
    if value is None:
        raise Wrong("is missing")
    return float(number(value))


_CHECKS: Final[Mapping[str, tuple[Callable[[object], object], object]]] = {
    "signal": (signal, QueueSignal()),
    "up_at": (_number, 1.0),
    "down_at": (_number, 0.0),
    "step": (checks.whole(1, _MOST_AT_A_TIME), 1),
    "stable_seconds": (checks.seconds_or_zero, 1.0),
    "cooldown_seconds": (checks.seconds_or_zero, 1.0),
    "every_seconds": (checks.seconds, 1.0),
    "boost": (flag, False),
    "boost_duration_seconds": (checks.seconds, 1.0),
}
_NEEDED: Final = ("signal", "up_at", "down_at")
SCALING_KEYS: Final = tuple(one.name for one in fields(Scaling))
