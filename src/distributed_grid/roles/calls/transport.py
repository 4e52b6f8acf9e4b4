"""How calls get to members and answers come back: Ray, or threads of this process."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from distributed_grid.roles.calls.roster import Ref, Seat


class Transport(Protocol):
    """All times are in seconds; None: as long as it takes. Zero: only look."""

    def submit(self, seat: Seat, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Ref:
        """Send a call, without waiting for it.

        Takes the target by `seat.here()`, which raises `SeatAway` where nobody is there: then nothing was sent. What
        cannot be sent (an argument that cannot be copied) raises as it is.
        """

    def collect(self, refs: Sequence[Ref], within_s: float | None) -> list[Any]:
        """All values, as fast as can be. Any exception, of any kind, means that each is asked for its `outcome`.

        Raises as soon as one has failed, whether or not the others have ended.
        """

    def outcome(self, ref: Ref, seat: Seat, method: str, within_s: float | None) -> Any:
        """The value; or raises what `failures` makes: `MemberFailed`, `MemberLost`, or `CallTimedOut` of this one."""

    def first_done(self, refs: Sequence[Ref], within_s: float | None) -> int | None:
        """The index of one that is over, however it ended; None: there is none yet."""

    def unfinished(self, refs: Sequence[Ref]) -> list[Ref]:
        """Those that are not over now, in their order; without waiting, and without fetching results."""
