"""Why a lease ends: who reclaimed it, for which request, by when; and the words for that.

The words are made from the API's JSON, so that a command, a program's terminal and the audit log say the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.times import instant

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import BoostClaimant, BoostEnding

TERM_S: Final = 5.0
"""A program that still runs at the deadline gets SIGTERM then, and SIGKILL this much later."""
ENDING_S: Final = 10.0
"""How long after the deadline the controller waits for such programs before it removes their placement group."""


class OnGraceEnd(StrEnum):
    """What happens after the grace period to work that still uses the lease. The rest of grid asks for the traits."""

    _value_: str
    summary: str
    """What it does, in a few words."""
    effect: str
    """What that means for the work; `{at}` is the deadline."""
    gates: bool
    """No new work starts on the borrowed part, so that a queue cannot hold it for ever."""
    ends_work: bool
    """The youngest work on the borrowed part is ended; Ray retries it elsewhere."""

    def __new__(cls, value: str, summary: str, effect: str, gates: bool = False, ends_work: bool = False) -> OnGraceEnd:
        self = str.__new__(cls, value)
        self._value_, self.summary, self.effect = value, summary, effect
        self.gates, self.ends_work = gates, ends_work
        return self

    @property
    def only_waits(self) -> bool:
        """The deadline changes nothing: grid keeps asking, and reports what holds it."""
        return not (self.gates or self.ends_work)

    HOLD = "hold", "keeps waiting", "it is back when the work that uses it ends"
    DRAIN = "drain", "starts nothing new there", "its target starts no new work from {at} until it is back", True
    KILL = "kill", "ends the work", "work that still uses it at {at} is terminated", True, True


class EndCause(StrEnum):
    """Why a lease ends. Each cause has its own text, since the advice differs."""

    RELEASED = "released"  # its owner, or an administrator, gave it back
    EXPIRED = "expired"
    PREEMPTED = "preempted"  # a request with a better claim needs it
    IDLE = "idle"  # its work does not use it, and a request waits for it
    LENDER = "lender"  # the lender needs it for its own work
    COOLDOWN = "cooldown"  # one of its nodes returns everything
    MOVED = "moved"  # another lender has taken over the lease
    UNNEEDED = "unneeded"  # grid borrowed it by itself, and no longer needs it
    ORPHANED = "orphaned"  # the process that held it is gone
    LOST = "lost"  # one of its nodes left the cluster
    FILE_REMOVED = "file_removed"  # the state file was removed
    ENDED_BEFORE = "ended_before"  # it ended before the controller started; only an older state file had it
    STOPPED = "stopped"  # grid stops


@dataclass(frozen=True, slots=True)
class Claimant:
    """The request that a lease yields to."""

    request_id: str
    requester: str
    team: str
    priority: AllocationPriority
    wants: str
    """ "4 CPUs for gpu-master"."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a lease is being reclaimed or returned."""

    cause: EndCause
    by: str
    """A person's name, or grid by its policy."""
    claimant: Claimant | None = None


def ending_dict(
    ending: Ending | None,
    *,
    reason: str | None,
    asked_at: datetime | None,
    deadline: datetime | None,
    on_grace_end: str,
) -> BoostEnding | None:
    """An ending as it appears in a boost's JSON."""
    if ending is None:
        return None
    return {
        "cause": str(ending.cause),
        "by": ending.by,
        "reason": reason or str(ending.cause),
        "asked_at": None if asked_at is None else instant(asked_at),
        "deadline": None if deadline is None else instant(deadline),
        "on_grace_end": on_grace_end,
        "claimant": None if ending.claimant is None else _claimant_dict(ending.claimant),
    }


def _claimant_dict(claimant: Claimant) -> BoostClaimant:
    return {
        "request_id": claimant.request_id,
        "requester": claimant.requester,
        "team": claimant.team,
        "priority": str(claimant.priority),
        "wants": claimant.wants,
    }


def why_it_ends(ending: BoostEnding) -> str:
    """ "preempted by bob's request 1234abcd: 4 CPUs for gpu-master, priority high, team vision"."""
    by, reason, claimant = ending["by"], ending["reason"], ending["claimant"]
    match ending["cause"]:
        case EndCause.PREEMPTED if claimant is not None:
            return f"preempted by {claimant_in_words(claimant)}"
        case EndCause.IDLE if claimant is not None:
            return f"{reason}, and {claimant_in_words(claimant)} waits for it"
        case EndCause.RELEASED:
            more = f" ({reason})" if reason not in ("released", str(EndCause.RELEASED)) else ""
            return f"released by {by or 'its owner'}{more}"
        case EndCause.EXPIRED:
            return "it expired"
        case EndCause.COOLDOWN | EndCause.STOPPED:
            return f"{reason}, requested by {by}"
        case _:
            for_whom = f"; {claimant_in_words(claimant)} waits for it" if claimant is not None else ""
            return f"{reason}{for_whom}"


def what_happens_then(ending: BoostEnding, at: str) -> str:
    """What the deadline means for work that still uses the lease then. `at`: the deadline as a reader sees it."""
    return on_grace_end(ending).effect.format(at=at)


def on_grace_end(ending: BoostEnding) -> OnGraceEnd:
    return next((each for each in OnGraceEnd if each == ending["on_grace_end"]), OnGraceEnd.HOLD)


def claimant_in_words(claimant: BoostClaimant) -> str:
    who = f"{claimant['requester']}'s request" if claimant["requester"] else "request"
    return (
        f"{who} {claimant['request_id'][:8]}: {claimant['wants']}, "
        f"priority {claimant['priority']}, team {claimant['team']}"
    )


def what_to_do(ending: BoostEnding | None, *, boost_id: str, priority: str, is_own_lease: bool) -> str:
    """Advice for a run whose lease ended. It depends on the cause."""
    again = "Run it again" if is_own_lease else "Run it in another boost, or in a lease of its own (without --boost)"
    match None if ending is None else ending["cause"]:
        case EndCause.RELEASED:
            return f"{again}; who released it: grid why {boost_id[:8]}"
        case EndCause.EXPIRED:
            kept = "a run renews its lease while grid run can reach the controller"
            if not is_own_lease:
                kept = "extend a boost with grid boost renew ID, or request it with --auto-renew"
            return f"{again}; {kept}."
        case EndCause.PREEMPTED:
            assert ending is not None
            claimant = ending["claimant"]
            wait = f"{again}; --wait TIME waits until there is room"
            if claimant is not None and _rank(claimant["priority"]) > _rank(priority):
                return f"{wait}, and requests of priority {claimant['priority']} do not preempt a run of that priority."
            return f"{wait}. What took precedence: grid why {boost_id[:8]}"
        case EndCause.IDLE:
            return f"{again} when there is work for it. Why it was idle: grid why {boost_id[:8]}"
        case EndCause.LENDER | EndCause.COOLDOWN | EndCause.MOVED | EndCause.LOST:
            return f"{again}: another node may lend it. Choose one with --source NODE."
        case EndCause.STOPPED:
            return f"{again} when grid is back: grid start"
        case _:
            return f"{again}. What happened: grid why {boost_id[:8]}"


def _rank(priority: str) -> int:
    return AllocationPriority(priority).rank
