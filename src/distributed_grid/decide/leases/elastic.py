"""Elastic leases: how they grow while capacity is idle, and what of their growth ends.

An elastic lease has its least amount for as long as it lasts. It grows in steps, and each step is a lease of its own
(`Terms.grows`) that yields to every request. The steps wait behind the whole queue, so growth takes only what no
request waits for.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.model.leases import Lease, LeaseState, Share
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import ResourceVector, total
from distributed_grid.model.teams import Teams

GROWTH_LASTS_S: Final = 120.0
"""Growth is renewed while its elastic lease is there."""


def growth_of(lease: Lease, leases: Iterable[Lease]) -> tuple[Lease, ...]:
    """The leases that add to an elastic lease, until they are back."""
    return tuple(each for each in leases if each.grows == lease.id and each.holds_capacity)


def wanted_growth(leases: Collection[Lease]) -> tuple[Ask, ...]:
    """The next steps of all elastic leases, in turns: the higher priority first, then the one that has grown less."""
    steps: list[tuple[int, int, datetime, str, Ask]] = []
    grown: dict[str, list[int]] = {}
    for lease in leases:
        if lease.grows and not lease.is_winding_down:
            grown.setdefault(lease.grows, []).append(lease.units)
    for lease in leases:
        if lease.elastic is None or lease.state is not LeaseState.ACTIVE or lease.notice is not None:
            continue
        has = grown.get(lease.id, [])
        # The mark of a limit without a reservation is no capacity: its work gets the whole limit.
        missing = lease.elastic.most - (0 if lease.is_cap else lease.units) - sum(has)
        number = len(has)
        while missing > 0:
            units = min(lease.step, missing)
            steps.append((-lease.priority.rank, number, lease.allocated_at, lease.id, next_step(lease, units)))
            missing, number = missing - units, number + 1
    return tuple(step[-1] for step in sorted(steps, key=lambda step: step[:-1]))


def next_step(lease: Lease, units: int) -> Ask:
    """The request for so much more of an elastic lease. What came along with the lease comes along in proportion."""
    elastic = lease.elastic
    assert elastic is not None
    others = () if lease.is_cap else tuple(item for item in lease.resources.items() if item[0] != lease.kind)
    return replace(
        replace(Ask.again(lease), along=others).part(units),
        sources=elastic.sources,
        own_too=elastic.own_too,
        delivery=str(lease.delivery),
        duration_s=GROWTH_LASTS_S,
        reclaim_hook=None,
        grows=lease.id,
    )


def is_left_over(growth: Lease, leases: Mapping[str, Lease]) -> bool:
    """Whether growth ends because its elastic lease does."""
    whole = leases.get(growth.grows)
    return not growth.is_winding_down and (whole is None or whole.is_winding_down)


def above_limits(leases: Collection[Lease], usage: Usage, teams: Teams) -> tuple[Lease, ...]:
    """The growth with which teams have more than they may: requests were granted regardless of it. The latest ends
    first."""
    if not any(team.borrowing_limit for team in teams.values()):
        return ()
    having = usage.with_growth()
    over = []
    for growth in sorted(leases, key=lambda lease: (lease.allocated_at, lease.id), reverse=True):
        if not growth.grows or growth.is_winding_down:
            continue
        team = teams.of(growth.team)
        mosts = ((kind, team.most(kind)) for kind in growth.resources)
        if any(most is not None and having.held(team.name, kind) > most for kind, most in mosts):
            over.append(growth)
            having.count(replace(growth, grows=""), -1)
    return tuple(over)


def parts_of(growth: Iterable[Lease]) -> tuple[Share, ...]:
    """What each lender has added to an elastic lease, by name."""
    of: dict[NodeName, list[Lease]] = {}
    for lease in growth:
        if lease.state is LeaseState.ACTIVE:
            of.setdefault(lease.source, []).append(lease)
    return tuple(
        Share(source, sum(each.units for each in of[source]), total([each.resources for each in of[source]]))
        for source in sorted(of)
    )


def unused(growth: Collection[Lease], in_use: ResourceVector) -> frozenset[str]:
    """By id, the growth on one node that its work does not use: all steps there serve any work, so only the amount
    counts. The latest are unused first."""
    active = sorted((lease for lease in growth if lease.state is LeaseState.ACTIVE), key=lambda lease: lease.id)
    latest_first = sorted(active, key=lambda lease: lease.allocated_at, reverse=True)
    left, found = total([lease.resources for lease in active]), set[str]()
    for lease in latest_first:
        if (left - lease.resources).covers(in_use):
            left -= lease.resources
            found.add(lease.id)
    return frozenset(found)
