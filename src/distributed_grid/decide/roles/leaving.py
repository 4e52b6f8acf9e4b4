"""When a member that is to go may end."""

from typing import Final

FINISH_S: Final = 30.0
"""So long members that scaling ends may finish the calls that they have."""
_HEARD_S: Final = 1.0
"""So long callers in other processes may not have heard yet that a member takes no more calls."""


def may_end(*, leaving_since: float, counted_at: float, calls: int, now: float, finish_s: float) -> bool:
    """Whether it has no calls left, counted after every caller knew; or has had `finish_s` to finish them."""
    return (not calls and counted_at >= leaving_since + _HEARD_S) or now >= leaving_since + finish_s
