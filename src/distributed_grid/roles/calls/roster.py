"""The roster: a seat for every role and rank. The seat stays while its member dies and comes back.

One thread keeps the run and changes its seats. Callers read them without locks.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

Ref = Any
"""What a transport returns for a call under way; with Ray, an ObjectRef."""
_FEW: Final = 32


class SeatAway(Exception):
    """The member of the seat is away. Internal: the caller waits and tries again."""


class Seat:
    """One member of a role, on whichever node it is now."""

    __slots__ = (
        "_changing",
        "_given",
        "_look_at",
        "_settled",
        "_unfinished",
        "busy",
        "concurrency",
        "gone",
        "methods",
        "node",
        "rank",
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
        """What the transport addresses; None while the member is away."""
        self.busy = 0
        """Calls of all processes that run or wait on the member, as it last reported."""
        self.waited = 0
        """Calls of this process that a caller waits for."""
        self.up = threading.Event()
        self.why = "it has not started yet"
        """Why the member is away."""
        self.gone = False
        """The member will not come back."""
        self._given: list[Ref] = []
        """References that were returned to callers. They are kept once `choose` counts those that have not ended."""
        self._unfinished: Callable[[list[Ref]], list[Ref]] | None = None
        self._look_at = _FEW
        """At this many references, those that have ended are dropped, even without a count."""
        self._settled = threading.Event()
        self._changing = threading.Lock()

    def __repr__(self) -> str:
        state = "gone" if self.gone else "away" if self.target is None else "up"
        return f"<{self.role} {self.rank} on {self.node or '?'}: {state}>"

    @property
    def outstanding(self) -> int:
        """Calls of this process that have not ended, as far as this process knows."""
        return self.waited + len(self._given)

    def here(self) -> Any:
        """The target. Transports read it with this call, since the member may leave at any time."""
        target = self.target
        if target is None:
            raise SeatAway
        return target

    def came(self, target: Any, *, node: str | None = None, methods: Iterable[str] | None = None) -> None:
        """The member is up, for the first time or again. A seat that is gone stays gone: a new seat replaces it."""
        with self._changing:
            if self.gone:
                return
            if node is not None:
                self.node = node
            if methods is not None:
                self.methods = frozenset(methods)
            self.why, self.busy, self._given = "", 0, []
            self.target = target
            self.up.set()
            self._settled.set()

    def left(self, why: str) -> None:
        """The member is away and may come back. Calls wait for it."""
        self._leave(why, gone=False)

    def ended(self, why: str) -> None:
        """The member is gone for good. Calls raise."""
        self._leave(why, gone=True)

    def _leave(self, why: str, gone: bool) -> None:
        with self._changing:
            if self.gone:
                return
            self.why, self.gone = why, gone
            self.target = None
            self.up.clear()
            if gone:
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


class Roster:
    """The seats of a run, by role and rank."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.closed = ""
        """Why the run has ended; empty if it has not."""
        self._seats: dict[str, tuple[Seat, ...]] = {}
        self._changing = threading.Lock()

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(self._seats)

    def add_role(self, role: str) -> None:
        """Add the role to the roster, even if it has no members yet."""
        with self._changing:
            self._seats.setdefault(role, ())

    def seats(self, role: str) -> tuple[Seat, ...]:
        """In rank order, without seats that are gone."""
        return tuple([seat for seat in self._seats[role] if not seat.gone])

    def is_at(self, role: str, count: int) -> bool:
        """Whether exactly `count` members can be called, and none is still to join or leave."""
        seats = self.seats(role)
        return len(seats) == count and all(seat.target is not None for seat in seats)

    def why_nobody(self, role: str) -> str:
        """Why a role has no members; empty if it has some, or was never meant to have any."""
        return self.closed or next((seat.why for seat in self._seats[role] if seat.gone), "")

    def all_seats(self) -> list[Seat]:
        """The seats of all roles, including those that are gone."""
        return [seat for seats in self._seats.values() for seat in seats]

    def seat(self, role: str, rank: int) -> Seat | None:
        """The seat, gone or not."""
        return next((seat for seat in self._seats.get(role, ()) if seat.rank == rank), None)

    def put(self, seat: Seat) -> None:
        """Add the seat, in place of any earlier seat of its rank."""
        with self._changing:
            others = [one for one in self._seats.get(seat.role, ()) if one.rank != seat.rank]
            self._seats[seat.role] = tuple(sorted([*others, seat], key=lambda one: one.rank))
        if self.closed:  # the run has ended meanwhile
            seat.ended(self.closed)

    def drop(self, role: str, rank: int, why: str) -> None:
        """The member is gone for good and is no longer listed. Existing handles report why."""
        with self._changing:
            seats = self._seats.get(role, ())
            self._seats[role] = tuple(one for one in seats if one.rank != rank)
        for seat in seats:
            if seat.rank == rank:
                seat.ended(why)

    def close(self, why: str) -> None:
        """The run has ended. Every call raises."""
        self.closed = self.closed or why
        for seat in self.all_seats():
            seat.ended(why)

    def forget_finished(self, unfinished: Callable[[list[Ref]], list[Ref]]) -> None:
        """See `Seat.forget_finished`. The thread that keeps the run calls this from time to time."""
        for seat in self.all_seats():
            seat.forget_finished(unfinished)
