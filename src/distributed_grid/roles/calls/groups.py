"""All members of a role as the caller's handle, and options for calls to several members."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar, overload

from distributed_grid.errors import InvalidRequest
from distributed_grid.roles.calls.calling import Call, Transport
from distributed_grid.roles.calls.endpoints import Endpoint, EndpointRegistry, Ref
from distributed_grid.roles.calls.failures import Failed, check_method, first_of, no_members
from distributed_grid.roles.calls.handles import MemberHandle
from distributed_grid.roles.calls.sharing_out import MapOptions, SharingOut


class Errors(StrEnum):
    """How errors of calls to several members are handled."""

    RAISE = "raise"
    """Raise when all calls have ended."""
    FIRST = "first"
    """Raise as soon as one call has failed: other members may wait for the failed one and never end."""
    VALUES = "values"


class Unchanged:
    """Marks an option that was not given and keeps its value; None cannot, since None is a valid deadline."""


UNCHANGED: Final = Unchanged()


@dataclass(frozen=True, slots=True)
class CallOptions:
    deadline_s: float | None = None
    errors: Errors = Errors.RAISE
    at_once: int = 1

    def changed(
        self,
        deadline_s: float | Unchanged | None,
        errors: Errors | str | Unchanged,
        at_once: int | Unchanged,
    ) -> "CallOptions":
        return CallOptions(
            self.deadline_s if isinstance(deadline_s, Unchanged) else deadline_s,
            self.errors if isinstance(errors, Unchanged) else _errors(errors),
            self.at_once if isinstance(at_once, Unchanged) else _at_once(at_once),
        )


def _errors(value: Errors | str) -> Errors:
    try:
        return Errors(value)
    except ValueError:
        raise InvalidRequest(f"errors must be one of {', '.join(Errors)}, not {value!r}") from None


def _at_once(value: int) -> int:
    if value < 1:
        raise InvalidRequest(f"at_once must be 1 or more, not {value}")
    return value


T = TypeVar("T")


class RoleGroup(Generic[T]):
    """The members of a role whose class is `T`, in rank order.

    A run's group always has the current members; a slice of it keeps the same members for ever. Positions count current
    members. They equal ranks as long as no member is gone for good.
    """

    __slots__ = ("_chosen", "_options", "_registry", "_role", "_transport")

    def __init__(
        self,
        registry: EndpointRegistry,
        transport: Transport,
        role: str,
        options: CallOptions | None = None,
        chosen: tuple[Endpoint, ...] | None = None,
    ) -> None:
        self._registry, self._transport, self._role = registry, transport, role
        self._options = options or CallOptions()
        self._chosen = chosen

    @property
    def role(self) -> str:
        return self._role

    @property
    def size(self) -> int:
        return len(self._endpoints())

    def __len__(self) -> int:
        return len(self._endpoints())

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[MemberHandle[T]]:
        return iter([self._member(endpoint) for endpoint in self._endpoints()])

    @overload
    def __getitem__(self, which: int) -> MemberHandle[T]: ...
    @overload
    def __getitem__(self, which: slice) -> "RoleGroup[T]": ...
    def __getitem__(self, which: int | slice) -> "MemberHandle[T] | RoleGroup[T]":
        endpoints = self._endpoints()
        if isinstance(which, slice):
            return RoleGroup(self._registry, self._transport, self._role, self._options, endpoints[which])
        if not endpoints:
            raise no_members(self._role, self._registry.why_empty(self._role))
        if not -len(endpoints) <= which < len(endpoints):
            raise IndexError(f"{self._role} has {len(endpoints)} members, so there is none at {which}")
        return self._member(endpoints[which])

    @property
    def rank_zero(self) -> MemberHandle[T]:
        """The member with the lowest rank."""
        return self[0]

    def options(
        self,
        *,
        deadline_s: float | Unchanged | None = UNCHANGED,
        errors: Errors | str | Unchanged = UNCHANGED,
        at_once: int | Unchanged = UNCHANGED,
    ) -> "RoleGroup[T]":
        """The same members with other call options. Set here, they cannot clash with a method's arguments.

        `deadline_s`: for each call; None: no limit. `errors`: "raise" (when all have ended), "first" (as soon as one
        has failed), or "values" (errors stand among the results). `at_once`: how many shards of `map` a member works on
        at a time, at most its concurrency.
        """
        changed = self._options.changed(deadline_s, errors, at_once)
        return RoleGroup(self._registry, self._transport, self._role, changed, self._chosen)

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call the method on all members; returns the answers in rank order.

        Waits until all have ended or the deadline passes, even after a failure. Then raises the first failure by rank,
        with the others listed in `because`, or `CallTimedOut`. With `errors="values"`, each error stands in its place.
        With `errors="first"`, a failure is raised as soon as it happens. The call waits for members that are away. A
        call that was sent is never sent again.
        """
        endpoints, stop = self._checked(method), self._options.errors is Errors.FIRST
        return self._answers(self._call(method, args, kwargs).on_all(endpoints, stop), method)

    def submit(self, method: str, /, *args: Any, **kwargs: Any) -> list[Ref]:
        """Call the method on all members; returns references in rank order. Waits only for members that are away."""
        endpoints, call = self._checked(method), self._call(method, args, kwargs)
        refs = []
        for endpoint in endpoints:
            ref = call.send(endpoint)
            endpoint.remember(ref)
            refs.append(ref)
        return refs

    def map(self, method: str, shards: Iterable[Any], /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call `method(shard, ...)` for each shard, on one member each; returns the answers in the order of the shards.

        Shard i goes to member i. Each remaining shard goes to the first member that is free, including members added
        meanwhile. A member works on one shard at a time, or on as many as `options(at_once=...)` says. With fewer
        shards than members, the last members do nothing. After a failure no more shards are sent; the call waits for
        those under way and raises the first failure by shard. With `errors="values"` all shards are processed, and
        errors stand in their places. No shard is sent twice.
        """
        endpoints = self._checked(method)
        if not endpoints:
            raise no_members(self._role, self._registry.why_empty(self._role))
        options = self._options
        how = MapOptions(options.deadline_s, options.at_once, stop_on_error=options.errors is not Errors.VALUES)
        sharing = SharingOut(self._transport, endpoints[0], self._endpoints, method, shards, (args, kwargs), how)
        return self._answers(sharing.run(), method)

    def choose(self) -> MemberHandle[T]:
        """The least busy member: by unfinished calls of this process, then by the load it last reported, then by rank.

        A member that is away is chosen only if all are away.
        """
        endpoints = self._endpoints()
        if not endpoints:
            raise no_members(self._role, self._registry.why_empty(self._role))
        for endpoint in endpoints:
            endpoint.count_by(self._transport.unfinished)
        there = [endpoint for endpoint in endpoints if endpoint.target is not None] or endpoints
        return self._member(min(there, key=lambda endpoint: (endpoint.outstanding, endpoint.busy, endpoint.rank)))

    def __repr__(self) -> str:
        return f"<{self._role}: {len(self)} members>"

    def _endpoints(self) -> tuple[Endpoint, ...]:
        return self._registry.endpoints(self._role) if self._chosen is None else self._chosen

    def _checked(self, method: str) -> tuple[Endpoint, ...]:
        """The endpoints that a call goes to. An empty role is not an error; a run that has ended is."""
        endpoints = self._endpoints()
        if not endpoints and (why := self._registry.why_empty(self._role)):
            raise no_members(self._role, why)
        for endpoint in endpoints:
            known = endpoint.methods
            if method not in known and known:  # a member that was never up has not reported its methods yet
                check_method(self._role, method, known)
        return endpoints

    def _call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        return Call(self._transport, method, args, kwargs, self._options.deadline_s)

    def _answers(self, found: list[Any], method: str) -> list[Any]:
        failed = [one.error for one in found if type(one) is Failed]
        if not failed:
            return found
        if self._options.errors is Errors.VALUES:
            return [one.error if type(one) is Failed else one for one in found]
        raise first_of(failed, method, len(found), self._options.deadline_s)

    def _member(self, endpoint: Endpoint) -> MemberHandle[T]:
        return MemberHandle(self._transport, endpoint, self._options.deadline_s)
