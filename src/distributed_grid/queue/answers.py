"""The answers of `grid plan` and `grid why`: from the same code that decides, without taking any action."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from distributed_grid import threads
from distributed_grid.decide.queue.answers import Outlook, look_ahead, refused_by
from distributed_grid.errors import RequestNotFound
from distributed_grid.leases.grant import check_names
from distributed_grid.leases.rules import numbers, rules_of_one_look
from distributed_grid.leases.state import VIEW_LAG, EngineContext
from distributed_grid.leases.view import considered_dicts, ending_of, plan_dict
from distributed_grid.model.endings import what_happens_then, why_it_ends
from distributed_grid.model.leases import Cause, Lease
from distributed_grid.model.requests import Ask, Waiting
from distributed_grid.model.resources import describe
from distributed_grid.model.times import instant, parse_instant, stamp
from distributed_grid.queue.queue import Queue
from distributed_grid.queue.service import BoostService
from distributed_grid.store.audit_log import Wanted, id_of

if TYPE_CHECKING:
    from distributed_grid.wire.audit import Entry
    from distributed_grid.wire.queue import NodeVerdict, Plan, Why

_SHOWN: Final = ("granted", "queued", "renewed", "reclaim_asked", "checkpointed", "release_asked", "rebalanced")


async def plan_answer(p: EngineContext, queue: Queue, ask: Ask) -> Plan:
    """Predict what would happen to this request if it were made now; raises the same errors as the request."""
    await queue.check_open()
    outlook = await _outlook(p, queue, ask)
    unseen_s = (p.last_change + VIEW_LAG - p.now()).total_seconds()
    if not outlook.grants and unseen_s > 0:  # a request would not be refused by a view that may be old, either
        await asyncio.sleep(unseen_s)
        outlook = await _outlook(p, queue, ask)
    if outlook.grants:
        await p.check_writable()  # a request is written first: an unwritable disk refuses both
    return plan_dict(outlook, p.now())


async def _outlook(p: EngineContext, queue: Queue, ask: Ask) -> Outlook:
    nodes = await p.look_to_decide()
    check_names(ask, nodes)
    return look_ahead(
        ask,
        nodes,
        p.ledger.parts(),
        p.ledger.usage,
        (*p.sharing.waiting.values(), *queue.windows.promised(ask.duration_s)),
        p.sharing.accounts,
        rules_of_one_look(p),
        numbers(p),
        p.now(),
        expected_sources=queue.expected_sources,
    )


async def why_answer(p: EngineContext, service: BoostService, prefix: str) -> Why:
    """Why a request waits now; or why a boost is as it is, from the time of its grant."""
    try:
        found = service.find(prefix)
    except RequestNotFound as error:
        return await _ended(p, prefix, error)
    if isinstance(found, Waiting):
        return await _why_it_waits(p, service.queue, found)
    return await _why_it_is_so(p, found)


async def _why_it_waits(p: EngineContext, queue: Queue, waiting: Waiting) -> Why:
    verdict = queue.verdict_now(waiting, await p.look_to_decide())
    start = None if verdict is None else verdict.expected_start
    ask = waiting.ask
    task = [f"it waits for the task {ask.label}"] if ask.cause is Cause.SCHEDULED else []
    return {
        "id": waiting.id,
        "kind": "request",
        "state": "waiting",
        "summary": "it has already been answered" if verdict is None else verdict.reason,
        "facts": [f"{ask.describe()}, priority {ask.priority}, team {ask.team}", *task],
        "nodes": [] if verdict is None else considered_dicts(ask.kind, refused_by(verdict)),
        "expected_start": None if start is None else instant(start),
        "ended_at": None,
    }


async def _why_it_is_so(p: EngineContext, lease: Lease) -> Why:
    entries = await threads.READING.run(p.journal.recorded, Wanted(boost=lease.id), 100)
    granted = next((entry for entry in entries if entry["event"] == "granted"), {})
    facts = [
        f"{lease.describe()}, priority {lease.priority}, until {_end_of(lease)}",
        f"{lease.cause}, by {lease.requester or 'an unknown caller'} of team {lease.team}",
        *_its_growth(lease),
        *_its_return(lease),
    ]
    return {
        "id": lease.id,
        "kind": "boost",
        "state": lease.state.shown,
        "summary": f"{lease.delivery}: {lease.delivery_reason}",
        "facts": [*facts, *_story(entries), *p.notes.get(lease.id, ())],
        "nodes": cast("list[NodeVerdict]", granted.get("considered", [])),
        "expected_start": None,
        "ended_at": None,
    }


def _its_growth(lease: Lease) -> list[str]:
    if lease.elastic is None:
        return []
    grown = [f"{describe(lease.kind, share.units)} from {share.source}" for share in lease.grown]
    has = f"it has {describe(lease.kind, lease.capacity[lease.kind])} now"
    if not grown:
        return [f"{has}: nothing more is idle that no request waits for"]
    return [f"{has}: it has grown by {', '.join(grown)}, and yields that to any request that waits"]


def _end_of(lease: Lease) -> str:
    if not lease.is_winding_down or lease.deadline is None:
        return stamp(lease.expires_at)
    return "its work ends" if lease.at_deadline.only_waits else stamp(lease.deadline)


def _its_return(lease: Lease) -> list[str]:
    """By whom the boost is asked for, for whom, and what happens when."""
    if (ending := ending_of(lease)) is None:
        return []
    until = "" if lease.deadline is None else f"; {what_happens_then(ending, stamp(lease.deadline))}"
    return [f"is being returned: {why_it_ends(ending)}{until}"]


async def _ended(p: EngineContext, prefix: str, not_found: RequestNotFound) -> Why:
    """A boost that has ended, or a request that was withdrawn, from the audit log."""
    entries = await threads.READING.run(p.journal.recorded, Wanted(boost=prefix.strip()), 100)
    ids = {id_of(entry) for entry in entries}
    if len(ids) != 1:
        raise not_found
    granted = next((entry for entry in entries if entry["event"] == "granted"), {})
    withdrawn = entries[-1]["event"] in ("queued", "unqueued")  # it never became a boost
    return {
        "id": ids.pop(),
        "kind": "request" if withdrawn else "boost",
        "state": "withdrawn" if withdrawn else str(entries[-1].get("state", "released")),
        "summary": str(entries[-1]["message"]),
        "facts": _story(entries),
        "nodes": cast("list[NodeVerdict]", granted.get("considered", [])),
        "expected_start": None,
        "ended_at": instant(parse_instant(str(entries[-1]["at"]))),
    }


def _story(entries: Sequence[Entry]) -> list[str]:
    """Its events, in order."""
    shown = (entry for entry in entries if entry["event"] in _SHOWN)
    return [f"{stamp(parse_instant(str(entry['at'])))}  {entry['event']}: {entry['message']}" for entry in shown]
