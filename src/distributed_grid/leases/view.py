"""Boosts, plans and reasons as the API, `--json` and the Python classes show them."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, zip_longest
from typing import TYPE_CHECKING, Final, TypeVar, cast

import orjson

from distributed_grid.decide.queue.answers import NodeReason, Outlook
from distributed_grid.decide.queue.preemption import Preemption
from distributed_grid.model.endings import ending_dict
from distributed_grid.model.leases import SHOWN, Lease, LeaseState, Purpose, Share
from distributed_grid.model.nodes import in_words
from distributed_grid.model.notices import notice_dict
from distributed_grid.model.plans import Grant
from distributed_grid.model.resources import ResourceVector, amount_of
from distributed_grid.model.times import instant

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import (
        Boost,
        BoostEnding,
        BoostList,
        BoostPart,
        BoostTerms,
        BoostTotals,
        ListedBoosts,
    )
    from distributed_grid.wire.queue import NodeVerdict, Plan, PlannedPreemption

T = TypeVar("T")
MOST_BYTES: Final = 2 * 2**20
"""The most bytes of a list in one answer."""
_TEXTS: Final = 8
_MOST_ENDED: Final = 1000
_LONGEST_NUMBER: Final = 15
_TEXT: Final = 80


def fitting(entries: Sequence[tuple[str, int]]) -> tuple[int, ...]:
    """The numbers of the list entries that fit into one answer; an entry is its user and its size.

    If the list is too long, users take turns, each with its last entries first. So the entries of one user never crowd
    out the others'.
    """
    if sum(size for _, size in entries) <= MOST_BYTES:
        return tuple(range(len(entries)))
    of_users: dict[str, list[int]] = defaultdict(list)
    for number in reversed(range(len(entries))):
        of_users[entries[number][0]].append(number)
    in_turns = [number for turn in zip_longest(*of_users.values()) for number in turn if number is not None]
    sizes = accumulate(entries[number][1] for number in in_turns)
    return tuple(sorted(number for number, size in zip(in_turns, sizes, strict=True) if size <= MOST_BYTES))


def cut_to_fit(entries: Sequence[T], user_of: Callable[[T], str]) -> tuple[list[T], bool]:
    """The entries of a list that fit into one answer, and whether others were left out."""
    numbers = fitting([(user_of(each), len(orjson.dumps(each))) for each in entries])
    return [entries[number] for number in numbers], len(numbers) < len(entries)


def listed_boosts(boosts: Sequence[Boost]) -> ListedBoosts:
    shown, cut = cut_to_fit(boosts, lambda boost: boost["requester"])
    return {"cut": cut, "boosts": shown}


def shortened(texts: Sequence[str]) -> list[str]:
    """Users' texts, cut for lists: other users' answers must not grow with them."""
    more = [f"and {len(texts) - _TEXTS} more"] if len(texts) > _TEXTS else []
    return [text if len(text) <= _TEXT else f"{text[: _TEXT - 3]}..." for text in texts[:_TEXTS]] + more


def ending_of(lease: Lease) -> BoostEnding | None:
    """Why a lease is being returned or reclaimed, by whom, for whom and by when; None while it is neither."""
    reason = lease.notice.reason if lease.notice is not None else lease.release_reason
    return ending_dict(
        lease.ending,
        reason=reason,
        asked_at=lease.asked_at,
        deadline=lease.deadline,
        on_grace_end=lease.at_deadline,
    )


def boost_dict(lease: Lease, notes: tuple[str, ...] = ()) -> Boost:
    return {
        "boost_id": lease.id,
        "source_node": lease.source,
        "target_node": lease.target,
        "resource_type": lease.kind,
        "amount": 0 if lease.is_cap else amount_of(lease.kind, lease.units),
        "priority": str(lease.priority),
        "delivery": str(lease.delivery),
        "delivery_reason": lease.delivery_reason,
        "state": lease.state.shown,
        "allocated_at": instant(lease.allocated_at),
        "expires_at": instant(lease.expires_at),
        "placement_group": lease.placement_group,
        "notice": notice_dict(lease.kind, lease.notice),
        "checkpointed_at": None if lease.checkpointed_at is None else instant(lease.checkpointed_at),
        "idle_since": None if lease.idle is None else instant(lease.idle.since),
        "resources": {} if lease.is_cap else lease.resources.to_shown(),
        "at_most": None if lease.elastic is None else amount_of(lease.kind, lease.elastic.most),
        "capacity": lease.capacity.to_shown(),
        "grown": _parts(lease.kind, lease.grown),
        "parts": _parts(lease.kind, lease.shares),
        "ending": ending_of(lease),
        "programs": shortened([program.label for program in lease.programs]),
        "warnings": [*lease.warnings, *notes],
        **_shown_terms(lease),
    }


def _shown_terms(lease: Lease) -> BoostTerms:
    terms = {name: getattr(lease, name) for name in SHOWN}
    return cast("BoostTerms", {name: str(term) if isinstance(term, str) else term for name, term in terms.items()})


def status_dict(leases: list[Lease], notes: Mapping[str, tuple[str, ...]]) -> BoostList:
    """Totals of active boosts per resource type, then every lease, or as many as fit into an answer."""
    boosts = [boost_dict(lease, notes.get(lease.id, ())) for lease in leases]
    return {**_summary(leases), **listed_boosts(boosts)}


def _summary(leases: list[Lease]) -> BoostTotals:
    """Totals of boosts. Leases of runs, tasks and roles are listed with them, and not counted."""
    active = [lease for lease in leases if lease.state is LeaseState.ACTIVE and lease.purpose is Purpose.BOOST]
    sums: dict[str, int] = defaultdict(int)
    for lease in active:
        sums[lease.kind] += lease.units
    return {"total_active": len(active), "resources": ResourceVector(sums).to_amounts()}


class StatusText:
    """`status_dict` as JSON text, for many boosts and many callers.

    Leases are immutable, so each is encoded once. The whole text is reused until a lease is added, removed or replaced.
    A caller that has an earlier version of the list gets what has changed since: its costs do not grow with the list.
    """

    def __init__(self) -> None:
        self._shown: dict[str, _Shown] = {}
        self._ended: dict[str, int] = {}
        """By id: the first version without that boost."""
        self._first = f"{uuid.uuid4().hex}-"
        self._version = self._oldest = 0
        """The present version, and the oldest one from which all changes are known."""
        self._of: tuple[list[Lease], dict[str, tuple[str, ...]]] = ([], {})
        self._head, self._is_cut = b"", False
        self._text: bytes | None = None
        """The text for all boosts, once it was asked for."""

    def render(self, leases: list[Lease], notes: Mapping[str, tuple[str, ...]], since: str | None = None) -> bytes:
        """The text for all boosts; with `since`, for those that changed since that version, if it is known."""
        shown = (leases, dict(notes))
        if not self._version or shown != self._of:  # quick, since unchanged leases are the same objects
            self._of, self._text = shown, None
            self._take(leases, notes)
        before = None if since is None or self._is_cut else self._number_of(since)
        if before is None:
            self._text = text = self._text or self._joined()
            return text if since is None or self._is_cut else text[:-1] + b',"version":' + self._name + b"}"
        changed = b",".join(each.text for each in self._shown.values() if each.version > before)
        ended = orjson.dumps([lease_id for lease_id, version in self._ended.items() if version > before])
        said = b'],"ended":' + ended + b',"since":' + orjson.dumps(since) + b',"version":' + self._name + b"}"
        return self._head + changed + said

    @property
    def _name(self) -> bytes:
        return orjson.dumps(f"{self._first}{self._version}")

    def _number_of(self, version: str) -> int | None:
        """The number of a version from which all changes are known; None for any other."""
        digits = version.removeprefix(self._first)
        if digits == version or not digits.isdecimal() or len(digits) > _LONGEST_NUMBER:
            return None
        return int(digits) if self._oldest <= int(digits) <= self._version else None

    def _take(self, leases: list[Lease], notes: Mapping[str, tuple[str, ...]]) -> None:
        self._version += 1
        before, self._shown = self._shown, {}
        size = 0
        for lease in leases:
            noted, entry = notes.get(lease.id, ()), before.pop(lease.id, None)
            if entry is None or entry.lease is not lease or entry.notes != noted:
                entry = _Shown(lease, noted, self._version, orjson.dumps(boost_dict(lease, noted)))
                self._ended.pop(lease.id, None)
            self._shown[lease.id] = entry
            size += len(entry.text)
        self._ended |= dict.fromkeys(before, self._version)
        while len(self._ended) > _MOST_ENDED:
            self._oldest = self._ended.pop(next(iter(self._ended)))
        self._is_cut = size > MOST_BYTES
        self._head = orjson.dumps({**_summary(leases), "cut": self._is_cut})[:-1] + b',"boosts":['

    def _joined(self) -> bytes:
        shown = list(self._shown.values())
        numbers = fitting([(each.lease.requester, len(each.text)) for each in shown])
        return self._head + b",".join(shown[number].text for number in numbers) + b"]}"


@dataclass(frozen=True, slots=True)
class _Shown:
    """A boost as it is shown, since which version of the list."""

    lease: Lease
    notes: tuple[str, ...]
    version: int
    text: bytes


def plan_dict(outlook: Outlook, now: datetime) -> Plan:
    """The content of `grid plan`."""
    ask, preemption, start = outlook.ask, outlook.preemption, outlook.expected_start
    grant = outlook.grants[0] if outlook.grants else None
    return {
        "target_node": ask.target,
        "resource_type": ask.kind,
        "amount": amount_of(ask.kind, ask.units),
        "priority": str(ask.priority),
        "team": ask.team,
        "at": instant(now),
        "fits": grant is not None,
        "source_node": None if grant is None else grant.source,
        "delivery": None if grant is None else str(grant.delivery),
        "delivery_reason": None if grant is None else grant.delivery_reason,
        "parts": _planned_parts(outlook.grants),
        "warnings": list(dict.fromkeys(warning for each in outlook.grants for warning in each.warnings)),
        "preemption": None if preemption is None else _preemption_dict(preemption),
        "ahead": outlook.ahead,
        "expected_start": None if start is None else instant(start),
        "expected_wait_s": None if start is None else round(max(0.0, (start - now).total_seconds()), 3),
        "largest_now": {
            "amount": amount_of(ask.kind, outlook.largest_now),
            "source_node": in_words(outlook.largest_sources) or None,
        },
        "team_limit": outlook.team_limit,
        "nodes": considered_dicts(ask.kind, outlook.considered),
        "summary": outlook.summary,
    }


def _planned_parts(grants: Sequence[Grant]) -> list[BoostPart]:
    return [
        {
            "source_node": grant.source,
            "amount": amount_of(grant.ask.kind, grant.ask.units),
            "resources": grant.resources.to_shown(),
            "reason": grant.why_it or grant.delivery_reason,
            "bundle": number,
        }
        for number, grant in enumerate(grants, start=1)
        if len(grants) > 1
    ]


def _parts(kind: str, shares: Iterable[Share]) -> list[BoostPart]:
    return [
        {
            "source_node": share.source,
            "amount": amount_of(kind, share.units),
            "resources": share.resources.to_shown(),
            "reason": share.reason,
            "bundle": share.bundle,
        }
        for share in shares
    ]


def considered_dicts(kind: str, reasons: Iterable[NodeReason]) -> list[NodeVerdict]:
    """Each node's verdict on a request."""
    return [
        {
            "node": reason.node,
            "verdict": str(reason.verdict),
            "detail": reason.detail,
            "could_lend": amount_of(kind, reason.could_lend),
        }
        for reason in reasons
    ]


def _preemption_dict(preemption: Preemption) -> PlannedPreemption:
    return {
        "source_node": preemption.sources[0],
        "parts": _planned_parts(preemption.grants),
        "reason": preemption.reason,
        "takes_own": preemption.takes_own,
        "delivery": str(preemption.grants[0].delivery),
        "at": instant(preemption.at),
        "back_by": instant(preemption.back_by),
        "victims": [
            {
                "boost_id": victim.grows or victim.whole_id,
                "target_node": victim.target,
                "resource_type": victim.kind,
                "amount": amount_of(victim.kind, victim.units),
                "takes": amount_of(victim.kind, preemption.takes[victim.id]),
                "priority": str(victim.priority),
                "team": victim.team,
            }
            for victim in preemption.victims
        ],
    }
