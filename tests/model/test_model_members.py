"""Requests for several nodes: what a request may say about its members, and what a run makes of its options."""

from typing import Any

import pytest

from distributed_grid.errors import InvalidRequest
from distributed_grid.model.requests import Layout, command, make_ask, on_nodes
from distributed_grid.run.held_lease import Wanted


def body(**changes: Any) -> Any:
    return {"target_node": "head", "resource_type": "gpu", "amount": 1} | changes


def test_amounts_are_those_of_one_member() -> None:
    ask = make_ask(body(members=3, layout="strict_spread", along={"cpu": 2}))

    assert (ask.units, dict(ask.along), ask.members) == (3 * 10_000, {"cpu": 6 * 10_000}, 3)
    assert ask.layout is Layout.STRICT_SPREAD
    assert ask.amounts == "3 times 1 GPU, 2 CPUs"


@pytest.mark.parametrize(
    "wrong",
    [
        {"members": 0},
        {"members": 1001},
        {"members": True},
        {"members": "3"},
        {"members": 2, "max_sources": 2},
        {"members": 2, "delivery": "transfer", "resource_type": "cpu"},
        {"members": 2, "layout": "anyhow"},
    ],
    ids=str,
)
def test_members_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        make_ask(body(**wrong))


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (Wanted(nodes=3, gpus="1"), "grid run --nodes 3 --gpus 1"),
        (Wanted(nodes=1, cpus="8"), "grid run --nodes 1 --cpus 8"),
        (Wanted(gpus="4", cpus="6", memory="2"), "grid run --gpus 4 --cpus 6 --memory 2"),
        (Wanted(gpus="4", cpus="6", spread=True), "grid run --spread --gpus 4 --cpus 6"),
        (Wanted(cpus="2", sources=("b",)), "grid run --cpus 2 --source b"),
        (Wanted(nodes=2, sources=("b", "c")), "grid run --nodes 2 --cpus 1 --source b --source c"),
    ],
)
def test_a_run_asks_for_what_its_options_say_and_a_command_repeats_them(wanted: Wanted, says: str) -> None:
    wanted.check()
    assert command(make_ask(wanted.body("head", ""))) == says


def test_an_amount_that_is_spread_is_divided_into_single_devices_or_cores() -> None:
    each, layout = on_nodes({"gpu": 4, "cpu": 6, "memory": "2"}, None, spread=True)

    assert each == {"gpu": 1, "cpu": 1.5, "memory": 0.5}
    assert layout == {"members": 4, "layout": "spread"}
    assert on_nodes({"cpu": "2"}, None, spread=True) == ({"cpu": 1}, {"members": 2, "layout": "spread"})
    assert on_nodes({"cpu": "2"}, None, spread=False) == ({"cpu": "2"}, {})


@pytest.mark.parametrize(
    "wrong",
    [
        Wanted(nodes=2, spread=True, cpus="2"),
        Wanted(spread=True, cpus="1.5"),
        Wanted(spread=True, gpus="0.5"),
        Wanted(spread=True, memory="4"),
        Wanted(boost="b1", nodes=2),
        Wanted(boost="b1", spread=True),
    ],
)
def test_options_that_contradict_each_other_need_no_cluster_to_say_so(wrong: Wanted) -> None:
    with pytest.raises(InvalidRequest):
        wrong.check()


def test_a_run_may_be_divided_and_a_task_or_a_boost_of_several_kinds_may_not() -> None:
    several = {"along": {"cpu": 2}}
    assert make_ask(body(purpose="run", **several)).max_sources > 1
    assert make_ask(body(purpose="run", members=1, **several)).max_sources == 1
    assert make_ask(body(purpose="task", **several)).max_sources == 1
    assert make_ask(body(**several)).max_sources == 1
