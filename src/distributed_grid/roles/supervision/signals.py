"""Signals that roles follow. They are read from time to time beside the rounds, since a reading may take long."""

import json
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Final, Protocol, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlencode, urlsplit
from urllib.request import Request, urlopen

from distributed_grid.decide.roles.scaling import NoReading, ScalingState, follow_signal
from distributed_grid.errors import GridError
from distributed_grid.model.roles.scaling import CallableSignal, MethodSignal, PrometheusSignal, QueueSignal
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.roles.workload import Workload
from distributed_grid.roles.calls.groups import RoleGroup

T = TypeVar("T")


def in_background(name: str, work: Callable[[], T]) -> "Future[T]":
    """Run `work` in a thread of its own. It does not keep the process from ending, however long it takes."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 (for the reader of the result)
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class Loaded(Protocol):
    """The load of a member."""

    @property
    def queue(self) -> int: ...

    @property
    def running(self) -> int: ...


class Counted(Protocol):
    def count(self, role: str) -> int:
        """How many members the role has, including those that are starting or away for a moment."""

    def of_roles(self, roles: Iterable[str]) -> Sequence[Loaded]: ...


class Followed(Protocol):
    @property
    def workload(self) -> Workload: ...

    @property
    def process_set(self) -> Counted: ...

    @property
    def wanted(self) -> dict[str, int]:
        """The wanted number of members of each role."""

    @property
    def scaling(self) -> dict[str, str]:
        """The last state of each scaling role, in words."""

    def note(self, message: str) -> None: ...


class SignalReader:
    def __init__(self, parts: Followed, group: Callable[[str], RoleGroup[Any]]) -> None:
        self._p = parts
        self._group = group

    def read(self, role: RoleSpec) -> float:
        """The current value. Raises what prevents reading it."""
        assert role.follows is not None
        source = role.follows.source
        if isinstance(source, QueueSignal):
            calls = [process.running + process.queue for process in self._p.process_set.of_roles([role.name])]
            return sum(calls) / len(calls) if calls else 0.0
        if isinstance(source, MethodSignal):
            values = self._group(source.role).options(deadline_s=ANSWER_S).call(source.method)
            if not values:
                raise GridError(f"{source.role} has no members")
            return sum(map(float, values)) / len(values)
        if isinstance(source, CallableSignal):
            return float(source.function())
        return _ask(source)


def _ask(source: PrometheusSignal) -> float:
    """One number: the only sample of a vector, or a scalar."""
    data = instant_query(source.prometheus, source.query, ANSWER_S)
    if data["resultType"] == "scalar":
        return float(data["result"][1])
    if data["resultType"] != "vector" or len(data["result"]) != 1:
        raise GridError(f"the query returned {len(data['result'])} series; a signal must be a single number")
    return float(data["result"][0]["value"][1])


def instant_query(server: str, query: str, within_s: float) -> dict[str, Any]:
    """The `data` of a Prometheus server's present answer; raises a `GridError` that says why there is none.

    Error messages leave out the server's address, which may contain a password.
    """
    try:
        with urlopen(_request(server, query), timeout=within_s) as answer:
            status, content = answer.status, answer.read()
    except HTTPError as error:
        status, content = error.code, error.read()
    except (URLError, OSError) as error:
        raise GridError(f"Prometheus cannot be reached: {getattr(error, 'reason', error)}") from None
    try:
        body = json.loads(content)
        if status == 200 and body["status"] == "success":
            return dict(body["data"])
        why = body.get("error", "no reason is given")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise GridError(f"the server does not answer as Prometheus does (status {status})") from None
    raise GridError(f"Prometheus answers with {status}: {why}")


def _request(server: str, query: str) -> Request:
    parts = urlsplit(server)
    port = "" if parts.port is None else f":{parts.port}"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    path = f"{parts.path.rstrip('/')}/api/v1/query?{urlencode({'query': query})}"
    headers = {"Accept": "application/json"}
    if parts.username is not None:
        said = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {b64encode(said.encode()).decode()}"
    return Request(f"{parts.scheme}://{host}{port}{path}", headers=headers)


_RETRY_S: Final = 2.0
ANSWER_S: Final = 5.0
"""How long to wait for the answer to a signal."""

Read = Callable[[RoleSpec], float]
"""The current value of a role's signal. Raises what prevents reading it."""


class Following:
    def __init__(self, parts: Followed, read: Read) -> None:
        self._p = parts
        self._read = read
        self._roles = [role for role in parts.workload.roles if role.scaling is not None]
        self._states = {role.name: ScalingState() for role in self._roles}
        self._readings: dict[str, Future[float]] = {}
        self._asked_at: dict[str, float] = {}
        self._tried_at: dict[str, float] = {}

    @property
    def under_way(self) -> tuple[Future[float], ...]:
        return tuple(self._readings.values())

    def wanted(self) -> Iterator[tuple[str, int]]:
        """The roles whose member count should change now."""
        now = time.monotonic()
        for role in self._roles:
            scaling = role.follows
            assert scaling is not None
            reading = self._readings.get(role.name)
            if reading is None:
                if now - self._asked_at.get(role.name, -1e9) >= scaling.every_seconds:
                    self._asked_at[role.name] = now
                    self._readings[role.name] = in_background(
                        f"grid-roles-signal-{role.name}", partial(self._read, role)
                    )
                continue
            if not reading.done():
                continue
            del self._readings[role.name]
            present = self._p.process_set.count(role.name)
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
            self._p.scaling[role.name] = found.state_text
            if found.wanted != present:
                self._p.note(f"{role.name}: {found.reason}")
            # Enough: members that could not be added before are no longer wanted.
            if found.wanted != present or (found.enough and self._p.wanted.get(role.name, present) > present):
                yield role.name, found.wanted

    def finish(self) -> None:
        """Wait for readings that are calling members now. Their calls have a deadline."""
        for role in self._roles:
            if role.name in self._readings and isinstance(role.follows and role.follows.source, MethodSignal):
                wait([self._readings[role.name]], timeout=2 * ANSWER_S)

    def may_retry(self, role: str) -> bool:
        """Looking for room has a cost, so it is repeated only from time to time."""
        now = time.monotonic()
        if now - self._tried_at.get(role, -1e9) < _RETRY_S:
            return False
        self._tried_at[role] = now
        return True


def _value(reading: "Future[float]") -> float | NoReading:
    error = reading.exception()
    return NoReading(str(error) or type(error).__name__) if error is not None else float(reading.result())
