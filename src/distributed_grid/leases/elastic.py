"""Elastic leases in the cluster: the group of a lease has, beside its bundles, what the lease has grown by.

Growth reserves its capacity like any lease, in a group of its own. The elastic lease's group is then extended on that
node by the same amount, so that Ray's scheduler starts there what waits in the group, wherever it was submitted. A
return goes the other way: the extension shrinks as its work ends, and then the reservation is removed. So a group never
has more than is reserved for it.
"""

import asyncio
from datetime import datetime, timedelta
from typing import Final

from distributed_grid.decide.leases.elastic import above_limits, growth_of, is_left_over, parts_of, unused
from distributed_grid.decide.leases.lifecycle import release_of
from distributed_grid.execution.port import Extension, youngest_covering
from distributed_grid.leases.state import EngineContext
from distributed_grid.model.endings import EndCause, Ending
from distributed_grid.model.lease_changes import Grown, IdleChanged, Renewed
from distributed_grid.model.leases import Idle, Lease, LeaseState
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import ResourceVector, describe, total

_TRIES: Final = 10
_TRY_S: Final = 0.02


class ElasticLeases:
    """Part of the reconciler."""

    def __init__(self, parts: EngineContext) -> None:
        self._p = parts

    def turn(self) -> bool:
        """End the growth of leases that end, and renew the rest. True: the caller commits."""
        p, now = self._p, self._p.now()
        leases = {lease.id: lease for lease in p.ledger}
        changed = False
        for growth in above_limits(tuple(leases.values()), p.ledger.usage, p.teams):
            why, ending = f"team {growth.team} has reached its limit", Ending(EndCause.PREEMPTED, "grid")
            change = release_of(growth, why, now, by="grid", is_reclaimed=True, ending=ending)
            leases[growth.id] = p.ledger.apply(growth, change)
            changed = True
        for growth in [lease for lease in p.ledger if lease.grows]:
            if is_left_over(growth, leases):
                end_growth(p, growth, leases.get(growth.grows), now)
            elif growth.state is LeaseState.ACTIVE and growth.renewal_due <= now:
                p.ledger.apply(growth, Renewed(now + timedelta(seconds=growth.duration_s), growth.duration_s))
            else:
                continue
            changed = True
        return changed

    async def settle(self) -> None:
        """Give every elastic lease what its growth reserves, also after a crash; and take what belongs to none."""
        p = self._p
        if not (elastic := [lease for lease in p.ledger if lease.elastic is not None]) and not p.extended:
            return
        there = await p.applier.extensions()
        p.extended = bool(there)
        groups = {lease.held_by: lease for lease in elastic if lease.held_by is not None}
        for (source, group), extension in there.items():
            if group not in groups:
                if extension.has:
                    message = f"ended what a group without a lease had on {source}"
                    p.journal.note("unknown_group", message, node=source)
                await p.applier.end_extension(source, group)
        for group, whole in groups.items():
            await self._settle(whole, {source: there[source, at] for source, at in there if at == group})

    async def _settle(self, whole: Lease, there: dict[NodeName, Extension]) -> None:
        p = self._p
        growth = growth_of(whole, p.ledger)
        for source in {lease.source for lease in growth} | there.keys():
            here = [lease for lease in growth if lease.source == source and lease.state is LeaseState.ACTIVE]
            shown = there.get(source, Extension(ResourceVector(), ResourceVector()))
            is_returning = any(lease.source == source and lease.is_winding_down for lease in growth)
            was_left = shown.shrinks and not is_returning  # by a controller that has ended
            if was_left or shown.has != total([lease.resources for lease in here]):
                await p.applier.extend(whole, source)
            self._mark_unused(here, shown.in_use)
        count_growth(p, whole)

    def _mark_unused(self, growth: list[Lease], in_use: ResourceVector) -> None:
        """What no work uses yields first. That is known only here, so no restart keeps it."""
        spare, now = unused(growth, in_use), self._p.now()
        for lease in growth:
            if (lease.id in spare) != (lease.idle is not None):
                self._p.ledger.apply(lease, IdleChanged(Idle(now, True) if lease.id in spare else None))


def end_growth(p: EngineContext, growth: Lease, whole: Lease | None, now: datetime) -> None:
    """Let growth wind down because its elastic lease ends, no later than that lease. The caller commits."""
    why, ending, grace_s = "its elastic lease has ended", Ending(EndCause.RELEASED, "grid"), 0.0
    if whole is not None and whole.is_winding_down:
        why, ending = "its elastic lease ends", whole.ending or ending
        grace_s = max(0.0, ((whole.deadline or now) - now).total_seconds())
    is_reclaimed = whole is not None and whole.is_reclaimed
    change = release_of(growth, why, now, by="grid", grace_s=grace_s, is_reclaimed=is_reclaimed, ending=ending)
    p.ledger.apply(growth, change)
    p.something_changed()


def count_growth(p: EngineContext, whole: Lease) -> None:
    """Let an elastic lease show what it has grown by."""
    current = p.ledger.get(whole.id)
    if current is None or current.elastic is None:
        return
    grown = parts_of(growth_of(current, p.ledger))
    if grown == current.grown:
        return
    before = current.capacity
    after = p.ledger.apply(current, Grown(grown))
    more = after.capacity[after.kind] - before[after.kind]
    if not more:
        return
    event = how = "grew" if more > 0 else "shrank"
    message = f"{after.describe()}: it {how} to {describe(after.kind, after.capacity[after.kind])}"
    p.journal.note(event, message, lease=after, node=after.target, capacity=after.capacity.to_shown())


async def growth_began(p: EngineContext, growth: Lease) -> None:
    """Give an elastic lease what a new step reserves."""
    if (whole := p.ledger.get(growth.grows)) is not None and whole.state is LeaseState.ACTIVE:
        p.extended = True
        await p.applier.extend(whole, growth.source)
        count_growth(p, whole)


async def is_growth_given_back(p: EngineContext, growth: Lease) -> bool:
    """Whether the work of an elastic lease has left what a step that winds down reserves. At the step's deadline, the
    youngest work there is ended."""
    whole = p.ledger.get(growth.grows)
    if whole is None or whole.held_by is None or growth.state is LeaseState.LOST:
        return True  # the reconciler ends what is left of the group there
    reached = await p.applier.extend(whole, growth.source)
    count_growth(p, whole)
    if reached is None:
        return False
    if _may_go(p, whole, growth, reached):
        p.notes.pop(whole.id, None)
        return True
    left_s = ((growth.deadline or p.now()) - p.now()).total_seconds()
    if left_s > 0:
        p.notes[whole.id] = (
            f"work uses {describe(growth.kind, growth.units)} on {growth.source} that a request "
            f"waits for; it is terminated in {left_s:.0f} s",
        )
        return False
    await p.applier.extend(whole, growth.source, insists=True)
    await _end_youngest(p, whole, growth, reached)
    for _ in range(_TRIES):
        reached = await p.applier.extend(whole, growth.source, insists=True)
        if reached is not None and _may_go(p, whole, growth, reached):
            p.notes.pop(whole.id, None)
            return True
        await asyncio.sleep(_TRY_S)
    return False


def _others(p: EngineContext, whole: Lease, growth: Lease) -> ResourceVector:
    """What the other steps on the same node reserve."""
    there = (each for each in growth_of(whole, p.ledger) if each.source == growth.source and each.id != growth.id)
    return total([each.resources for each in there])


def _may_go(p: EngineContext, whole: Lease, growth: Lease, reached: ResourceVector) -> bool:
    """Whether the rest of the growth on its node covers what the group still has there."""
    return _others(p, whole, growth).covers(reached)


async def _end_youngest(p: EngineContext, whole: Lease, growth: Lease, reached: ResourceVector) -> None:
    over = reached[growth.kind] - _others(p, whole, growth)[growth.kind]
    victims = youngest_covering(await p.applier.holders_in_extension(whole, growth.source), growth.kind, over)
    await p.applier.kill(growth.source, victims)
    for victim in victims:
        message = f"{victim.describe()}: ended to take back {describe(growth.kind, growth.units)}"
        p.journal.note("killed", message, lease=whole, node=growth.source)


async def end_all_growth(p: EngineContext, whole: Lease) -> bool:
    """Let all growth of a lease that ends wind down first; whether it is gone."""
    now, growth = p.now(), growth_of(whole, p.ledger)
    for lease in growth:
        if not lease.is_winding_down and not lease.is_granting:
            end_growth(p, lease, whole, now)
    return not growth
