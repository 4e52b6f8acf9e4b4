"""What a team may have: its own guarantee, its limit above that, and what others keep for themselves."""

from distributed_grid.decide.loans import Loans
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.resources import ResourceVector, amount_of, describe
from distributed_grid.model.teams import Teams


def why_over_limit(team: str, need: ResourceVector, nodes: NodeTable, loans: Loans, teams: Teams) -> str | None:
    """Why a team may not have this on top of what it has; None if it may."""
    if not teams:
        return None
    return why_above_its_most(team, need, loans, teams) or why_kept_by_others(team, need, nodes, loans, teams)


def why_above_its_most(team: str, need: ResourceVector, loans: Loans, teams: Teams) -> str | None:
    """It would have more than its own limit."""
    own = teams.of(team)
    for kind, units in need.items():
        held, most = loans.held(team, kind), own.most(kind)
        if most is not None and held + units > most:
            return (
                f"team {own.name} has {amount_of(kind, held)} of at most {describe(kind, most)}, "
                f"{amount_of(kind, units)} asked"
            )
    return None


def why_kept_by_others(team: str, need: ResourceVector, nodes: NodeTable, loans: Loans, teams: Teams) -> str | None:
    """It would have of what other teams keep for themselves, used or not."""
    if not teams.closed:
        return None
    own = teams.of(team)
    for kind, units in need.items():
        keeping = teams.keeping(kind)
        if not keeping or loans.held(team, kind) + units <= own.guaranteed[kind]:
            continue
        common = nodes.lendable(kind) - loans.held_by_all(kind)
        if units <= common - teams.kept_in_all(kind):
            continue  # as much is left though they used nothing of theirs
        kept = sum(max(0, most - loans.held(name, kind)) for name, most in keeping if name != team)
        left = common - kept
        if kept and units > left:
            return (
                f"other teams keep {describe(kind, kept)} for themselves: {amount_of(kind, max(0, left))} left, "
                f"{amount_of(kind, units)} asked"
            )
    return None
