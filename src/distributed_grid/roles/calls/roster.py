"""Who is there: a seat for every role and rank, which stays while whoever sits on it dies and comes back.

Seats are changed by whoever keeps the run (one thread), and read by everybody who calls: readers take no locks.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

Ref = Any
"""What a transport gives for a call that is under way; for Ray, an ObjectRef."""
_FEW: Final = 32


class SeatAway(Exception):
    """Nobody is on the seat now. Not for users: whoever calls waits, and tries again."""


class Seat:
    """One member of a role, wherever it is now."""

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
        """Calls that it works on at a time."""
        self.target: Any = None
        """What the transport addresses; None while it is away."""
        self.busy = 0
        """Calls that run or wait there, of everybody's, as it last told."""
        self.waited = 0
        """Calls of this process that somebody waits for."""
        self.up = threading.Event()
        self.why = "it has not started yet"
        """Why it is away."""
        self.gone = False
        """It will not come back."""
        self._given: list[Ref] = []
        """References that were handed out, once somebody chooses by how many of them are not over."""
        self._unfinished: Callable[[list[Ref]], list[Ref]] | None = None
        self._look_at = _FEW
        """With so many references those that are over are dropped, though nobody has looked."""
        self._settled = threading.Event()
        self._changing = threading.Lock()

    def __repr__(self) -> str:
        state = "gone" if self.gone else "away" if self.target is None else "up"
        return f"<{self.role} {self.rank} on {self.node or '?'}: {state}>"

    @property
    def outstanding(self) -> int:
        """Calls of this process that are not over, as far as it knows."""
        return self.waited + len(self._given)

    def here(self) -> Any:
        """The target; transports read it by this, since it may go at any time."""
        target = self.target
        if target is None:
            raise SeatAway
        return target

    def came(self, target: Any, *, node: str | None = None, methods: Iterable[str] | None = None) -> None:
        """It is up, for the first time or again. Who is gone stays gone: another seat is put in place of this one."""
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
        """It is away, and may come back: calls wait for that."""
        self._leave(why, gone=False)

    def ended(self, why: str) -> None:
        """It is gone for good: calls raise."""
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
        """Until it is up, or gone for good; False: it is still away after so many seconds."""
        return self._settled.wait(within_s)

    def remember(self, ref: Ref) -> None:
        """A call is under way that nobody of ours waits for."""
        if self._unfinished is not None:
            with self._changing:
                self._given.append(ref)
                if len(self._given) >= self._look_at:
                    self._given = self._unfinished(self._given)
                    self._look_at = max(_FEW, 2 * len(self._given))

    def count_by(self, unfinished: Callable[[list[Ref]], list[Ref]]) -> None:
        """From now on references that are handed out are counted, as long as they are not over."""
        self._unfinished = unfinished
        self.forget_finished(unfinished)

    def forget_finished(self, unfinished: Callable[[list[Ref]], list[Ref]]) -> None:
        """References keep results alive, so they are held no longer than somebody looks at them."""
        if self._given:
            with self._changing:
                self._given = unfinished(self._given)


class Roster:
    """The seats of a run, by role and rank."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.closed = ""
        """Why the run is over; empty: it is not."""
        self._seats: dict[str, tuple[Seat, ...]] = {}
        self._changing = threading.Lock()

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(self._seats)

    def add_role(self, role: str) -> None:
        """It is known from now on, even if it has no members yet."""
        with self._changing:
            self._seats.setdefault(role, ())

    def seats(self, role: str) -> tuple[Seat, ...]:
        """In rank order, without those that are gone."""
        return tuple([seat for seat in self._seats[role] if not seat.gone])

    def is_at(self, role: str, count: int) -> bool:
        """Whether so many can be called, and no others are to come or go."""
        seats = self.seats(role)
        return len(seats) == count and all(seat.target is not None for seat in seats)

    def why_nobody(self, role: str) -> str:
        """Why a role has no members; empty: it has them, or was never meant to."""
        return self.closed or next((seat.why for seat in self._seats[role] if seat.gone), "")

    def all_seats(self) -> list[Seat]:
        """Of all roles, those that are gone as well."""
        return [seat for seats in self._seats.values() for seat in seats]

    def seat(self, role: str, rank: int) -> Seat | None:
        """Gone or not."""
        return next((seat for seat in self._seats.get(role, ()) if seat.rank == rank), None)

    def put(self, seat: Seat) -> None:
        """In place of who had the rank before, if anybody had."""
        with self._changing:
            others = [one for one in self._seats.get(seat.role, ()) if one.rank != seat.rank]
            self._seats[seat.role] = tuple(sorted([*others, seat], key=lambda one: one.rank))
        if self.closed:  # meanwhile
            seat.ended(self.closed)

    def drop(self, role: str, rank: int, why: str) -> None:
        """It is gone for good, and no longer listed; whoever still has it is told why."""
        with self._changing:
            seats = self._seats.get(role, ())
            self._seats[role] = tuple(one for one in seats if one.rank != rank)
        for seat in seats:
            if seat.rank == rank:
                seat.ended(why)

    def close(self, why: str) -> None:
        """The run is over: every call raises."""
        self.closed = self.closed or why
        for seat in self.all_seats():
            seat.ended(why)

    def forget_finished(self, unfinished: Callable[[list[Ref]], list[Ref]]) -> None:
        """See `Seat.forget_finished`; whoever keeps the run does this now and then."""
        for seat in self.all_seats():
            seat.forget_finished(unfinished)
