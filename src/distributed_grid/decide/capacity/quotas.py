"""Quotas: a team's own guarantee, its limit above that, and what other teams withhold."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.plans import TeamLimit
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import ResourceVector, amount_of, describe
from distributed_grid.model.teams import Team, Teams


def why_over_limit(ask: Ask, need: ResourceVector, nodes: NodeTable, usage: Usage, teams: Teams) -> TeamLimit | None:
    """Why a team may not have this on top of what it holds; None if it may. `need` includes companions."""
    if not teams:
        return None
    return why_above_its_most(ask, need, usage, teams) or why_withheld_by_others(ask, need, nodes, usage, teams)


def limited(ask: Ask, need: ResourceVector, own: Team, held: Callable[[str], int]) -> ResourceVector:
    """The part of a need that counts against limits.

    All of it counts, except the companions of a request within its team's guarantee: these are guaranteed with it.
    Otherwise the CPU of a guaranteed GPU would keep the team from that GPU.
    """
    comes_along = len(need) > len(ask.asked)
    return ResourceVector(dict(ask.asked)) if comes_along and is_within(ask, own, held) else need


def why_above_its_most(ask: Ask, need: ResourceVector, usage: Usage, teams: Teams) -> TeamLimit | None:
    """Why the team would exceed its own limit; None if it would not."""
    own = teams.of(ask.team)
    if not own.borrowing_limit:
        return None
    for kind, units in limited(ask, need, own, partial(usage.held, own.name)).items():
        held, most = usage.held(own.name, kind), own.most(kind)
        if most is not None and held + units > most:
            facts = {"team": own.name, "held": amount_of(kind, held), "limit": describe(kind, most)}
            return _limit(RefusalCode.TEAM_LIMIT_REACHED, kind, units, facts)
    return None


def why_withheld_by_others(
    ask: Ask, need: ResourceVector, nodes: NodeTable, usage: Usage, teams: Teams
) -> TeamLimit | None:
    """Why the team would take what other teams withhold, used or not; None if it would not."""
    if not teams.closed:
        return None
    own = teams.of(ask.team)
    for kind, units in from_the_common_part(ask, need, own, teams, usage):
        withheld = teams.withheld_by_team(kind)
        common = nodes.shareable(kind) - usage.held_by_all(kind)
        if units <= common - teams.withheld_in_all(kind):
            continue  # enough is left even if they used nothing of theirs
        unused = sum(max(0, most - usage.held(name, kind)) for name, most in withheld if name != own.name)
        left = common - unused
        if unused and units > left:
            facts = {"kept": describe(kind, unused), "left": amount_of(kind, max(0, left))}
            return _limit(RefusalCode.KEPT_FOR_TEAMS, kind, units, facts)
    return None


def _limit(code: RefusalCode, kind: str, units: int, facts: Mapping[str, object]) -> TeamLimit:
    return TeamLimit(code, code.message({**facts, "asked": f"{amount_of(kind, units)} requested"}))


def from_the_common_part(
    ask: Ask, need: ResourceVector, own: Team, teams: Teams, usage: Usage
) -> Iterator[tuple[str, int]]:
    """The amounts that the request takes from the part that no team withholds, by kind.

    Of kinds that no team withholds, and within its team's guarantee, it takes none.
    """
    for kind, units in limited(ask, need, own, partial(usage.held, own.name)).items():
        if teams.withheld_by_team(kind) and usage.held(own.name, kind) + units > own.guaranteed[kind]:
            yield kind, units


def is_within(ask: Ask, team: Team, held: Callable[[str], int]) -> bool:
    """Whether all that is asked for is within a team's guarantee, on top of what the team holds of each kind."""
    return all(held(kind) + units <= team.guaranteed[kind] for kind, units in ask.asked)
