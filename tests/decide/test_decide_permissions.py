"""Who may change what, and how high a priority a caller may ask for."""

import pytest
from builders import cpu, lease
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.config import GridConfig
from distributed_grid.decide.leases.ownership import (
    Owned,
    check_may_change,
    check_priority,
    may_change,
    most_allowed,
    owned_boost_dict,
    owned_lease,
    owned_run,
)
from distributed_grid.errors import NotOwner, PriorityNotAllowed
from distributed_grid.leases.view import boost_dict
from distributed_grid.model.leases import Share
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.principals import THE_OWNER, Principal, Scope
from distributed_grid.model.teams import Team, Teams

LOW, NORMAL, HIGH, CRITICAL = AllocationPriority
NAMES = st.sampled_from(["ana", "bo", "carl", "grid"])
TEAMS = st.sampled_from(["", "default", "vision", "audio"])
SCOPES = st.frozensets(st.sampled_from([Scope.VIEW, Scope.LEND, Scope.RUN]), min_size=1)


def user(
    name: str = "ana", team: str = "", *, most: AllocationPriority | None = None, admin: bool = False
) -> Principal:
    return Principal(name, team, frozenset({Scope.ADMIN if admin else Scope.LEND}), "0" * 8, None, most)


BOOST = Owned("Boost 5f0c1a2b", "ana", "vision", ("gpu1",))


@given(st.builds(Principal, NAMES, TEAMS, SCOPES, st.just("0" * 8)), NAMES, TEAMS, st.sets(NAMES), st.sets(TEAMS))
def test_only_the_requester_its_team_and_the_lenders_owners_may_change_a_thing(
    caller: Principal, requester: str, team: str, users: set[str], teams: set[str]
) -> None:
    owners = [*users, *(f"team:{one}" for one in teams)]
    is_owner = caller.name == requester
    is_mate = caller.team == team and team not in ("", "default")
    owns_lender = caller.name in users or (caller.team != "" and caller.team in teams)

    assert may_change(caller, Owned("x", requester, team, ("gpu1",)), owners) == (is_owner or is_mate or owns_lender)


@given(NAMES, TEAMS)
def test_admins_and_the_installations_own_token_change_everything(requester: str, team: str) -> None:
    thing = Owned("x", requester, team)

    assert may_change(user("eve", admin=True), thing)
    assert may_change(THE_OWNER.claiming("eve"), thing)


def test_a_thing_without_a_requester_is_not_a_namesakes() -> None:
    nameless = Principal("", "", frozenset({Scope.LEND}), "0" * 8)

    assert not may_change(nameless, Owned("x", ""))


def test_a_refusal_names_the_owner_the_caller_and_all_who_could_do_it() -> None:
    with pytest.raises(NotOwner) as refused:
        check_may_change(user("eve", "audio"), BOOST, ["carl", "team:infra"])

    assert refused.value.message == "Boost 5f0c1a2b belongs to ana of team vision, and you are eve of team audio"
    assert refused.value.try_next == (
        "Ask ana or a user of team vision or an owner of gpu1 (carl, team:infra) to do it, "
        "or use a token with the scope admin."
    )
    assert (refused.value.exit_code, refused.value.http_status) == (6, 403)


def test_of_several_lenders_only_their_common_owners_count() -> None:
    nodes = [
        {"name": "gpu1", "owners": ["ana", "carl", "team:infra"]},
        {"name": "gpu2", "owners": ["team:infra", "carl"]},
    ]
    config = GridConfig.from_dict({"name": "lab", "nodes": [*nodes, {"name": "gpu3"}]})

    assert config.owners_of("gpu1", "gpu2") == ("carl", "team:infra")
    assert config.owners_of("gpu1") == ("ana", "carl", "team:infra")
    assert config.owners_of("gpu1", "gpu3") == config.owners_of("gpu1", "elsewhere") == config.owners_of() == ()


def test_a_boost_of_several_lenders_concerns_the_owners_of_them_all() -> None:
    shares = tuple(Share(name, 10_000, cpu(1)) for name in ("gpu1", "gpu2"))
    divided = lease(shares=shares, requester="bo")

    assert owned_lease(divided).lenders == ("gpu1", "gpu2")
    assert owned_boost_dict(boost_dict(divided)).lenders == ("gpu1", "gpu2")
    with pytest.raises(NotOwner) as refused:
        check_may_change(user("eve"), owned_lease(divided), ["carl"])
    assert "an owner of gpu1 and gpu2 (carl)" in str(refused.value.try_next)


def test_what_was_not_asked_for_is_refused_with_the_one_way_that_is_left() -> None:
    with pytest.raises(NotOwner) as refused:
        check_may_change(user("eve"), Owned("Boost 5f0c1a2b", "grid", "default", ("gpu1",)))

    assert refused.value.message == "Boost 5f0c1a2b belongs to grid, and you are eve"
    assert refused.value.try_next == "Use a token with the scope admin."


def test_a_run_of_roles_that_does_not_say_whose_it_is_belongs_to_no_user() -> None:
    thing = owned_run({"name": "rl", "owner": {"node": "a", "pid": 1, "job_id": "", "worker_id": ""}})

    assert (thing.requester, thing.team) == ("", "")
    assert not may_change(user(), thing)


# -- priorities ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_token", "of_team", "most"),
    [
        (None, None, NORMAL),
        (HIGH, None, HIGH),
        (LOW, None, LOW),
        (None, HIGH, HIGH),
        (None, LOW, LOW),
        (CRITICAL, HIGH, HIGH),
        (LOW, HIGH, LOW),
    ],
)
def test_a_token_may_ask_for_what_it_says_and_never_for_more_than_its_team(
    of_token: AllocationPriority | None, of_team: AllocationPriority | None, most: AllocationPriority
) -> None:
    teams = Teams([Team("vision", max_priority=of_team)])

    assert most_allowed(user(team="vision", most=of_token), teams) is most


@given(
    st.sampled_from([None, *AllocationPriority]),
    st.sampled_from([None, *AllocationPriority]),
    st.sampled_from(AllocationPriority),
)
def test_a_priority_is_refused_exactly_if_it_is_above_the_most_allowed_and_that_is_offered(
    of_token: AllocationPriority | None, of_team: AllocationPriority | None, asked: AllocationPriority
) -> None:
    teams = Teams([Team("vision", max_priority=of_team)])
    caller = user(team="vision", most=of_token)
    most = most_allowed(caller, teams)

    if asked.rank <= most.rank:
        check_priority(caller, asked, teams)
        return
    with pytest.raises(PriorityNotAllowed, match=f"The priority {asked} is above {most}") as refused:
        check_priority(caller, asked, teams)
    assert f"--priority {most}" in (refused.value.try_next or "")


def test_a_refusal_says_whether_the_token_or_the_team_is_the_limit() -> None:
    def reported(of_token: AllocationPriority | None, of_team: AllocationPriority | None) -> str:
        with pytest.raises(PriorityNotAllowed) as refused:
            check_priority(user(team="vision", most=of_token), CRITICAL, Teams([Team("vision", max_priority=of_team)]))
        return f"{refused.value.message}; {refused.value.try_next}"

    assert "grid token create ana --max-priority critical" in reported(HIGH, None)
    assert "maximum for the token of ana" in reported(LOW, HIGH)
    assert "max_priority: critical for the team vision" in reported(CRITICAL, HIGH)
    assert "max_priority: critical for the team vision" in reported(None, HIGH)


def test_admins_have_no_highest_priority() -> None:
    teams = Teams([Team("vision", max_priority=LOW)])

    assert most_allowed(user(team="vision", most=LOW, admin=True), teams) is CRITICAL
    assert most_allowed(THE_OWNER, teams) is CRITICAL
