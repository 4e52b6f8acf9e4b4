"""Who lends, and for every node that does not, why."""

import json
import os
import subprocess
import sys

import pytest
from builders import amounts, ask, cpu, lease, limits, node

from distributed_grid.decide.capacity.lending import counter_offer, plan_grant
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.model.leases import Delivery, Lease, LeaseState
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.plans import Companions, Grant, Headroom, Refused, Rules, TeamLimit
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.requests import Ask
from distributed_grid.model.teams import Team, Teams

MASTER = node("gpu-master", cpus=2)


def plan(asked: Ask, *nodes: Node, leases: tuple[Lease, ...] = (), **options: object) -> Grant | Refused:
    return plan_grant(asked, NodeTable([MASTER, *nodes]), Usage.of(leases), Rules(**options))  # type: ignore[arg-type]


def codes(refused: Grant | Refused) -> dict[str, RefusalCode]:
    assert isinstance(refused, Refused), refused
    return {r.node: r.code for r in refused.refusals}


def detail(refused: Grant | Refused, name: str) -> str:
    assert isinstance(refused, Refused), refused
    return next(r.detail for r in refused.refusals if r.node == name)


# -- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lender", "asked", "code", "said"),
    [
        (node(cpus=4, used=cpu(3)), ask(), RefusalCode.NO_CAPACITY, "1 of 4 CPUs free, 2 requested"),
        (node(limits=limits(cpu=1)), ask(), RefusalCode.LENDING_LIMIT_REACHED, "0 of at most 1 CPU lent, 2 requested"),
        (node(limits=limits(can_share=False)), ask(), RefusalCode.SHARING_DISABLED, "can_share: false"),
        (node(alive=False), ask(), RefusalCode.NODE_DOWN, "not connected"),
        (node(silent="its probe died"), ask(), RefusalCode.STALE, "no recent measurement: its probe died"),
        (node(), ask(source="gpu2"), RefusalCode.NOT_THE_SOURCE, "names gpu2 as its source"),
        (node(), ask(nodes=("gpu2",)), RefusalCode.RULED_OUT, "the task may not run there"),
    ],
)
def test_a_node_that_cannot_lend_says_why(lender: Node, asked: Ask, code: RefusalCode, said: str) -> None:
    refused = plan(asked, lender)
    assert codes(refused) == {"gpu-master": RefusalCode.IS_TARGET, "gpu1": code}
    assert said in detail(refused, "gpu1")


@pytest.mark.parametrize(
    ("lender", "usage", "rules", "code", "said"),
    [
        (
            node(cpus=4, used=cpu(1)),
            (),
            {"headroom": Headroom("balanced", of_base=0.5)},
            RefusalCode.KEPT_FREE,
            "3 of 4 CPUs free, but policy balanced keeps 2 CPUs free for the node's own work; 2 requested",
        ),
        (
            node(cpus=8, used=cpu(3)),
            (lease(amount=3, delivery=Delivery.RESERVE),),
            {"headroom": Headroom("conservative", of_idle=0.5)},
            RefusalCode.KEPT_FREE,
            "5 of 8 CPUs free, but policy conservative keeps 4 CPUs free for the node's own work; 2 requested",
        ),
        (node(used=cpu(3)), (), {"headroom": Headroom("balanced", of_base=0.5)}, RefusalCode.NO_CAPACITY, "1 of 4"),
        (
            node(limits=limits(cpu=1)),
            (),
            {"headroom": Headroom("balanced", of_base=0.9)},
            RefusalCode.LENDING_LIMIT_REACHED,
            "0 of at most 1 CPU lent, 2 requested",
        ),
        (
            node(),
            (),
            {"cordoned": frozenset({"gpu1"})},
            RefusalCode.CORDONED,
            "gpu1 is cordoned; to let it share again: grid cooldown gpu1 --off",
        ),
        (
            node(),
            (),
            {"cordoned": frozenset({"gpu-master"})},
            RefusalCode.CORDONED,
            "gpu-master is cordoned; to let it share again: grid cooldown gpu-master --off",
        ),
    ],
)
def test_a_node_that_the_rules_hold_back_says_which(
    lender: Node, usage: tuple[Lease, ...], rules: dict[str, object], code: RefusalCode, said: str
) -> None:
    refused = plan(ask(), lender, leases=usage, **rules)
    assert codes(refused)["gpu1"] is code
    assert said in detail(refused, "gpu1")


def test_a_cordoned_node_does_not_keep_others_from_lending() -> None:
    granted = plan(ask(), node("gpu1", cpus=64), node("gpu2"), cordoned=frozenset({"gpu1"}))
    assert isinstance(granted, Grant)
    assert granted.source == "gpu2"


def test_a_team_over_its_limit_is_refused_whichever_node_could_lend_and_is_told_so() -> None:
    teams = Teams([Team("ml", borrowing_limit={"cpu": 10_000})])
    refused = plan(ask(team="ml"), node(), node("gpu2", alive=False), teams=teams)
    assert isinstance(refused, Refused)
    limit = TeamLimit(RefusalCode.TEAM_LIMIT_REACHED, "team ml has 0 of at most 1 CPU, 2 requested")
    assert refused.team_limit == limit
    assert codes(refused) == {"gpu-master": RefusalCode.IS_TARGET, "gpu2": RefusalCode.NODE_DOWN}
    assert isinstance(plan(ask(amount=1, team="ml"), node(), teams=teams), Grant)
    assert isinstance(plan(ask(team="web"), node(), teams=teams), Grant)


def test_the_cpus_that_come_with_a_gpu_count_against_the_teams_limit() -> None:
    teams = Teams([Team("ml", borrowing_limit={"cpu": 10_000})])
    gpu = ask(kind="gpu", amount=1, team="ml")
    assert isinstance(plan(gpu, node(gpus=1), teams=teams), Grant)
    two = plan(gpu, node(gpus=1), teams=teams, companions=Companions(cpu_per_gpu=20_000))
    assert isinstance(two, Refused)
    limit = TeamLimit(RefusalCode.TEAM_LIMIT_REACHED, "team ml has 0 of at most 1 CPU, 2 requested")
    assert two.team_limit == limit


def test_what_the_policy_keeps_is_not_offered_either() -> None:
    refused = plan(ask(amount=8), node("a", cpus=8), headroom=Headroom("balanced", of_base=0.25))
    assert isinstance(refused, Refused)
    assert counter_offer(refused) == "6 CPUs can be lent by a: grid boost request gpu-master cpu 6 --source a"


def test_a_node_that_borrows_does_not_lend_the_same_kind_on() -> None:
    borrower = node("gpu1", borrowed=cpu(2))
    loan = lease(source="gpu2", target="gpu1")
    assert codes(plan(ask(), borrower, leases=(loan,)))["gpu1"] is RefusalCode.IS_BORROWING


def test_a_node_that_borrows_cpus_may_lend_memory() -> None:
    borrower = node("gpu1", borrowed=cpu(2))
    loan = lease(source="gpu2", target="gpu1")
    assert isinstance(plan(ask(kind="memory"), borrower, leases=(loan,)), Grant)


def test_a_node_does_not_reserve_for_others_what_it_has_only_borrowed() -> None:
    borrower = node("gpu1", cpus=2, borrowed=cpu(2))
    loan = lease(source="gpu2", target="gpu1")
    assert isinstance(plan(ask(amount=3, delivery="reserve"), borrower, leases=(loan,)), Refused)


@pytest.mark.parametrize("state", [s for s in LeaseState if s is not LeaseState.RELEASED])
@pytest.mark.parametrize("delivery", Delivery)
def test_what_is_lent_counts_against_the_limit_until_it_is_returned(state: LeaseState, delivery: Delivery) -> None:
    lender = node(cpus=8, limits=limits(cpu=4), used=cpu(3))
    loan = lease(amount=3, state=state, delivery=delivery)
    assert codes(plan(ask(), lender, leases=(loan,)))["gpu1"] is RefusalCode.LENDING_LIMIT_REACHED
    assert isinstance(plan(ask(amount=1), lender, leases=(loan,)), Grant)


def test_what_was_returned_no_longer_counts() -> None:
    lender = node(cpus=8, limits=limits(cpu=4))
    assert isinstance(plan(ask(), lender, leases=(lease(amount=3, state=LeaseState.RELEASED),)), Grant)


def test_what_is_lent_is_not_lent_again_though_a_late_view_still_shows_it_free() -> None:
    lender = node(cpus=4)
    assert isinstance(plan(ask(amount=2), lender, leases=(lease(amount=3),)), Refused)


def test_the_companions_of_a_gpu_count_against_the_limits_too() -> None:
    lender = node(cpus=8, gpus=2, limits=limits(cpu=1))
    two = plan(ask(kind="gpu", amount=1), lender, companions=Companions(cpu_per_gpu=20_000))
    one = plan(ask(kind="gpu", amount=1), lender, companions=Companions(cpu_per_gpu=10_000))
    assert codes(two)["gpu1"] is RefusalCode.LENDING_LIMIT_REACHED
    assert isinstance(one, Grant)
    assert one.resources == amounts(gpu=1, cpu=1)


def test_a_gpu_without_its_companions_is_not_lent() -> None:
    lender = node(cpus=4, gpus=1, used=cpu(4))
    refused = plan(ask(kind="gpu", amount=1), lender)
    assert codes(refused)["gpu1"] is RefusalCode.NO_CAPACITY
    assert "0 of 4 CPUs free" in detail(refused, "gpu1")


def test_every_node_has_its_own_reason() -> None:
    refused = plan(
        ask(amount=3),
        node("a", used=cpu(3)),
        node("b", limits=limits(can_share=False)),
        node("c", alive=False),
        node("d", limits=limits(cpu=2)),
    )
    assert codes(refused) == {
        "a": RefusalCode.NO_CAPACITY,
        "b": RefusalCode.SHARING_DISABLED,
        "c": RefusalCode.NODE_DOWN,
        "d": RefusalCode.LENDING_LIMIT_REACHED,
        "gpu-master": RefusalCode.IS_TARGET,
    }


# -- the choice --------------------------------------------------------------------------------------------


def test_the_node_that_is_left_with_the_most_lends() -> None:
    granted = plan(ask(), node("a", cpus=8, used=cpu(5)), node("b", cpus=4), node("c", cpus=16, used=cpu(13)))
    assert isinstance(granted, Grant)
    assert granted.source == "b"


def test_the_name_breaks_ties() -> None:
    granted = plan(ask(), node("c"), node("b"), node("d"))
    assert isinstance(granted, Grant)
    assert granted.source == "b"


def test_a_named_source_lends_though_others_have_more() -> None:
    granted = plan(ask(source="b"), node("a", cpus=64), node("b"))
    assert isinstance(granted, Grant)
    assert granted.source == "b"


def test_among_equal_lenders_the_one_with_the_higher_priority_lends_first() -> None:
    granted = plan(ask(), node("a", limits=limits(priority=1)), node("b", limits=limits(priority=5)))
    assert isinstance(granted, Grant)
    assert granted.source == "b"


_CHOOSE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from builders import ask, node
from distributed_grid.decide.capacity.lending import plan_grant
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.model.nodes import NodeTable
nodes = [node("master"), node("many-gpus", gpus=4, cpus=4), node("many-cpus", gpus=2, cpus=64)]
print(json.dumps(plan_grant(ask("master", "gpu", 1), NodeTable(nodes), Usage()).source))
"""


def test_equal_inputs_give_equal_plans_in_every_process() -> None:
    support = os.path.join(os.path.dirname(__file__), os.pardir, "support")  # noqa: PTH118, PTH120
    chosen = {
        json.loads(
            subprocess.run(
                [sys.executable, "-c", _CHOOSE, support],
                env=os.environ | {"PYTHONHASHSEED": str(seed)},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for seed in range(6)
    }
    assert len(chosen) == 1


def test_the_grant_says_how_it_is_delivered_and_what_to_beware_of() -> None:
    target = node("gpu-master", cpus=2, hardware=(2, 64))
    granted = plan_grant(ask(), NodeTable([target, node()]), Usage())
    assert isinstance(granted, Grant)
    assert (granted.delivery, granted.resources) == (Delivery.TRANSFER, cpu(2))
    assert granted.delivery_reason
    assert granted.warnings


# -- the counter offer -------------------------------------------------------------------------------------


def offer(asked: Ask, *nodes: Node, **options: object) -> str | None:
    refused = plan(asked, *nodes, **options)
    assert isinstance(refused, Refused), refused
    return counter_offer(refused)


def test_a_refusal_offers_the_most_that_one_node_could_lend() -> None:
    said = offer(ask(amount=8), node("a", cpus=4, used=cpu(1)), node("b", cpus=8, limits=limits(cpu=2)))
    assert said == "3 CPUs can be lent by a: grid boost request gpu-master cpu 3 --source a"


def test_an_offer_is_delivered_as_was_asked() -> None:
    said = offer(ask(amount=8, delivery="reserve"), node("a", cpus=4))
    assert said == "4 CPUs can be lent by a: grid boost request gpu-master cpu 4 --source a --delivery reserve"


def test_an_offer_keeps_the_priority_and_the_length_that_were_asked_for() -> None:
    said = offer(ask(amount=8, priority=AllocationPriority.HIGH, duration_s=7200.0), node("a", cpus=4))
    how = "grid boost request gpu-master cpu 4 --source a --priority high --duration 7200"
    assert said == f"4 CPUs can be lent by a: {how}"


def test_nothing_is_offered_where_nothing_could_be_lent() -> None:
    assert offer(ask(amount=8), node(limits=limits(can_share=False))) is None
    assert offer(ask(amount=8), node(used=cpu(4))) is None
    assert offer(ask(amount=8)) is None


def test_an_offer_of_gpus_leaves_room_for_the_cpus_that_come_along() -> None:
    said = offer(ask(kind="gpu", amount=4), node("a", gpus=4, cpus=8, limits=limits(cpu=2)), node("b", gpus=1))
    assert said == "2 GPUs can be lent by a: grid boost request gpu-master gpu 2 --source a"
    assert offer(ask(kind="gpu", amount=4), node(gpus=4, limits=limits(cpu=0))) is None


def test_a_request_for_whole_gpus_is_offered_no_part_of_one() -> None:
    assert offer(ask(kind="gpu", amount=1), node(gpus=0.5)) is None


def test_what_is_offered_is_less_than_what_was_asked() -> None:
    assert offer(ask(kind="gpu", amount=1), node(gpus=1, used=cpu(4))) is None
