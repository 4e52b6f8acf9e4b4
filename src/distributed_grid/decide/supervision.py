"""The supervisor's next step: wait, start the controller, watch, or end.

Ray restarts a crashed controller by itself, so the supervisor first gives Ray a moment. A head that is gone takes the
controller with it. Only the head's return can help, so the supervisor waits for it, however long it takes.

Waiting does not help where the command itself, or the place where it runs, is wrong: the supervisor ends, and stays
ended.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from distributed_grid.errors import GridError, PortTaken, StoreBroken, Unavailable

_HEALS: Final = (Unavailable, StoreBroken)
_WATCH_S: Final = 1.0
_AWAY_S: Final = 1.0
_LONG_AWAY_S: Final = 5.0
_RAYS_TURN_S: Final = 5.0
_LONGEST_BACKOFF_S: Final = 30.0
_REMIND_S: Final = 600.0


class Do(StrEnum):
    WATCH = "watch"
    WAIT = "wait"
    START = "start"
    END = "end"


class Phase(StrEnum):
    STARTING = "starting"
    IN = "in"  # the controller answered when last asked
    SILENT = "silent"  # the head is there, the controller does not answer
    NO_HEAD = "no head"


@dataclass(frozen=True, slots=True)
class Observation:
    """The result of one look."""

    controller: bool
    """The controller answers."""
    head: bool
    """Something listens at the head's address."""
    stopped: bool = False
    """Grid was removed on purpose."""


@dataclass(frozen=True, slots=True)
class Watch:
    """The supervisor's memory. Times are seconds of a monotonic clock."""

    phase: Phase = Phase.STARTING
    since: float = 0.0
    """When the phase began."""
    away_since: float | None = None
    """Since when the controller has not answered."""
    failures: int = 0
    try_at: float = -math.inf
    reported_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    do: Do
    watch: Watch
    pause_s: float = 0.0
    say: str | None = None


def next_step(watch: Watch, sight: Observation, *, now: float, without_head_s: float = math.inf) -> Step:
    """The next thing to do, how long to pause after it, and what to report.

    `without_head_s`: how long the supervisor waits for a head that is gone.
    """
    if sight.stopped:
        return Step(
            Do.END, watch, say="grid was removed from the cluster, or the cluster ended: the supervisor ends, too"
        )
    if sight.controller:
        return _answers(watch, now)
    watch = watch if watch.away_since is not None else replace(watch, away_since=now)
    if sight.head:
        return _head_is_there(watch, now)
    if watch.phase is Phase.NO_HEAD and now - watch.since > without_head_s:
        return Step(Do.END, watch, say=f"no head for {without_head_s / 3600:.0f} h: the supervisor ends")
    return _head_is_gone(watch, now)


def after_failure(watch: Watch, *, now: float) -> Watch:
    """The start of the controller failed: the pauses between tries grow, within bounds."""
    pause = min(_LONGEST_BACKOFF_S, 2.0**watch.failures)
    return replace(watch, failures=min(watch.failures + 1, 16), try_at=now + pause)


def may_heal(error: GridError, *, was_in: bool) -> bool:
    """Whether to go on after the controller could not be started.

    If grid was never in the cluster, the supervisor goes on only if the cluster may still come up, or the disk may have
    room again. Any other error ends it, for the person who has just started it to see; this includes another program on
    the named port. Once grid was in the cluster, it may work again: the cluster and its versions change.
    """
    return was_in or (isinstance(error, _HEALS) and not isinstance(error, PortTaken))


def after_success(*, now: float) -> Watch:
    return Watch(Phase.IN, since=now, reported_at=now)


def _answers(watch: Watch, now: float) -> Step:
    if watch.phase is Phase.IN:
        return Step(Do.WATCH, watch, _WATCH_S)
    away = f" after {now - watch.away_since:.0f} s" if watch.away_since is not None else ""
    said = "the controller answers" if watch.phase is Phase.STARTING else f"the controller answers again{away}"
    return Step(Do.WATCH, after_success(now=now), _WATCH_S, said)


def _head_is_there(watch: Watch, now: float) -> Step:
    said = None
    if watch.phase is Phase.IN:
        watch = _entered(watch, Phase.SILENT, now, try_at=now + _RAYS_TURN_S)
        said = "the controller does not answer; waiting for Ray to restart it"
    elif watch.phase is Phase.NO_HEAD:
        said = f"the head is back after {now - watch.since:.0f} s"
        watch = _entered(watch, Phase.SILENT, now)
    if now < watch.try_at:
        return Step(Do.WAIT, watch, min(_AWAY_S, watch.try_at - now), said)
    return Step(Do.START, watch, say=said)


def _head_is_gone(watch: Watch, now: float) -> Step:
    if watch.phase is not Phase.NO_HEAD:
        gone = _entered(watch, Phase.NO_HEAD, now)
        return Step(Do.WAIT, gone, _AWAY_S, "nothing listens at the head's address; waiting for it to come back")
    away = now - watch.since
    pause = _AWAY_S if away < 60 else _LONG_AWAY_S
    if now - watch.reported_at < _REMIND_S:
        return Step(Do.WAIT, watch, pause)
    return Step(
        Do.WAIT, replace(watch, reported_at=now), pause, f"still no head after {away / 60:.0f} min; still waiting"
    )


def _entered(watch: Watch, phase: Phase, now: float, *, try_at: float = -math.inf) -> Watch:
    return replace(watch, phase=phase, since=now, failures=0, try_at=try_at, reported_at=now)
