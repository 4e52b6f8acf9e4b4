"""Checks of what a caller may change. A refusal is raised, and recorded in the audit log with the caller's name."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from distributed_grid.config import CallerLimits
from distributed_grid.decide.leases.ownership import (
    Owned,
    check_may_change,
    check_priority,
    may_see,
    owned_boost_dict,
    owned_lease,
)
from distributed_grid.errors import AccessDenied, BoostNotFound, TooManyRequests
from distributed_grid.leases.state import EngineContext
from distributed_grid.model.leases import Lease
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.principals import Principal
from distributed_grid.queue.service import BoostService


def check_change(p: EngineContext, caller: Principal, thing: Owned, doing: str) -> None:
    """Raise `NotOwner` unless the caller may change this. `doing`: what the caller wants, for the audit log."""
    with _refusals_noted(p, caller, doing, node=next(iter(thing.lenders), None)):
        check_may_change(caller, thing, p.config.owners_of(*thing.lenders))


def seen_by(p: EngineContext, caller: Principal) -> Callable[[Lease], bool]:
    """Which leases a caller may see."""
    return lambda lease: may_see(caller, owned_lease(lease), p.config.owners_of(*lease.sources))


def own_boost(p: EngineContext, caller: Principal, boost_id: str, doing: str) -> Lease:
    """The boost with this id, or the only one whose id starts with it, if the caller may change it."""
    lease = p.ledger.find(boost_id, seen_by(p, caller))
    with _refusals_noted(p, caller, doing, lease=lease):
        check_may_change(caller, owned_lease(lease), p.config.owners_of(*lease.sources))
    return lease


def check_asks_for(p: EngineContext, caller: Principal, priority: AllocationPriority, doing: str) -> None:
    """Raise `PriorityNotAllowed` if the caller may not use this priority."""
    with _refusals_noted(p, caller, doing):
        check_priority(caller, priority, p.teams)


def check_room(p: EngineContext, most: CallerLimits, caller: Principal) -> None:
    """Raise `TooManyRequests` if the caller is at its limits, which keep one user from making others' answers grow."""
    if caller.token_id is None:
        return
    held = sum(lease.requester == caller.name and not lease.grows for lease in p.ledger)
    waits = sum(each.ask.requester == caller.name for each in p.sharing.waiting.values())
    queued = {each.ask.label for each in p.sharing.waiting.values() if each.is_for_a_task}
    tasks = sum(task.who == caller.name for task in p.sharing.scheduling.waiting if task.id not in queued)
    for count, limit, what in ((held, most.boosts, "boosts"), (waits + tasks, most.waiting, "waiting requests")):
        if count >= limit:
            raise TooManyRequests(
                f"{caller.name} already has {count} {what}, the maximum for a user",
                try_next=f"Release some, or raise limits.{'boosts' if what == 'boosts' else 'waiting'} "
                "in the configuration.",
            )


async def check_past_boost(
    p: EngineContext, service: BoostService, caller: Principal, boost_id: str, doing: str
) -> None:
    """Like `check_change`, for a boost that may have ended recently: the audit log records its owner."""
    try:
        thing = owned_lease(p.ledger.find(boost_id, seen_by(p, caller)))
    except BoostNotFound:
        ended = await service.released_before(boost_id)
        if ended is None:
            raise
        thing = owned_boost_dict(ended)
    check_change(p, caller, thing, doing)


@contextmanager
def _refusals_noted(
    p: EngineContext, caller: Principal, doing: str, *, lease: Lease | None = None, node: str | None = None
) -> Iterator[None]:
    try:
        yield
    except AccessDenied as error:
        message = f"{doing}: {error.message}"
        p.journal.note("access_refused", message, lease=lease, node=node, who=caller.name, code=error.code)
        raise
