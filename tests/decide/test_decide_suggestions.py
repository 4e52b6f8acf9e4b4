"""What would help, told before something runs short: when, why, how sure, and the command for it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from builders import NOON, amounts, cpu, demand, forecast, lease, limits, node, reservation, shape
from test_decide_rebalancing import MASTER, Round, hot

from distributed_grid.decide.capacity.feasibility import LIFTED
from distributed_grid.decide.monitoring.trends import Trend
from distributed_grid.decide.rebalance.suggestions import HORIZONS_S, MOST, Suggestion, how_sure, passes, suggest
from distributed_grid.model.demand import Shape
from distributed_grid.model.leases import Cause
from distributed_grid.model.plans import Headroom, Rules
from distributed_grid.model.policies import SharingPolicy
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.resources import CPU, GB, GPU, MEMORY
from distributed_grid.model.series import Forecast

GPU2 = node("gpu2", cpus=2, memory=32)
GPU1 = node("gpu1", cpus=8, memory=4)


def rising(first_s: float, **others: Any) -> tuple[Forecast, ...]:
    """Above the limit from `first_s` on."""
    return tuple(forecast(0.85 if at >= first_s else 0.7, in_s=at, **others) for at in HORIZONS_S)


def suggested(
    here: Round, ahead: dict[tuple[str, str], tuple[Forecast, ...]] | None = None, **trends: float
) -> tuple[Suggestion, ...]:
    slopes = {("gpu-master", kind): Trend(900.0, slope, 90, 1.0) for kind, slope in trends.items()}
    return suggest(here.seen(), ahead or {}, slopes, lambda ask: here.rules)


def test_a_node_that_will_run_out_is_told_with_who_can_lend_and_the_command() -> None:
    here = Round(nodes=(MASTER, GPU1, GPU2), use={"gpu-master": {"memory": 0.62}})

    (found,) = suggested(here, {("gpu-master", MEMORY): rising(1200.0)}, memory=0.009)

    assert found.what == "gpu-master will run out of memory in about 20 minutes; gpu2 can lend 9 GB of memory"
    assert found.command == "grid boost request gpu-master memory 9 --source gpu2"
    why = "memory is expected to reach 85% then; the limit is 80% (now 62%, rising by 0.9 points a minute)"
    assert found.reason == why
    assert found.how_sure == "very likely (93%): 200 such forecasts verified, off by 2% on average"
    assert (found.cause, found.in_s) == (Cause.FORECAST, 1200.0)
    assert found.ask is not None and (found.ask.source, found.ask.units) == ("gpu2", 9 * GB)


def test_a_node_that_is_short_now_needs_no_forecast() -> None:
    (found,) = suggested(Round(use=hot("gpu-master")), {("gpu-master", CPU): rising(300.0)}, cpu=-0.012)

    assert found.what == "gpu-master is short of CPUs; gpu1 can lend 3 CPUs"
    assert found.reason == "cpu is at 95%, above the limit of 80%, falling by 1.2 points a minute"
    assert (found.confidence, found.how_sure, found.in_s) == (1.0, "certain: measured", None)


def test_where_the_lenders_hardware_must_do_the_work_the_command_says_so() -> None:
    full = node("gpu-master", hardware=(4, 16))
    (found,) = suggested(Round(nodes=(full, node("gpu1", cpus=8)), use=hot("gpu-master")))

    assert found.what.endswith("gpu1 can reserve 3 CPUs")
    assert found.command is not None and found.command.endswith("--source gpu1 --delivery reserve")


def test_what_waits_for_one_node_is_reported_with_how_long_and_for_what() -> None:
    nodes = (MASTER, GPU1, GPU2)
    waiting = demand(shape("gpu-master", cpu=6), *nodes, count=3, waited_s=240)

    (found,) = suggested(Round(nodes=nodes, demand=(waiting,)))

    assert found.what == "3 tasks have waited 4 min for 6 CPUs on gpu-master; gpu1 can lend 2 CPUs"
    assert found.reason == "its labels match only gpu-master, which has 4 CPUs"
    assert found.by_itself


def test_for_gpus_the_work_has_to_go_where_they_are() -> None:
    nodes = (MASTER, node("gpu1", gpus=1), node("gpu2", gpus=2))
    waiting = demand(shape("gpu1", gpu=2), *nodes)

    (found,) = suggested(Round(nodes=nodes, demand=(waiting,)))

    assert found.what == "1 task has waited 60 s for 2 GPUs on gpu1; gpu2 can reserve 2 GPUs"
    assert found.command == "grid boost request gpu1 gpu 2 --source gpu2"
    assert "GPUs cannot move between nodes: the work has to be started in the reservation" in found.reason
    assert not found.by_itself


def test_for_parts_of_gpus_as_many_gpus_are_suggested_as_have_room_for_all_of_them() -> None:
    nodes = (MASTER, node("gpu1", gpus=1), node("gpu2", gpus=4))
    (one,) = shape("gpu1", gpu=0.6).bundles
    waiting = demand(Shape((one,) * 3, strategy="PACK"), *nodes)

    (found,) = suggested(Round(nodes=nodes, demand=(waiting,)))

    assert found.what == "1 placement group has waited 60 s for 1.8 GPUs on gpu1; gpu2 can reserve 3 GPUs"
    assert found.command == "grid boost request gpu1 gpu 3 --source gpu2"


def test_what_fits_nowhere_is_suggested_where_least_is_missing() -> None:
    nodes = (node("a", cpus=4), node("b", cpus=6), node("c", cpus=8))
    (found,) = suggested(Round(nodes=nodes, demand=(demand(shape(cpu=10), *nodes),)))

    assert found.command == "grid boost request c cpu 2 --source b"
    assert not found.by_itself  # it could be any of them: a person decides


def test_what_only_waits_for_work_to_end_is_no_reason_to_move_anything() -> None:
    nodes = (node("a", used=cpu(4)), node("b", used=cpu(4)))
    assert suggested(Round(nodes=nodes, demand=(demand(shape(cpu=2), *nodes),))) == ()


def test_what_waits_for_a_moment_only_is_not_worth_a_word() -> None:
    nodes = (MASTER, GPU1)
    assert suggested(Round(nodes=nodes, demand=(demand(shape("gpu-master", cpu=6), *nodes, waited_s=5),))) == ()


@pytest.mark.parametrize(
    ("lender", "rules", "reported"),
    [
        (node("gpu1", used=cpu(4)), Rules(), "freeing capacity on another node would help, or adding a node"),
        (node("gpu1", limits=limits(cpu=0)), Rules(), "a higher max_share_cpu of gpu1 would help"),
        (node("gpu1", limits=limits(can_share=False)), Rules(), "can_share: true on gpu1 would help"),
        (
            node("gpu1"),
            Rules(cordoned=frozenset({"gpu1"})),
            "gpu1 is cordoned; to let it share again: grid cooldown gpu1 --off",
        ),
        (
            node("gpu1"),
            Rules(headroom=Headroom("balanced", 1.0)),
            "a less conservative policy would let gpu1 lend what it keeps free",
        ),
        (node("gpu1", silent="no answer"), Rules(), "gpu1 lends again once its probe answers"),
        (node("gpu1", alive=False), Rules(), "gpu1 is down, and would help if it were back"),
    ],
    ids=["busy", "limit", "disabled", "cordoned", "kept", "silent", "down"],
)
def test_where_no_node_can_lend_what_would_help_is_reported(lender: Any, rules: Rules, reported: str) -> None:
    (found,) = suggested(Round(nodes=(MASTER, lender), use=hot("gpu-master"), rules=rules))

    assert found.what == f"gpu-master is short of CPUs; no node can lend even 1 CPU: {reported}"
    assert (found.ask, found.command) == (None, None)


def test_every_reason_with_a_remedy_says_what_that_would_change() -> None:
    assert set(LIFTED) == {code for code in RefusalCode if code.reason.remedy}


@pytest.mark.parametrize(
    ("other", "rules"),
    [
        (node("head", limits=limits(can_share=False)), Rules()),
        (node("head", gpus=1, used=amounts(gpu=1), limits=limits(can_share=False)), Rules()),
        (node("head", limits=limits(gpu=0)), Rules()),
        (node("head"), Rules(cordoned=frozenset({"head"}))),
        (node("head", silent="no answer"), Rules()),
        (node("head", alive=False), Rules()),
    ],
    ids=["not shared", "in use", "limit", "cordoned", "silent", "down"],
)
def test_no_change_is_suggested_for_a_node_that_could_lend_nothing_even_then(other: Any, rules: Rules) -> None:
    here = Round(nodes=(node("gpu1", gpus=1), other), use={"gpu1": {"gpu": 0.95}}, rules=rules)

    (found,) = suggested(here)

    assert found.what == (
        "gpu1 is short of GPUs; no node can lend 1 GPU: freeing capacity on another node would help, or adding a node"
    )


def test_of_two_nodes_that_do_not_share_the_one_that_could_lend_is_named() -> None:
    others = (node(name, gpus=gpus, limits=limits(can_share=False)) for name, gpus in (("a", 0), ("b", 1)))
    nodes = (node("gpu1", gpus=1), *others)
    (found,) = suggested(Round(nodes=nodes, use={"gpu1": {"gpu": 0.95}}))
    assert found.what.endswith("no node can lend 1 GPU: can_share: true on b would help")


def test_a_cordoned_target_is_what_has_to_change() -> None:
    rules = Rules(cordoned=frozenset({"gpu-master"}))
    (found,) = suggested(Round(nodes=(MASTER, GPU1), use=hot("gpu-master"), rules=rules))
    assert found.what.endswith("gpu-master is cordoned; to let it share again: grid cooldown gpu-master --off")


def test_a_lender_is_not_short_of_what_its_borrower_uses() -> None:
    """The measured load is the borrower's, on the GPU that was lent to it."""
    nodes = (node("gpu1", gpus=1), node("gpu2", gpus=1))
    lent = reservation(source="gpu1", target="head")
    use = {"gpu1": {"gpu": 0.95}}
    ahead = {("gpu1", GPU): rising(300.0)}

    assert suggested(Round(nodes=nodes, use=use, leases=(lent,))) == ()
    assert suggested(Round(nodes=nodes, leases=(lent,)), ahead) == ()
    assert len(suggested(Round(nodes=nodes, use=use))) == len(suggested(Round(nodes=nodes), ahead)) == 1


def test_a_node_that_needs_it_itself_is_not_suggested_as_a_lender() -> None:
    found = suggested(Round(nodes=(MASTER, node("gpu1")), use=hot("gpu-master") | hot("gpu1", 0.9)))
    assert "gpu1 needs it itself" in found[0].reason


# -- how sure ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "within", "likely"),
    [(0.8, 0.1, 0.5), (0.9, 0.1, 0.95), (0.7, 0.1, 0.05), (0.85, 0.1, 0.795), (0.9, 0.0, 1.0), (0.7, 0.0, 0.0)],
)
def test_how_likely_a_limit_is_passed_comes_from_the_interval(value: float, within: float, likely: float) -> None:
    assert passes(forecast(value, within=within), 0.8) == pytest.approx(likely, abs=0.005)


def test_each_side_of_an_interval_counts_for_itself() -> None:
    lopsided = replace(forecast(0.9), low=0.5, high=0.91)
    assert passes(lopsided, 0.8) == pytest.approx(0.66, abs=0.01)


def test_the_fewer_were_checked_the_less_sure_it_is() -> None:
    sure = [how_sure(forecast(0.9, checked=checked), 0.8) for checked in (None, 1, 10, 1000)]

    assert [round(value, 2) for value, _ in sure] == [0.5, 0.55, 0.75, 0.99]
    assert sure[0][1] == "possible (50%): no such forecast has been verified yet"
    assert sure[1][1].startswith("possible (55%): 1 such forecast verified")


def test_intervals_that_missed_make_it_less_sure() -> None:
    good = forecast(0.9, checked=1000)
    assert good.accuracy is not None
    bad = replace(good, accuracy=replace(good.accuracy, covered=0.45))
    assert how_sure(bad, 0.8)[0] == pytest.approx(how_sure(good, 0.8)[0] / 2)


def test_what_is_a_mere_guess_is_not_suggested() -> None:
    wide = {("gpu-master", MEMORY): rising(300.0, within=1.0, checked=None)}
    assert suggested(Round(), wide) == ()


def test_nothing_is_suggested_from_forecasts_without_enough_history() -> None:
    known = rising(300.0, checked=20)
    unknown = tuple(replace(one, low=0.0, high=1.0, enough_history=False) for one in known)

    assert suggested(Round(), {("gpu-master", MEMORY): unknown}) == ()
    (found,) = suggested(Round(), {("gpu-master", MEMORY): (*known[:2], *unknown[2:])})
    assert found.in_s == 300.0


# -- which, and in which order ----------------------------------------------------------------------------------


def test_the_most_urgent_few_come_first_in_an_order_that_is_always_the_same() -> None:
    nodes = tuple(node(f"n{number}") for number in range(9))
    waiting = demand(shape("n8", cpu=6), *nodes)
    here = Round(nodes=nodes, use=hot("n1", 0.9) | hot("n2", 0.95), demand=(waiting,))
    ahead = {(f"n{number}", MEMORY): rising(at) for number, at in ((3, 600.0), (4, 300.0), (5, 300.0), (6, 900.0))}

    found = suggested(here, ahead)

    assert len(found) == MOST
    assert [one.node for one in found] == ["n2", "n1", "n8", "n4", "n5"]
    assert suggested(here, dict(reversed(ahead.items()))) == found


def test_a_peak_that_is_not_expected_is_no_suggestion() -> None:
    calm = tuple(forecast(0.7, in_s=at) for at in HORIZONS_S)
    assert suggested(Round(), {("gpu-master", CPU): calm}) == ()


@pytest.mark.parametrize(
    ("policy", "pressed", "foreseen"),
    [
        (SharingPolicy.CONSERVATIVE, False, False),
        (SharingPolicy.BALANCED, True, False),
        (SharingPolicy.PREDICTIVE, True, True),
    ],
)
def test_it_says_whether_the_policy_does_it_by_itself(policy: SharingPolicy, pressed: bool, foreseen: bool) -> None:
    here = Round(use=hot("gpu-master"), policy=policy)
    assert [one.by_itself for one in suggested(here)] == [pressed]
    assert [one.by_itself for one in suggested(Round(policy=policy), {("gpu1", CPU): rising(300.0)})] == [foreseen]


def test_what_is_lent_already_is_not_offered_again() -> None:
    lent = lease(source="gpu1", target="gpu2", amount=3, expires_at=NOON + timedelta(hours=1))
    lender = replace(node("gpu1"), total=amounts(cpu=1, memory=16), free=amounts(cpu=1, memory=16))
    (found,) = suggested(Round(nodes=(MASTER, lender), use=hot("gpu-master"), leases=(lent,)))
    assert found.command == "grid boost request gpu-master cpu 1 --source gpu1"
