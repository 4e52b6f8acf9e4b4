"""How many members a role that follows a signal should have now, and when a member that leaves may end.

A signal within its band changes nothing. A signal outside must stay there for a while before it has an effect. After a
change there is a pause, so that the change can take effect before the next one.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from distributed_grid.model.roles.scaling import Scaling


class Way(StrEnum):
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class NoReading:
    """The signal could not be read."""

    why: str


@dataclass(frozen=True, slots=True)
class ScalingState:
    """The state between two readings. Times are seconds of a monotonic clock."""

    beyond: Way | None = None
    """The threshold that the signal was beyond at the last reading."""
    since: float = 0.0
    """When the signal went beyond it."""
    changed_at: float | None = None
    wanted: int | None = None
    """The last decision. A different number of members means that something else changed it."""


@dataclass(frozen=True, slots=True)
class Scaled:
    state: ScalingState
    wanted: int
    reason: str
    """Why the count changes, for people; empty if it does not."""
    state_text: str
    """The current state in words, whether the count changes or not."""
    enough: bool = False
    """The signal was read, and needs no more members than there are."""


def follow_signal(
    scaling: Scaling,
    state: ScalingState,
    reading: float | NoReading,
    *,
    present: int,
    least: int,
    most: int,
    now: float,
) -> Scaled:
    """How many members there should be, never fewer than `least` or more than `most`.

    `present`: the current members, including those that are starting or briefly away. If the last decision was not
    carried out (for lack of room, for example), or if something else changed the number, that counts as a change:
    scaling pauses before it follows the signal again.
    """
    if not least <= present <= most:
        return _back_inside(present, least, most, now)
    if state.wanted not in (None, present):
        state = ScalingState(changed_at=now)
    value = None if isinstance(reading, NoReading) or not math.isfinite(reading) else reading
    way = None if value is None else _beyond(scaling, value)
    since = state.since if way is state.beyond else now
    state = replace(state, beyond=way, since=since, wanted=present)
    if value is None:
        why = reading.why if isinstance(reading, NoReading) else f"it is {reading}"
        return Scaled(state, present, "", f"{scaling.source.describe()} cannot be read: {why}")
    at = f"{scaling.source.describe()} at {value:.4g}"
    if way is None:
        low, high = sorted((scaling.up_at, scaling.down_at))
        return Scaled(state, present, "", f"{at}, between {low:g} and {high:g}", enough=True)
    at = f"{at} ({way} at {scaling.up_at if way is Way.UP else scaling.down_at:g})"
    wanted = min(most, present + scaling.step) if way is Way.UP else max(least, present - scaling.step)
    if why := _why_not_now(scaling, state, wanted, way, now):
        return Scaled(state, present, "", f"{at}, {why}", enough=way is Way.DOWN)
    reason = f"{at} for {now - since:.3g} s: from {present} to {wanted}"
    state = ScalingState(changed_at=now, wanted=wanted)
    return Scaled(state, wanted, reason, reason, enough=way is Way.DOWN)


def _beyond(scaling: Scaling, value: float) -> Way | None:
    """The threshold that the signal is at or beyond."""
    sign = 1 if scaling.rises else -1
    if sign * value >= sign * scaling.up_at:
        return Way.UP
    return Way.DOWN if sign * value <= sign * scaling.down_at else None


def _why_not_now(scaling: Scaling, state: ScalingState, wanted: int, way: Way, now: float) -> str:
    if wanted == state.wanted:
        return f"and {wanted} is the {'maximum' if way is Way.UP else 'minimum'}"
    if (lasted := now - state.since) < scaling.stable_seconds:
        return f"for {max(0.0, lasted):.3g} of {scaling.stable_seconds:g} s"
    rest = 0.0 if state.changed_at is None else state.changed_at + scaling.cooldown_seconds - now
    return f"{rest:.3g} s of cooldown left after the last change" if rest > 0 else ""


def _back_inside(present: int, least: int, most: int, now: float) -> Scaled:
    wanted = least if present < least else most
    limit = f"the minimum is {least}" if present < least else f"the maximum is {most}"
    reason = f"{limit}: from {present} to {wanted}"
    return Scaled(ScalingState(changed_at=now, wanted=wanted), wanted, reason, reason)


FINISH_S: Final = 30.0
"""How long a member that scaling removes may take to finish its calls."""
_HEARD_S: Final = 1.0
"""How long callers in other processes may still send calls to a member that is leaving."""


def may_end(*, leaving_since: float, counted_at: float, calls: int, now: float, finish_s: float) -> bool:
    """Whether a member has no calls left, counted after every caller knew that it leaves, or `finish_s` is over."""
    return (not calls and counted_at >= leaving_since + _HEARD_S) or now >= leaving_since + finish_s
