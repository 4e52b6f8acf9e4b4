"""Reclaim notices, and the answers of holders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from distributed_grid.model.endings import EndCause, ending_dict
from distributed_grid.model.leases import Lease, Notice
from distributed_grid.model.resources import amount_of, units_of
from distributed_grid.model.times import instant, parse_instant
from distributed_grid.model.validators import Wrong, amount_or_none, flag

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import Boost, BoostClaimant, BoostNotice, IdleMessage, ReclaimMessage

T = TypeVar("T")

_WORDS: Final = ("give_up", "release", "checkpointed")


@dataclass(frozen=True, slots=True)
class ReclaimNotice:
    """Asks the holder of a boost to give up `amount` of it by the deadline; after that, grid takes it."""

    boost_id: str
    resource_type: str
    amount: float
    """How much is enough."""
    reason: str
    asked_at: datetime
    deadline: datetime
    by: str = ""
    """A person's name, or grid by its policy."""
    claimant: BoostClaimant | None = None
    """The request that it is for: its `request_id`, `requester`, `team`, `priority` and what it `wants`."""
    ends_at: datetime | None = None
    """When the grace period ends and what still runs is ended."""


@dataclass(frozen=True, slots=True)
class IdleNotice:
    """Reports to the holder of a boost that its work has not used it. Grid takes nothing yet."""

    boost_id: str
    resource_type: str
    amount: float
    idle_since: datetime


@dataclass(frozen=True, slots=True)
class Reply:
    """A holder's answer. An empty one: the holder is notified, and may act later."""

    give_up: int = 0
    """Units."""
    release: bool = False
    checkpointed: bool = False


def notice_dict(kind: str, notice: Notice | None) -> BoostNotice | None:
    """A notice as it appears in a boost's JSON."""
    if notice is None:
        return None
    return {
        "amount": amount_of(kind, notice.units),
        "reason": notice.reason,
        "asked_at": instant(notice.asked_at),
        "deadline": instant(notice.deadline),
    }


def notice_body(lease: Lease) -> ReclaimMessage:
    """The reclaim notice as its holder gets it, in a file and by its hook."""
    notice = notice_dict(lease.kind, lease.notice)
    assert notice is not None, "only a lease with a notice has a message"
    message: ReclaimMessage = {
        "boost_id": lease.id,
        "resource_type": lease.kind,
        "amount": notice["amount"],
        "reason": notice["reason"],
        "asked_at": notice["asked_at"],
        "deadline": notice["deadline"],
    }
    ending = ending_dict(
        lease.ending, reason="", asked_at=lease.asked_at, deadline=lease.deadline, on_grace_end=lease.at_deadline
    )
    if ending is None:
        return message
    return {
        **message,
        "cause": ending["cause"],
        "by": ending["by"],
        "claimant": ending["claimant"],
        "ends_at": ending["deadline"],
    }


def idle_body(lease: Lease) -> IdleMessage:
    """The report that a lease is idle, as its holder gets it by its hook. Nothing is reclaimed yet."""
    assert lease.idle is not None, "only an idle lease has this message"
    return _idle_message(lease.id, lease.kind, amount_of(lease.kind, lease.units), instant(lease.idle.since))


def idle_message(boost: Boost) -> IdleMessage | None:
    """The same for the holder of a boost by its JSON; None if the boost is not idle."""
    if (since := boost["idle_since"]) is None:
        return None
    return _idle_message(boost["boost_id"], boost["resource_type"], boost["amount"], since)


def _idle_message(boost_id: str, kind: str, amount: float, since: str) -> IdleMessage:
    return {
        "boost_id": boost_id,
        "resource_type": kind,
        "amount": amount,
        "reason": "its work has not used it",
        "cause": str(EndCause.IDLE),
        "idle_since": since,
        "deadline": None,
    }


def idle_in(boost: Boost) -> IdleNotice | None:
    """The report in a boost's JSON that it is idle, while nothing is being reclaimed."""
    if boost["notice"] is not None or (since := boost["idle_since"]) is None:
        return None
    return IdleNotice(boost["boost_id"], boost["resource_type"], boost["amount"], parse_instant(since))


def notice_in(boost: Boost) -> ReclaimNotice | None:
    """The notice in a boost's JSON."""
    if (notice := boost["notice"]) is None:
        return None
    ending = boost["ending"]
    ends_at = None if ending is None else ending["deadline"]
    return ReclaimNotice(
        boost["boost_id"],
        boost["resource_type"],
        notice["amount"],
        notice["reason"],
        parse_instant(notice["asked_at"]),
        parse_instant(notice["deadline"]),
        "" if ending is None else ending["by"],
        None if ending is None else ending["claimant"],
        None if ends_at is None else parse_instant(ends_at),
    )


def reply_of(kind: str, data: object) -> Reply:
    """The meaning of a hook's JSON; `ValueError` says why it has none."""
    if not isinstance(data, Mapping):
        raise ValueError("the answer is not a JSON object")
    if unknown := [str(word) for word in data if word not in _WORDS]:
        raise ValueError(f"the answer says {unknown[0][:40]!r}, which is unknown; use one of {', '.join(_WORDS)}")
    amount = _said("give_up", partial(amount_or_none, kind), data.get("give_up", 0))
    release, checkpointed = (_said(word, flag, data.get(word, False)) for word in ("release", "checkpointed"))
    return Reply(units_of(kind, amount) if amount else 0, release, checkpointed)


def _said(word: str, check: Callable[[object], T], value: object) -> T:
    try:
        return check(value)
    except Wrong as error:
        raise ValueError(f"{word} {error}") from None


def asks_more(before: tuple[datetime, float] | None, asked_at: datetime, amount: float) -> bool:
    """Whether a notice is news to a holder that has been notified before: another notice, or a larger one.

    A notice that became smaller, because part of it was given, is nothing new.
    """
    return before is None or before[0] != asked_at or amount > before[1]
