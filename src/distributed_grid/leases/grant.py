"""One grant: planned, written, delivered; or undone, if the source cannot give it after all.

The intent is on disk before the cluster changes, the outcome after.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from distributed_grid.decide.capacity.lending import counter_offer, plan_parts
from distributed_grid.decide.leases.lifecycle import lease_from, may_join, release_of, replacement_of
from distributed_grid.decide.queue.admission import Verdict
from distributed_grid.decide.queue.answers import considered
from distributed_grid.errors import NoCapacity, UnknownResource
from distributed_grid.faults import Point, fault_point
from distributed_grid.leases.applier import GROUP_S
from distributed_grid.leases.elastic import growth_began
from distributed_grid.leases.rules import rules_for
from distributed_grid.leases.state import EngineContext
from distributed_grid.leases.view import considered_dicts
from distributed_grid.model.endings import EndCause, Ending
from distributed_grid.model.lease_changes import Delivered, Interrupted, NodeLost, NotDelivered, Returned, shrunk
from distributed_grid.model.leases import Lease, LeaseState, Purpose
from distributed_grid.model.nodes import NodeName, NodeTable, connected, node_named
from distributed_grid.model.plans import Grant, Refused
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.requests import Ask, Waiting, command
from distributed_grid.model.resources import BUILT_IN, describe, did_you_mean_kind
from distributed_grid.model.times import instant, span, stamp
from distributed_grid.model.validators import LONGEST_GRANT_WAIT_S

if TYPE_CHECKING:
    from distributed_grid.wire.queue import NodeVerdict

_MOST_REASONS: Final = 50
_MARGIN_S: Final = 30.0
_A_WHILE_S: Final = 300.0
_NEVER: Final = "Waiting does not help. To see the limits of nodes and teams: grid resource-sharing status"
_WITHOUT_HOPE: Final = {
    Purpose.RUN: "Waiting does not help: the nodes can never lend that, not even together. Ask for less with --cpus, "
    "--gpus, --memory or --nodes; the limits of nodes and teams: grid resource-sharing status"
}


def new_id() -> str:
    return str(uuid.uuid4())


def make_plan(p: EngineContext, ask: Ask, nodes: NodeTable) -> tuple[Grant, ...] | Refused:
    """The lender for a request, or several, or why each node refuses; raises `NotFound` if a name is wrong."""
    check_names(ask, nodes)
    return plan_parts(ask, nodes, p.ledger.usage, rules_for(p, ask))


def check_names(ask: Ask, nodes: NodeTable) -> None:
    """Raise `NotFound` if the target is unknown or not connected, or the source is unknown."""
    connected(nodes, ask.target)
    for kind, _ in ask.asked:
        has = {name for node in nodes.values() for name in node.base}
        if kind not in (*BUILT_IN, *has):
            raise UnknownResource(
                f"No node has a resource {kind!r}{did_you_mean_kind(kind, has)}",
                try_next=f"Kinds: {', '.join([*BUILT_IN, *sorted(has - {*BUILT_IN})])}",
            )
    for source in ask.sources:
        node_named(nodes, source, is_source=True)


def refusal(verdict: Verdict, now: datetime) -> NoCapacity:
    """The error for a request that is not met: the message users know, the queue's verdict, and a reason per node."""
    refused, start = verdict.refused, verdict.expected_start
    because = [verdict.reason if start is None else f"{verdict.reason}; expected in {span(_left_s(start, now))}"]
    if refused is not None:
        limit = refused.team_limit
        if limit is not None and limit.detail not in verdict.reason:
            because.append(f"{limit.detail} [{limit.code}]")
        shown = (r for r in refused.refusals if r.code is not RefusalCode.NOT_THE_SOURCE)
        because += [f"{r.node}: {r.detail} [{r.code}]" for r in shown]
    error = NoCapacity(
        "No nodes have sufficient available resources", because=because, try_next=_what_would_help(verdict, now)
    )
    error.expected_start = None if start is None else instant(start)
    return error


def _what_would_help(verdict: Verdict, now: datetime) -> str:
    """Advice for the caller: ask for less, if that is free now; wait, if that helps; or stay in the queue."""
    ask, less = verdict.waiting.ask, None if verdict.refused is None else counter_offer(verdict.refused)
    if verdict.is_hopeless:
        return less or _WITHOUT_HOPE.get(ask.purpose, _NEVER)
    helps = [] if less is None else [less]
    if (shorter := _for_less_time(verdict, now)) is not None:
        helps.insert(0, shorter)
    if (minutes := _minutes_to_wait(verdict, now)) is not None:
        helps.append(f"wait for it with --wait {minutes}m")
    if (in_queue := command(ask, queued=True)) is not None:
        helps.append(f"let it wait in the queue: {in_queue}")
    said = "; or ".join(helps) or "To see what is free and what waits: grid cluster status"
    return said[0].upper() + said[1:]


def _for_less_time(verdict: Verdict, now: datetime) -> str | None:
    """The same for as long as no window needs it, with some time to make the request."""
    if verdict.may_last_until is None:
        return None
    left_s = _left_s(verdict.may_last_until, now)
    length_s = (left_s // 60 - 1) * 60 if left_s > _A_WHILE_S else left_s * 0.8 // 1
    how = command(replace(verdict.waiting.ask, duration_s=length_s)) or "request it for that long"
    return f"it can be lent for {span(length_s)}: {how}" if length_s > 0 else None


def _minutes_to_wait(verdict: Verdict, now: datetime) -> int | None:
    """A wait that is long enough by the estimate; None if there is no such wait, or the queue is the better advice.

    A request that has already waited for about as long gets no advice to wait a little longer. A boost is better off in
    the queue, which has no time limit. A run cannot stay there, so its advice is to wait for as long again and the time
    left.
    """
    waiting, start = verdict.waiting, verdict.expected_start
    if start is None:
        return None
    needed_s = _left_s(start, now) + _MARGIN_S
    waited_s = (now - waiting.since).total_seconds()
    if waited_s >= needed_s / 2:
        if waiting.ask.purpose is Purpose.BOOST:
            return None
        needed_s += waited_s
    minutes = math.ceil(needed_s / 60)
    return minutes if minutes * 60 <= LONGEST_GRANT_WAIT_S else None


def _left_s(until: datetime, now: datetime) -> float:
    return max(0.0, (until - now).total_seconds())


def begin_grant(p: EngineContext, grants: Sequence[Grant], nodes: NodeTable, lease_id: str | None = None) -> Lease:
    """Put a plan into the ledger, with all its parts: from now on no other request gets this capacity. `carry_out` must
    follow.

    There must be no await between making the plan from these nodes and this call; otherwise another request could take
    the same capacity.
    """
    sharing = p.config.resource_sharing
    lease = lease_from(
        grants,
        lease_id or new_id(),
        p.now(),
        grace_s=sharing.grace_seconds,
        on_grace_end=sharing.on_grace_end,
    )
    p.reasons[lease.id] = _reasons(p, lease, grants[0].ask, nodes)
    p.applier.unwritten.add(lease.id)
    return p.ledger.add(lease)


async def carry_out(p: EngineContext, lease: Lease, group_s: int = GROUP_S) -> Lease | None:
    """Deliver a grant that was begun; None if the source could not give the capacity after all."""
    try:
        fault_point(Point.GRANT_PLANNED)
        try:
            await asyncio.gather(p.commit(), p.applier.look_ahead(lease))
        except BaseException:
            p.ledger.forget(lease)  # nothing has changed in the cluster yet
            p.commit_soon()
            raise
        p.applier.unwritten.discard(lease.id)
        fault_point(Point.GRANT_WRITTEN)
        granted = await deliver(p, lease, group_s)
        fault_point(Point.GRANT_DELIVERED)
        p.commit_soon()
    finally:
        p.applier.unwritten.discard(lease.id)
        leave_off(p, lease)
        p.reasons.pop(lease.id, None)
        p.something_was_granted()
    return granted


def leave_off(p: EngineContext, lease: Lease) -> None:
    """A grant that is neither complete nor undone by now is left to the reconciler."""
    if p.ledger.is_being_granted(lease.id):
        p.ledger.apply(lease, Interrupted())


def _reasons(p: EngineContext, lease: Lease, ask: Ask, nodes: NodeTable) -> list[NodeVerdict]:
    """Why each node, or each of the first of many, lends or does not. This cannot be reconstructed later."""
    ask = replace(ask, units=lease.units)
    some = NodeTable(nodes[name] for name in (*list(nodes)[:_MOST_REASONS], *lease.sources, ask.target))
    found = considered(ask, some, p.ledger.usage, rules_for(p, ask), chosen=lease.sources)
    return considered_dicts(ask.kind, found)


async def deliver(p: EngineContext, lease: Lease, group_s: int = GROUP_S) -> Lease | None:
    """Deliver a granting lease in the cluster. It becomes active, or the change is undone: None.

    If the lease was released meanwhile, it continues to wind down.
    """
    group: str | None = None
    if lease.delivery.moves_totals:
        is_delivered = (await p.applier.converge()).delivered(lease)
    else:
        group = await p.applier.reserve(lease, group_s)
        is_delivered = group is not None
    if p.ledger.get(lease.id) is None:
        if group is not None:
            await p.applier.remove_group(lease.delivery, group, in_use=False)
        return None
    if not is_delivered:
        await _undo(p, lease)
        return None
    active = p.ledger.apply(lease, Delivered(group))
    if active.state is LeaseState.ACTIVE:
        p.journal.note(
            "granted",
            f"{active.describe()} until {stamp(active.expires_at)}",
            lease=active,
            node=active.target,
            who=active.requester,
            considered=p.reasons.get(active.id, []),
        )
        if active.grows:
            await growth_began(p, active)
    return join_if_due(p, active)


def join_if_due(p: EngineContext, lease: Lease) -> Lease:
    """Make a lease that replaces a lost part a part of its boost, or return it if that boost has ended. The caller
    commits."""
    if not lease.joins or lease.state is not LeaseState.ACTIVE:
        return lease
    whole = p.ledger.get(lease.joins)
    if whole is None or not may_join(lease, whole):
        change = release_of(lease, "the boost that it was for has ended", p.now(), by="grid", grace_s=0.0)
        p.something_changed()
        return p.ledger.apply(lease, change)
    joined = p.ledger.join(lease, whole)
    p.journal.note("part_replaced", f"{joined.describe()}: {lease.source} lends a part now", lease=joined)
    p.commit_soon()
    return joined


def lose_part(p: EngineContext, lease: Lease, source: NodeName) -> bool:
    """Let a boost lose the part of a lender that is gone. True: a request for a replacement waits. The caller commits.

    What a transfer lost is settled like any lost lease. A group cannot be mended: work in its other bundles goes on.
    """
    lost = [part for part in lease.parts if part.source == source]
    units = sum(part.units for part in lost)
    why = f"{source} left the cluster with {describe(lease.kind, units)} of this boost"
    if not lease.delivery.can_split:
        left = p.ledger.apply(lease, shrunk(lease, source, why))
        p.journal.note("part_lost", f"{left.describe()}: {why}", lease=left, node=source)
        return False
    left, gone = p.ledger.split(lease, units, new_id(), source=source)
    p.ledger.apply(gone, NodeLost(why, p.now(), Ending(EndCause.LOST, "grid")))
    message = f"{left.describe()}: {why}; the same amount is requested from other nodes"
    p.journal.note("part_lost", message, lease=left, node=source)
    waiting = Waiting(new_id(), replacement_of(lost[0], left, p.now()), p.now(), is_durable=True)
    p.sharing.waiting[waiting.id] = waiting
    return True


async def _undo(p: EngineContext, lease: Lease) -> None:
    undone = lease
    if p.ledger.is_being_granted(lease.id):
        undone = p.ledger.apply(lease, NotDelivered("other work took the capacity first", p.now()))
    gone = not undone.delivery.moves_totals or (await p.applier.converge()).returned(undone)
    if gone and p.ledger.get(lease.id) is not None:
        p.ledger.apply(lease, Returned())
    p.journal.note(
        "not_granted",
        f"{lease.describe()}: other work took the capacity first",
        lease=undone,
        who=lease.requester,
    )
