"""The registry: an endpoint for every role and rank. The endpoint stays while its member dies and comes back.

One thread owns the run and changes its endpoints. Callers read them without locks.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

Ref = Any
"""A transport's reference to a call under way; with Ray, an ObjectRef."""
_FEW: Final = 32


class EndpointUnavailable(Exception):
    """The member of the endpoint is away. Internal: the caller waits and tries again."""


class Endpoint:
    """One member of a role, on whichever node it is now."""

    __slots__ = (
        "_changing",
        "_given",
        "_look_at",
        "_settled",
        "_unfinished",
        "busy",
        "concurrency",
        "methods",
        "node",
        "rank",
        "retired",
        "role",
        "target",
        "up",
        "waited",
        "why",
    )

    def __init__(
        self, role: str, rank: int, *, node: str = "", methods: Iterable[str] = (), concurrency: int = 1
    ) -> None:
        self.role, self.rank, self.node = role, rank, node
        self.methods = frozenset(methods)
        self.concurrency = concurrency
        """How many calls the member works on at a time."""
        self.target: Any = None
        """The transport's address of the member; None while the member is away."""
        self.busy = 0
        """Calls of all processes that run or wait on the member, as it last reported."""
        self.waited = 0
        """Calls of this process that a caller waits for."""
        self.up = threading.Event()
        self.why = "it has not started yet"
        """Why the member is away."""
        self.retired = False
        """The member will not come back."""
        self._given: list[Ref] = []
        """References that were returned to callers. They are kept once `choose` counts those that have not ended."""
        self._unfinished: Callable[[list[Ref]], list[Ref]] | None = None
        self._look_at = _FEW
        """At this many references, those that have ended are dropped, even without a count."""
        self._settled = threading.Event()
        self._changing = threading.Lock()

    def __repr__(self) -> str:
        state = "gone" if self.retired else "away" if self.target is None else "up"
        return f"<{self.role} {self.rank} on {self.node or '?'}: {state}>"

    @property
    def outstanding(self) -> int:
        """Calls of this process that have not ended, as far as this process knows."""
        return self.waited + len(self._given)

    def current_target(self) -> Any:
        """The target. Transports read it with this call, since the member may leave at any time."""
        target = self.target
        if target is None:
            raise EndpointUnavailable
        return target

    def connect(self, target: Any, *, node: str | None = None, methods: Iterable[str] | None = None) -> None:
        """The member is up, for the first time or again. A retired endpoint stays retired: a new one replaces it."""
        with self._changing:
            if self.retired:
                return
            if node is not None:
                self.node = node
            if methods is not None:
                self.methods = frozenset(methods)
            self.why, self.busy, self._given = "", 0, []
            self.target = target
            self.up.set()
            self._settled.set()

    def disconnect(self, why: str) -> None:
        """The member is away and may come back. Calls wait for it."""
        self._leave(why, retired=False)

    def retire(self, why: str) -> None:
        """The member is gone for good. Calls raise."""
        self._leave(why, retired=True)

    def _leave(self, why: str, retired: bool) -> None:
        with self._changing:
            if self.retired:
                return
            self.why, self.retired = why, retired
            self.target = None
            self.up.clear()
            if retired:
                self._settled.set()
            else:
                self._settled.clear()

    def wait(self, within_s: float | None) -> bool:
        """Wait until the member is up or gone for good. False: it is still away after `within_s`."""
        return self._settled.wait(within_s)

    def remember(self, ref: Ref) -> None:
        """Record a call under way that no caller in this process waits for."""
        if self._unfinished is not None:
            with self._changing:
                self._given.append(ref)
                if len(self._given) >= self._look_at:
                    self._given = self._unfinished(self._given)
                    self._look_at = max(_FEW, 2 * len(self._given))

    def count_by(self, unfinished: Callable[[list[Ref]], list[Ref]]) -> None:
        """From now on, count the returned references that have not ended."""
        self._unfinished = unfinished
        self.forget_finished(unfinished)

    def forget_finished(self, unfinished: Callable[[list[Ref]], list[Ref]]) -> None:
        """Drop references that have ended: a held reference keeps its result alive."""
        if self._given:
            with self._changing:
                self._given = unfinished(self._given)


class EndpointRegistry:
    """The endpoints of a run, by role and rank."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.closed = ""
        """Why the run has ended; empty if it has not."""
        self._endpoints: dict[str, tuple[Endpoint, ...]] = {}
        self._changing = threading.Lock()

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(self._endpoints)

    def add_role(self, role: str) -> None:
        """Add the role to the registry, even if it has no members yet."""
        with self._changing:
            self._endpoints.setdefault(role, ())

    def endpoints(self, role: str) -> tuple[Endpoint, ...]:
        """In rank order, without endpoints that are gone."""
        return tuple([endpoint for endpoint in self._endpoints[role] if not endpoint.retired])

    def is_at(self, role: str, count: int) -> bool:
        """Whether exactly `count` members can be called, and none is still to join or leave."""
        endpoints = self.endpoints(role)
        return len(endpoints) == count and all(endpoint.target is not None for endpoint in endpoints)

    def why_empty(self, role: str) -> str:
        """Why a role has no members; empty if it has some, or was never meant to have any."""
        return self.closed or next((endpoint.why for endpoint in self._endpoints[role] if endpoint.retired), "")

    def all_endpoints(self) -> list[Endpoint]:
        """The endpoints of all roles, including those that are gone."""
        return [endpoint for endpoints in self._endpoints.values() for endpoint in endpoints]

    def endpoint(self, role: str, rank: int) -> Endpoint | None:
        """The endpoint, gone or not."""
        return next((endpoint for endpoint in self._endpoints.get(role, ()) if endpoint.rank == rank), None)

    def put(self, endpoint: Endpoint) -> None:
        """Add the endpoint, in place of any earlier endpoint of its rank."""
        with self._changing:
            others = [one for one in self._endpoints.get(endpoint.role, ()) if one.rank != endpoint.rank]
            self._endpoints[endpoint.role] = tuple(sorted([*others, endpoint], key=lambda one: one.rank))
        if self.closed:  # the run has ended meanwhile
            endpoint.retire(self.closed)

    def drop(self, role: str, rank: int, why: str, *, only: Endpoint | None = None) -> None:
        """The member is gone for good and is no longer listed. Existing handles report why.

        `only`: this very endpoint, and not one that has replaced it.
        """
        with self._changing:
            endpoints = self._endpoints.get(role, ())
            going = [one for one in endpoints if one.rank == rank and (only is None or one is only)]
            self._endpoints[role] = tuple(one for one in endpoints if one not in going)
        for endpoint in [*going, *([only] if only is not None else [])]:
            endpoint.retire(why)

    def close(self, why: str) -> None:
        """The run has ended. Every call raises."""
        self.closed = self.closed or why
        for endpoint in self.all_endpoints():
            endpoint.retire(why)

    def forget_finished(self, unfinished: Callable[[list[Ref]], list[Ref]]) -> None:
        """See `Endpoint.forget_finished`. The thread that owns the run calls this from time to time."""
        for endpoint in self.all_endpoints():
            endpoint.forget_finished(unfinished)
