"""How long a lease may be renewed: no window that would begin on time may begin later because of it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.queue.admission import plan_queue
from distributed_grid.decide.queue.claims import above_guarantee, claim_of_promise, ordered
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.plans import RulesFor
from distributed_grid.model.requests import Occurrence, Waiting
from distributed_grid.model.teams import Teams


@dataclass(frozen=True, slots=True)
class LatestEnd:
    at: datetime
    window: Occurrence | None = None
    """The window because of which it is not later."""


def latest_end(
    lease: Lease,
    wanted: datetime,
    nodes: NodeTable,
    leases: Iterable[Lease],
    usage: Usage,
    promises: Iterable[Waiting],
    rules_for: RulesFor,
    teams: Teams,
    now: datetime,
) -> LatestEnd:
    """The latest end of a lease, up to `wanted`. A lease with a better claim than a window may last into it.

    `leases`: all of them, each lender's part by itself. `promises`: the occurrences that have not begun.
    """
    parts = tuple(leases)
    is_own = above_guarantee(lease.team, lease.kind, usage, teams) <= 0
    mine = (is_own and bool(teams.of(lease.team).guaranteed), lease.priority.rank)
    all_of_them = ordered(promises, usage, {}, teams, now, parts)

    def is_better(one: Waiting) -> bool:
        claim = claim_of_promise(one, (), parts, teams, now)
        return mine > (claim.is_guaranteed, claim.rank)

    def held_up(end: datetime) -> set[str]:
        """The windows that begin late if the lease lasts until then, and no lease yields to them."""
        then = (replace(part, expires_at=end) if part.whole_id == lease.id else part for part in parts)
        verdicts = plan_queue(all_of_them, nodes, then, usage, rules_for, now, explain=())
        return {
            each.waiting.id
            for each in verdicts
            if each.waiting.occurrence is not None
            and (each.expected_start is None or each.expected_start > each.waiting.occurrence.begin)
        }

    bounds = {one.id: one.occurrence for one in all_of_them if one.occurrence is not None and not is_better(one)}
    begins = sorted({each.begin for each in bounds.values() if lease.expires_at < each.begin < wanted}, reverse=True)
    if not any(lease.expires_at <= each.begin < wanted for each in bounds.values()):
        return LatestEnd(wanted)
    late_anyway = held_up(lease.expires_at)
    because: Occurrence | None = None
    for end in (wanted, *begins):
        more = [bounds[one] for one in held_up(end) - late_anyway if one in bounds]
        if not more:
            return LatestEnd(end, because)
        because = min(more, key=lambda each: each.begin)
    return LatestEnd(min(wanted, lease.expires_at), because)
