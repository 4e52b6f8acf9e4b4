"""What a team may have."""

import pytest
from builders import amounts, ask, cpu, lease, limits, node, reservation, team

from distributed_grid.decide.capacity.quotas import why_over_limit
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.model.leases import Delivery, Lease, LeaseState
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.plans import TeamLimit
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.resources import CPU, ResourceVector
from distributed_grid.model.teams import Team, Teams

# 16 CPUs are there to be lent.
NODES = NodeTable([node("gpu1", cpus=8, gpus=4), node("gpu2", cpus=16, limits=limits(cpu=8))])
LIMITED = team("ml", guaranteed=cpu(4), borrows=cpu(2))
CLOSED = team("ops", guaranteed=cpu(8), lends=cpu(2))
NOTHING_BORROWED = Team("strict", cpu(4), {CPU: 0})
NOTHING_LENT = Team("closed", cpu(10), {}, {CPU: 0})


def has(name: str, cores: float, **changes: object) -> Lease:
    return lease(f"{name}-{cores}", amount=cores, team=name, **changes)


def why(name: str, need: ResourceVector, *leases: Lease, teams: tuple[Team, ...] = (LIMITED, CLOSED)) -> str | None:
    """For all that is needed, asked for by name."""
    kind, *others = need
    asked = ask(kind=kind, units=need[kind], team=name, along=tuple((other, need[other]) for other in others))
    return detail(why_over_limit(asked, need, NODES, Usage.of(leases), Teams(teams)))


def detail(limit: TeamLimit | None) -> str | None:
    """The text; its code says whether it is the team's own limit or what other teams keep."""
    if limit is None:
        return None
    others_keep = limit.detail.startswith("other teams keep")
    assert limit.code is (RefusalCode.KEPT_FOR_TEAMS if others_keep else RefusalCode.TEAM_LIMIT_REACHED)
    return limit.detail


@pytest.mark.parametrize(
    ("name", "need", "leases", "teams", "said"),
    [
        ("ml", cpu(6), (), (LIMITED,), None),
        ("ml", cpu(7), (), (LIMITED,), "team ml has 0 of at most 6 CPUs, 7 requested"),
        ("ml", cpu(2), (has("ml", 4),), (LIMITED,), None),
        ("ml", cpu(3), (has("ml", 4),), (LIMITED,), "team ml has 4 of at most 6 CPUs, 3 requested"),
        ("ml", cpu(2), (has("ops", 8),), (LIMITED,), None),  # what others have is no matter
        ("ml", amounts(memory=64), (), (LIMITED,), None),  # no limit was set for memory
        ("ml", amounts(gpu=1, cpu=7), (), (LIMITED,), "team ml has 0 of at most 6 CPUs, 7 requested"),  # companions
        ("strict", cpu(5), (), (NOTHING_BORROWED,), "team strict has 0 of at most 4 CPUs, 5 requested"),
        ("strict", cpu(4), (), (NOTHING_BORROWED,), None),
        ("who", cpu(99), (), (LIMITED,), None),  # who belongs to no team has no limit
        ("ml", cpu(99), (), (), None),  # no teams, no limits
    ],
)
def test_a_team_has_no_more_than_its_guarantee_and_what_it_may_borrow(
    name: str, need: ResourceVector, leases: tuple[Lease, ...], teams: tuple[Team, ...], said: str | None
) -> None:
    assert why(name, need, *leases, teams=teams) == said


@pytest.mark.parametrize("state", LeaseState)
@pytest.mark.parametrize("delivery", Delivery)
def test_what_a_team_has_counts_until_it_is_returned(state: LeaseState, delivery: Delivery) -> None:
    over = why("ml", cpu(3), has("ml", 4, state=state, delivery=delivery))
    assert (over is None) == (state is LeaseState.RELEASED)


@pytest.mark.parametrize(
    ("name", "need", "leases", "teams", "said"),
    [
        # ops keeps 6 of its 8 from the others: 10 of 16 are left for them
        ("who", cpu(10), (), (CLOSED,), None),
        ("who", cpu(11), (), (CLOSED,), "other teams keep 6 CPUs for themselves: 10 left, 11 requested"),
        ("who", cpu(3), (has("who", 8),), (CLOSED,), "other teams keep 6 CPUs for themselves: 2 left, 3 requested"),
        # what ops uses itself it need not keep
        ("who", cpu(8), (has("ops", 8),), (CLOSED,), None),
        ("who", cpu(9), (has("ops", 4),), (CLOSED,), None),
        # ops itself is not kept from its own
        ("ops", cpu(16), (), (CLOSED,), None),
        # within its own guarantee no team is kept out by others
        ("ml", cpu(4), (has("who", 10),), (LIMITED, CLOSED), None),
        ("who", cpu(7), (), (NOTHING_LENT,), "other teams keep 10 CPUs for themselves: 6 left, 7 requested"),
        ("who", amounts(memory=99), (), (CLOSED,), None),
    ],
)
def test_others_do_not_get_what_a_team_keeps_for_itself(
    name: str, need: ResourceVector, leases: tuple[Lease, ...], teams: tuple[Team, ...], said: str | None
) -> None:
    assert why(name, need, *leases, teams=teams) == said


GPUS = team("vision", guaranteed={"gpu": 2}, borrows={"cpu": 0})
ALL_CPUS = team("ops", guaranteed=cpu(16), lends={"cpu": 0})
OPEN_GPUS = team("vision", guaranteed={"gpu": 2})
NO_MORE = "team vision has 0 of at most 0 CPUs, 3 requested"


@pytest.mark.parametrize(
    ("gpus", "along", "leases", "teams", "said"),
    [
        # a guaranteed GPU brings its CPU with it, whatever the team's own limit is and whatever others keep
        (2, {}, (), (GPUS,), None),
        (2, {}, (), (OPEN_GPUS, ALL_CPUS), None),
        (1, {}, (reservation(amount=1, cpus=1, team="vision"),), (GPUS, ALL_CPUS), None),
        # GPUs above the guarantee do not
        (3, {}, (), (GPUS,), NO_MORE),
        (3, {}, (), (OPEN_GPUS, ALL_CPUS), "other teams keep 16 CPUs for themselves: 0 left, 3 requested"),
        # nor do CPUs that were asked for by name: a guarantee of GPUs is none of them
        (1, {"cpu": 3}, (), (GPUS,), NO_MORE),
        (1, {"cpu": 3}, (), (OPEN_GPUS, ALL_CPUS), "other teams keep 16 CPUs for themselves: 0 left, 3 requested"),
    ],
)
def test_what_comes_with_a_guaranteed_gpu_unasked_is_guaranteed_with_it(
    gpus: int, along: dict[str, float], leases: tuple[Lease, ...], teams: tuple[Team, ...], said: str | None
) -> None:
    asked = ask(kind="gpu", amount=gpus, team="vision", along=tuple(amounts(**along).items()))
    need = amounts(**{"gpu": gpus, "cpu": gpus, **along})
    assert detail(why_over_limit(asked, need, NODES, Usage.of(leases), Teams(teams))) == said


def test_the_cpus_that_come_with_a_gpu_are_the_teams_too() -> None:
    held = Usage.of([reservation(amount=2, cpus=5, team="ml")])
    assert held.held_by("ml") == amounts(gpu=2, cpu=5)
