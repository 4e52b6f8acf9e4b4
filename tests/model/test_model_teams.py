"""Teams: what each may have, and what it keeps."""

import pytest
from builders import amounts, cpu, team

from distributed_grid.model.resources import CPU, GPU, MEMORY
from distributed_grid.model.teams import DEFAULT_TEAM, Team, Teams


@pytest.mark.parametrize(
    ("one", "most"),
    [
        (Team("ml"), None),
        (Team("ml", cpu(4)), None),
        (Team("ml", cpu(4), {CPU: 20_000}), 60_000),
        (Team("ml", cpu(4), {CPU: 0}), 40_000),
        (Team("ml", borrowing_limit={CPU: 0}), 0),
        (Team("ml", cpu(4), {MEMORY: 0}), None),
    ],
)
def test_the_most_a_team_may_have_is_its_guarantee_and_what_it_may_borrow(one: Team, most: int | None) -> None:
    assert one.most(CPU) == most


@pytest.mark.parametrize(
    ("one", "kept"),
    [
        (Team("ml", cpu(4)), 0),  # no limit: all of it is lent while it is not used
        (Team("ml", cpu(4), lending_limit={CPU: 0}), 40_000),
        (Team("ml", cpu(4), lending_limit={CPU: 10_000}), 30_000),
        (Team("ml", cpu(4), lending_limit={CPU: 90_000}), 0),
        (Team("ml", cpu(4), lending_limit={GPU: 0}), 0),
        (Team("ml", lending_limit={CPU: 0}), 0),  # there is nothing to keep
    ],
)
def test_a_team_keeps_from_others_what_it_does_not_lend_of_its_guarantee(one: Team, kept: int) -> None:
    assert one.withheld_from_others(CPU) == kept


def test_a_user_without_a_team_has_no_guarantee_and_no_limit() -> None:
    teams = Teams([team("ml", guaranteed=amounts(cpu=4))])
    assert teams.of("ml").guaranteed == cpu(4)
    stranger = teams.of("who")
    assert (stranger.name, stranger.most(CPU), stranger.withheld_from_others(CPU)) == ("who", None, 0)
    assert not stranger.guaranteed
    assert teams.of("").name == DEFAULT_TEAM


def test_only_teams_with_a_lending_limit_keep_something_from_others() -> None:
    open_one, closed = team("ml", guaranteed=cpu(4)), team("ops", guaranteed=cpu(4), lends=cpu(1))
    teams = Teams([open_one, closed])
    assert teams.closed == (closed,)
    assert (list(teams), len(teams)) == (["ml", "ops"], 2)
    assert not Teams()
