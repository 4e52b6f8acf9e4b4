"""What a role's number can follow: each is a number that somebody reads every now and then."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from distributed_grid.model.roles.checks import Problems, Wrong, mapping, name, shown

QUEUE: Final = "queue"
_LONGEST_TOLD: Final = 60


@dataclass(frozen=True, slots=True)
class QueueSignal:
    """How many calls wait, as the mean of the role's own members."""

    def describe(self) -> str:
        return QUEUE


@dataclass(frozen=True, slots=True)
class MethodSignal:
    """What a method of a role of the same workload returns, called without arguments; the mean of its members."""

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
    """What a Prometheus server answers to a query: one number."""

    prometheus: str
    """Its URL, which may have a user and a password in it, so it is not shown."""
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
        return words if len(words) <= _LONGEST_TOLD else f"{words[: _LONGEST_TOLD - 3]}..."


@dataclass(frozen=True, slots=True)
class CallableSignal:
    """What a function of the caller's returns; it is called where the workload is looked after, without arguments."""

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
    """From what people write; a function is one in Python only."""
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


def _form(given: dict[str, Any]) -> Callable[..., Signal]:
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
    except ValueError:  # a port that is none
        good = False
    if not good or not isinstance(value, str):
        raise Wrong("must be the URL of a Prometheus server, such as http://localhost:9090")
    return value


def _query(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Wrong(f"must be a query, not {shown(value)}")
    return value
