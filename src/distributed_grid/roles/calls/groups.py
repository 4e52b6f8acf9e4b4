"""All members of a role, as callers have them; and options for calls to several members."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar, overload

from distributed_grid.errors import InvalidRequest
from distributed_grid.roles.calls.calling import Call, Transport
from distributed_grid.roles.calls.failures import Failed, check_method, first_of, nobody
from distributed_grid.roles.calls.handles import MemberHandle
from distributed_grid.roles.calls.roster import Ref, Roster, Seat
from distributed_grid.roles.calls.sharing_out import MapOptions, SharingOut


class Errors(StrEnum):
    """What becomes of errors of calls to several."""

    RAISE = "raise"
    """When all have ended."""
    FIRST = "first"
    """As soon as one has failed: others may wait for it, and never end."""
    VALUES = "values"


class Unchanged:
    """What was not given stays as it is; None is a deadline, too."""


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

    A run's group always has those that are there now; a slice of it has the same members for ever. Positions count
    members that are there: they are ranks as long as none is gone for good.
    """

    __slots__ = ("_chosen", "_options", "_role", "_roster", "_transport")

    def __init__(
        self,
        roster: Roster,
        transport: Transport,
        role: str,
        options: CallOptions | None = None,
        chosen: tuple[Seat, ...] | None = None,
    ) -> None:
        self._roster, self._transport, self._role = roster, transport, role
        self._options = options or CallOptions()
        self._chosen = chosen

    @property
    def role(self) -> str:
        return self._role

    @property
    def size(self) -> int:
        return len(self._seats())

    def __len__(self) -> int:
        return len(self._seats())

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[MemberHandle[T]]:
        return iter([self._member(seat) for seat in self._seats()])

    @overload
    def __getitem__(self, which: int) -> MemberHandle[T]: ...
    @overload
    def __getitem__(self, which: slice) -> "RoleGroup[T]": ...
    def __getitem__(self, which: int | slice) -> "MemberHandle[T] | RoleGroup[T]":
        seats = self._seats()
        if isinstance(which, slice):
            return RoleGroup(self._roster, self._transport, self._role, self._options, seats[which])
        if not seats:
            raise nobody(self._role, self._roster.why_nobody(self._role))
        if not -len(seats) <= which < len(seats):
            raise IndexError(f"{self._role} has {len(seats)} members, so there is none at {which}")
        return self._member(seats[which])

    @property
    def rank_zero(self) -> MemberHandle[T]:
        """The member of the lowest rank."""
        return self[0]

    def options(
        self,
        *,
        deadline_s: float | Unchanged | None = UNCHANGED,
        errors: Errors | str | Unchanged = UNCHANGED,
        at_once: int | Unchanged = UNCHANGED,
    ) -> "RoleGroup[T]":
        """The same members, called in another way; here, so that no argument of a method can be taken for it.

        `deadline_s`: of each call; None: as long as it takes. `errors`: "raise" (when all have ended), "first" (as soon
        as one has failed), or "values" (they stand among the results). `at_once`: how many shards of `map` a member
        works on at a time, at most what its concurrency allows.
        """
        changed = self._options.changed(deadline_s, errors, at_once)
        return RoleGroup(self._roster, self._transport, self._role, changed, self._chosen)

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call it on all; the answers in rank order.

        Waits until all have ended, or until the deadline, also when one has failed. Then raises the first failure by
        rank, with the others told in `because`, or `CallTimedOut`. With `errors="values"`, each stands in its place;
        with `errors="first"`, a failure is raised as soon as it is there. Who is away is waited for. What was sent is
        never sent again.
        """
        seats, stop = self._checked(method), self._options.errors is Errors.FIRST
        return self._answers(self._call(method, args, kwargs).on_all(seats, stop), method)

    def submit(self, method: str, /, *args: Any, **kwargs: Any) -> list[Ref]:
        """Call it on all without waiting for answers: references in rank order. Only who is away is waited for."""
        seats, call = self._checked(method), self._call(method, args, kwargs)
        refs = []
        for seat in seats:
            ref = call.send(seat)
            seat.remember(ref)
            refs.append(ref)
        return refs

    def map(self, method: str, shards: Iterable[Any], /, *args: Any, **kwargs: Any) -> list[Any]:
        """`method(shard, ...)` for each shard, on one member each; the answers in the order of the shards.

        Shard i goes to member i; what is left goes to who is done first, or is added meanwhile. A member works on one
        at a time, or on as many as `options(at_once=...)` says. With fewer shards than members, the last members do
        nothing. After a failure no more shards are given out; those under way are waited for, and the first failure by
        shard is raised. With `errors="values"` all shards are done, and failures stand in their places. No shard is
        sent twice.
        """
        seats = self._checked(method)
        if not seats:
            raise nobody(self._role, self._roster.why_nobody(self._role))
        options = self._options
        how = MapOptions(options.deadline_s, options.at_once, stop_on_error=options.errors is not Errors.VALUES)
        sharing = SharingOut(self._transport, seats[0], self._seats, method, shards, (args, kwargs), how)
        return self._answers(sharing.run(), method)

    def choose(self) -> MemberHandle[T]:
        """The least busy: by calls of this process that are not over, then by what it last told, then by rank.

        Members that are away are chosen only where all are.
        """
        seats = self._seats()
        if not seats:
            raise nobody(self._role, self._roster.why_nobody(self._role))
        for seat in seats:
            seat.count_by(self._transport.unfinished)
        there = [seat for seat in seats if seat.target is not None] or seats
        return self._member(min(there, key=lambda seat: (seat.outstanding, seat.busy, seat.rank)))

    def __repr__(self) -> str:
        return f"<{self._role}: {len(self)} members>"

    def _seats(self) -> tuple[Seat, ...]:
        return self._roster.seats(self._role) if self._chosen is None else self._chosen

    def _checked(self, method: str) -> tuple[Seat, ...]:
        """The seats that a call goes to: an empty role is nobody's mistake, a run that is over is."""
        seats = self._seats()
        if not seats and (why := self._roster.why_nobody(self._role)):
            raise nobody(self._role, why)
        for seat in seats:
            known = seat.methods
            if method not in known and known:  # who has never been up has not told yet
                check_method(self._role, method, known)
        return seats

    def _call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        return Call(self._transport, method, args, kwargs, self._options.deadline_s)

    def _answers(self, found: list[Any], method: str) -> list[Any]:
        failed = [one.error for one in found if type(one) is Failed]
        if not failed:
            return found
        if self._options.errors is Errors.VALUES:
            return [one.error if type(one) is Failed else one for one in found]
        raise first_of(failed, method, len(found), self._options.deadline_s)

    def _member(self, seat: Seat) -> MemberHandle[T]:
        return MemberHandle(self._transport, seat, self._options.deadline_s)
