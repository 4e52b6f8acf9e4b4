"""What would happen to a request, and what every node has to do with it."""

from dataclasses import replace
from datetime import timedelta

import pytest
from builders import NOON, ask, cpu, lease, limits, node, team, waits

from distributed_grid.decide.capacity.lending import plan_grant
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.policies import POLICIES
from distributed_grid.decide.queue.answers import CHOSEN, COULD_LEND, Outlook, considered, look_ahead
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.plans import Grant, Headroom, Rules
from distributed_grid.model.policies import AllocationPriority, SharingPolicy
from distributed_grid.model.requests import Ask, Waiting
from distributed_grid.model.resources import GB
from distributed_grid.model.teams import Teams

MASTER = node("gpu-master", cpus=2)
LENT = lease("b1", amount=6, priority=AllocationPriority.LOW, age_s=1000.0, expires_at=NOON + timedelta(minutes=30))
FULL = replace(node("gpu1", cpus=8), total=cpu(2), free=cpu(0))
"""gpu1 while `LENT` is out: its own work has the rest."""


def outlook(
    asked: Ask,
    *nodes: Node,
    leases: tuple[Lease, ...] = (),
    waiting: tuple[Waiting, ...] = (),
    policy: SharingPolicy = SharingPolicy.BALANCED,
    **rules: object,
) -> Outlook:
    in_force = Rules(**rules)  # type: ignore[arg-type]
    table = NodeTable([MASTER, *nodes])
    return look_ahead(asked, table, leases, Usage.of(leases), waiting, {}, lambda _: in_force, POLICIES[policy], NOON)


def test_what_fits_says_from_where() -> None:
    said = outlook(ask(amount=2), node("gpu1", cpus=4), node("gpu2", cpus=8))
    assert said.grant is not None
    assert (said.grant.source, said.preemption, said.ahead, said.expected_start) == ("gpu2", None, 0, NOON)
    assert said.summary == "2 CPUs for gpu-master: gpu2 lends it now (transfer)"
    assert (said.largest_now, said.largest_source) == (80_000, "gpu2")


def test_what_does_not_fit_says_when_otherwise_and_what_would() -> None:
    said = outlook(ask(amount=4, priority=AllocationPriority.LOW), FULL, node("gpu2", cpus=3), leases=(LENT,))
    assert (said.grant, said.preemption) == (None, None)
    assert said.expected_start == LENT.expires_at
    assert (said.largest_now, said.largest_source) == (30_000, "gpu2")
    assert said.summary == (
        "4 CPUs for gpu-master: not now; waits for 4 CPUs: 6 come back to gpu1 at 2025-06-01T12:30Z; "
        "3 CPUs would fit now, from gpu2"
    )


def test_it_is_said_who_would_yield() -> None:
    said = outlook(ask(amount=4, priority=AllocationPriority.CRITICAL), FULL, leases=(LENT,))
    assert said.preemption is not None
    assert said.preemption.victims == (LENT,)
    assert said.expected_start == NOON + timedelta(seconds=LENT.grace_s)
    assert "1 boost on gpu1 yields to critical priority, and is back by 2025-06-01T12:00Z" in said.summary
    own = outlook(
        ask(amount=4, priority=LENT.priority, team="ml"),
        FULL,
        leases=(LENT,),
        teams=Teams([team("ml", guaranteed={"cpu": 4})]),
    )
    assert "1 boost on gpu1 yields to the guarantee of team ml, and is back by 2025-06-01T12:00Z" in own.summary


def test_those_ahead_are_counted_and_get_theirs_first() -> None:
    first = waits("w1", 6, waited_s=60.0)
    said = outlook(ask(amount=4), node("gpu1", cpus=8), waiting=(first,))
    assert (said.grant, said.ahead) == (None, 1)
    assert said.largest_now == 20_000, "of what they leave"
    passes = outlook(ask(amount=4, priority=AllocationPriority.CRITICAL), node("gpu1", cpus=8), waiting=(first,))
    assert (passes.grant is not None, passes.ahead) == (True, 0)


def test_a_request_whose_wait_is_over_is_not_ahead() -> None:
    gone = waits("w1", 6, waited_s=60.0, until=NOON)
    assert outlook(ask(amount=4), node("gpu1", cpus=8), waiting=(gone,)).ahead == 0


def test_a_teams_limit_is_said_whichever_node_could_lend() -> None:
    teams = Teams([team("ml", guaranteed={"cpu": 1}, borrows={"cpu": 1})])
    said = outlook(ask(amount=4, team="ml"), node("gpu1", cpus=8), teams=teams)
    assert said.grant is None
    assert said.team_limit == "team ml has 0 of at most 2 CPUs, 4 requested"
    assert (said.largest_now, said.largest_source) == (20_000, "gpu1")


@pytest.mark.parametrize(
    ("asked", "lender", "rules", "largest"),
    [
        (ask(amount=1), node("gpu1", cpus=4, used=cpu(1)), {}, 30_000),
        (ask(amount=99), node("gpu1", cpus=4, used=cpu(1)), {}, 30_000),
        (ask(amount=1), node("gpu1", cpus=4, limits=limits(cpu=1.5)), {}, 15_000),
        (ask(amount=1), node("gpu1", cpus=4), {"headroom": Headroom("balanced", of_base=0.2)}, 32_000),
        (ask(kind="gpu", amount=1), node("gpu1", cpus=2, gpus=4), {}, 20_000),  # each needs a CPU
        (ask(kind="gpu", amount=1), node("gpu1", gpus=1.5), {}, 10_000),  # whole ones
        (ask(kind="gpu", amount=0.5), node("gpu1", gpus=2, limits=limits(gpu=1.5)), {}, 10_000),  # nor 1.5
        (ask(kind="memory", amount=1), node("gpu1", memory=7), {}, 7 * GB),
        (ask(kind="memory", amount=1, delivery="reserve"), node("gpu1", memory=7, used=cpu(4)), {}, 0),
        (ask(amount=1), node("gpu1", limits=limits(can_share=False)), {}, 0),
        (ask(amount=1), node("gpu1", alive=False), {}, 0),
        (ask(amount=1, source="gpu2"), node("gpu1"), {}, 0),
    ],
)
def test_the_largest_amount_is_what_one_node_can_lend_with_all_that_comes_along(
    asked: Ask, lender: Node, rules: dict[str, object], largest: int
) -> None:
    assert outlook(asked, lender, **rules).largest_now == largest


def test_the_largest_amount_is_found_though_a_smaller_one_would_be_delivered_otherwise_and_refused() -> None:
    """Up to 2 CPUs the target's machine could carry; but gpu1 borrows, and so lends none on. It reserves, though."""
    master = node("gpu-master", cpus=2, hardware=(4, 64))
    borrowed = lease("b1", source="gpu2", target="gpu1", amount=1)
    nodes = NodeTable([master, node("gpu1", cpus=8, borrowed=cpu(1)), node("gpu2", limits=limits(can_share=False))])
    rules = Rules(default_delivery="auto")
    said = look_ahead(
        ask(amount=1), nodes, (borrowed,), Usage.of([borrowed]), (), {}, lambda _: rules, POLICIES["balanced"], NOON
    )
    assert said.grant is None
    assert (said.largest_now, said.largest_source) == (80_000, "gpu1")


# -- every node's reason -------------------------------------------------------------------------------------

NODES = NodeTable(
    [
        MASTER,
        node("big", cpus=16),
        node("down", alive=False),
        node("full", used=cpu(3)),
        node("limited", limits=limits(cpu=1)),
        node("mute", silent="its probe died"),
        node("private", limits=limits(can_share=False)),
        node("small", cpus=3),
    ]
)


def verdicts(asked: Ask, rules: Rules | None = None, chosen: tuple[str, ...] = ()) -> dict[str, str]:
    return {one.node: one.verdict for one in considered(asked, NODES, Usage(), rules or Rules(), chosen)}


def test_every_node_has_a_reason() -> None:
    assert verdicts(ask(), chosen=("big",)) == {
        "big": CHOSEN,
        "down": "NodeDown",
        "full": "NoCapacity",
        "gpu-master": "IsTarget",
        "limited": "LendingLimitReached",
        "mute": "Stale",
        "private": "SharingDisabled",
        "small": COULD_LEND,
    }
    assert verdicts(ask(), Rules(cordoned=frozenset({"big"})))["big"] == "Cordoned"
    assert verdicts(ask(), Rules(headroom=Headroom("balanced", of_base=0.5)))["small"] == "KeptFree"
    assert verdicts(ask(source="small"), chosen=("small",))["big"] == "NotTheSource"


@pytest.mark.parametrize(
    ("asked", "name", "detail", "could_lend"),
    [
        (ask(), "big", "16 of 16 CPUs free, it can lend 16; of the eligible nodes it has the most left", 160_000),
        (ask(), "small", "3 of 3 CPUs free, it can lend 3", 30_000),
        (ask(), "full", "1 of 4 CPUs free, 2 requested", 10_000),
        (ask(), "limited", "0 of at most 1 CPU lent, 2 requested", 10_000),
        (ask(), "down", "it is not connected to the cluster", 0),
        (ask(), "gpu-master", "it is the target of the request", 0),
        (ask(source="big"), "big", "16 of 16 CPUs free, it can lend 16; it was requested by name", 160_000),
    ],
)
def test_a_reason_is_in_words_and_says_how_much_would_go(asked: Ask, name: str, detail: str, could_lend: int) -> None:
    reasons = considered(asked, NODES, Usage(), Rules(), chosen=("big",))
    found = next(one for one in reasons if one.node == name)
    assert (found.detail, found.could_lend) == (detail, could_lend)


def test_a_lender_that_was_chosen_stays_chosen_though_it_could_not_lend_it_again() -> None:
    reasons = considered(ask(), NODES, Usage(), Rules(), chosen=("full",))
    found = next(one for one in reasons if one.node == "full")
    assert (found.verdict, found.detail) == (CHOSEN, "it is the lender; currently: 1 of 4 CPUs free, 2 requested")


def test_what_is_planned_is_what_a_grant_then_says() -> None:
    said = outlook(ask(), node("gpu1"), node("gpu2"))
    then = plan_grant(ask(), NodeTable([MASTER, node("gpu1"), node("gpu2")]), Usage())
    assert isinstance(then, Grant)
    assert said.grant == then


def test_what_winds_down_is_waited_for_and_no_lease_yields() -> None:
    going = replace(LENT, state=LeaseState.RELEASING, release_asked_at=NOON)
    said = outlook(ask(amount=4, priority=AllocationPriority.CRITICAL), FULL, leases=(going,))
    assert (said.grant, said.preemption) == (None, None)
    assert said.expected_start == NOON + timedelta(seconds=going.grace_s)
