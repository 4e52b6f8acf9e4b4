"""Where a task goes: strategies, nearness, boosts and gangs."""

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import amounts, boost_room, cpu, lease, limits, node, reservation, snapshot, sought

from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.scheduler import NodeColumns, Sought, choose, choose_gang, register_strategy, strategies
from distributed_grid.decide.scheduler.placing import promise, refusals
from distributed_grid.errors import InvalidRequest
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.plans import NO_RULES, Headroom, Rules
from distributed_grid.model.scheduling import SchedulingStrategy

# The package shows a function of the same name.
registered = importlib.import_module("distributed_grid.decide.scheduler.strategies")

HOME = node("gpu-master", cpus=4)
SMALL = node("small", cpus=4, limits=limits(priority=4), labels={"grid/speed": "2", "zone": "a"})
BIG = node("big", cpus=16, limits=limits(priority=2), labels={"zone": "b"})
BUSY = node("busy", cpus=16, used=cpu(12), labels={"zone": "a"})
NODES = (HOME, SMALL, BIG, BUSY)


def chosen(*nodes: Node, **more: Any) -> str | None:
    choice = choose(sought(*(nodes or NODES), **more))
    return None if choice is None else choice.node


def gang(count: int, *nodes: Node, **more: Any) -> list[str] | None:
    found = choose_gang(sought(*(nodes or NODES), **more), count)
    return None if found is None else [choice.node for choice in found]


# -- strategies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "cpus", "expected"),
    [
        ("local_first", 2, "gpu-master"),
        ("local_first", 8, "big"),  # too large for its own node: the least busy of the others
        ("best_fit", 4, "busy"),  # exactly what it has left; so has small, but the name comes later
        ("best_fit", 3, "busy"),
        ("load_balanced", 2, "big"),
        ("performance_optimized", 1, "small"),  # twice as fast, and three quarters idle
        ("performance_optimized", 4, "big"),  # but not if that fills it
        ("cost_optimized", 2, "small"),  # its priority makes it the cheapest
        ("cost_optimized", 8, "big"),
        ("spread", 2, "big"),  # no node has a task: the least busy
        ("node_specific", 2, "gpu-master"),
    ],
)
def test_each_strategy_prefers_what_it_says(strategy: str, cpus: float, expected: str) -> None:
    assert chosen(strategy=strategy, cpu=cpus) == expected


def test_every_strategy_is_registered_and_says_what_it_prefers() -> None:
    assert set(SchedulingStrategy) <= set(strategies())
    assert all(strategy.summary for strategy in strategies().values())


def test_the_measured_load_counts_not_only_what_is_spoken_for() -> None:
    pressed = {"big": snapshot(BIG, cpu=0.95)}
    assert chosen(strategy="load_balanced", cpu=1) == "big"
    assert chosen(strategy="load_balanced", cpu=1, snapshots=pressed) != "big"
    stale = {"big": replace(pressed["big"], stale=True)}
    assert chosen(strategy="load_balanced", cpu=1, snapshots=stale) == "big"


def test_a_configured_cost_goes_before_the_priority() -> None:
    dear = replace(SMALL, labels={"grid/cost": "10"})
    assert chosen(HOME, dear, BIG, strategy="cost_optimized", cpu=2) == "big"
    nonsense = replace(SMALL, labels={"grid/cost": "cheap"})
    assert chosen(HOME, nonsense, BIG, strategy="cost_optimized", cpu=2) == "small"


def test_spread_counts_the_tasks_that_were_placed() -> None:
    one, two = node("one", cpus=8), node("two", cpus=8)
    assert gang(4, one, two, target="one", strategy="spread") == ["one", "two", "one", "two"]


def test_equal_nodes_are_taken_by_name() -> None:
    assert chosen(node("b"), node("a"), node("gpu-master", cpus=1), cpu=2) == "a"


def test_a_strategy_can_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registered, "REGISTERED", dict(registered.strategies()))

    @register_strategy("last-by-name", "the last name")
    def last(columns: NodeColumns, _: Sought) -> np.ndarray:  # type: ignore[type-arg]
        return np.arange(len(columns))

    assert chosen(strategy="last_by_name", cpu=1) == "small"
    assert strategies()["last_by_name"].summary == "the last name"


def test_a_strategy_that_knows_nothing_of_a_node_puts_it_last_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registered, "REGISTERED", dict(registered.strategies()))
    register_strategy("unsure")(lambda columns, _: np.where(columns.named(["big"]), -7.0, np.nan))

    assert chosen(strategy="unsure", cpu=2) == "big"
    assert chosen(HOME, SMALL, strategy="unsure", cpu=2) == "gpu-master"


def test_a_strategy_that_there_is_not_is_nonsense() -> None:
    with pytest.raises(InvalidRequest, match="Unknown strategy: 'best'"):
        chosen(strategy="best")


# -- what is in the way ---------------------------------------------------------------------------------------


def test_a_refusal_tells_for_every_node_why_not() -> None:
    closed = node("closed", cpus=64, limits=limits(can_share=False))
    down = node("down", cpus=64, alive=False)
    silent = node("silent", cpus=64, silent="its probe does not answer")
    limited = node("limited", cpus=64, limits=limits(cpu=2))
    asked = sought(HOME, BIG, closed, down, silent, limited, cpu=32)

    assert choose(asked) is None
    assert refusals(asked) == {
        "gpu-master": "4 of 4 CPUs free, 32 requested",
        "big": "16 of 16 CPUs free, 32 requested",
        "closed": "its configuration says can_share: false",
        "down": "it is not connected to the cluster",
        "silent": "no recent measurement: its probe does not answer",
        "limited": "0 of at most 2 CPUs lent, 32 requested",
    }


def test_a_node_that_does_not_share_carries_its_own_tasks() -> None:
    alone = node("gpu-master", cpus=4, limits=limits(can_share=False))
    assert chosen(alone, BIG, cpu=4) == "gpu-master"
    assert chosen(alone, BIG, cpu=4, target="big", strategy="best_fit") == "big"


def test_what_a_lender_keeps_for_itself_is_not_given_to_others_but_to_its_own() -> None:
    keeps = Rules(headroom=Headroom("balanced", of_base=0.5))
    assert chosen(HOME, BIG, cpu=9, rules=keeps) is None
    assert chosen(HOME, BIG, cpu=9, rules=keeps, target="big") == "big"


def test_a_cordoned_node_gets_nothing_and_gives_nothing() -> None:
    cordoned = Rules(cordoned=frozenset({"big"}))
    assert chosen(HOME, BIG, cpu=8, rules=cordoned) is None
    assert chosen(HOME, BIG, cpu=1, target="big", rules=cordoned) is None
    assert "cordoned" in refusals(sought(HOME, BIG, cpu=1, target="big", rules=cordoned))["gpu-master"]


def test_every_kind_must_fit_on_one_node() -> None:
    gpus, memory = node("gpus", gpus=2, memory=4), node("memory", memory=64)
    assert chosen(HOME, gpus, memory, gpu=1, memory=4) == "gpus"
    assert chosen(HOME, gpus, memory, gpu=1, memory=8) is None
    assert refusals(sought(HOME, gpus, memory, gpu=1, memory=8))["memory"] == "0 of 0 GPUs free, 1 requested"


def test_a_custom_resource_that_no_node_has_is_told() -> None:
    widgets = node("widgets", base=amounts(cpu=4, widget=2))
    assert chosen(HOME, widgets, custom={"widget": 2}) == "widgets"
    assert refusals(sought(HOME, custom={"widget": 2}))["gpu-master"] == "0 of 0 widget free, 2 requested"


def test_what_leases_took_and_ray_does_not_show_yet_is_not_given_again() -> None:
    held = lease(source="big", amount=14)
    assert chosen(HOME, BIG, cpu=8, leases=(held,)) is None


# -- boosts ---------------------------------------------------------------------------------------------------


def test_what_was_transferred_to_the_target_is_its_own() -> None:
    boosted = node("gpu-master", cpus=4, borrowed=cpu(6))
    moved = (lease("b1", "big", amount=2), lease("b2", "big", amount=4))
    assert chosen(boosted, BUSY, cpu=10, leases=moved) == "gpu-master"
    assert chosen(HOME, BUSY, cpu=10) is None


def test_a_task_that_a_reserved_boost_can_carry_stays_with_the_target() -> None:
    choice = choose(sought(HOME, BIG, node="gpu-master", cpu=6, boosts=(boost_room(runs_on="big", cpu=8),)))
    assert choice is not None and choice.boost is not None
    assert (choice.node, choice.runs_on, choice.boost.id) == ("gpu-master", "big", "b1")


def test_its_own_room_goes_first_and_then_the_boost_that_it_fills_the_most() -> None:
    boosts = (boost_room("large", cpu=8), boost_room("tight", cpu=5))
    own = choose(sought(HOME, BIG, cpu=4, boosts=boosts))
    assert own is not None and own.boost is None
    inside = choose(sought(HOME, BIG, cpu=5, boosts=boosts))
    assert inside is not None and inside.boost is not None and inside.boost.id == "tight"


def test_one_task_needs_one_boost_that_has_room_for_all_of_it() -> None:
    two = (boost_room("b1", cpu=4), boost_room("b2", cpu=4))
    asked = sought(HOME, node="gpu-master", cpu=6, boosts=two)
    assert choose(asked) is None
    assert refusals(asked)["gpu-master"] == "4 of 4 CPUs free, 6 requested, and no boost of 2 has room for it"


def test_a_gang_may_be_spread_over_boosts() -> None:
    two = (boost_room("b1", cpu=4), boost_room("b2", cpu=8))
    found = choose_gang(sought(node("gpu-master", cpus=1), node="gpu-master", cpu=4, boosts=two), 3)
    assert found is not None
    assert sorted(choice.boost.id for choice in found if choice.boost) == ["b1", "b2", "b2"]
    assert choose_gang(sought(node("gpu-master", cpus=1), node="gpu-master", cpu=4, boosts=two), 4) is None


# -- near and far ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"affinity": {"nodes": ["small"]}}, "small"),
        ({"affinity": {"nodes": ["small", "busy"]}, "strategy": "best_fit"}, "busy"),
        ({"affinity": {"nodes": ["nowhere"]}}, None),
        ({"affinity": {"labels": {"zone": "b"}}}, "big"),
        ({"affinity": {"labels": {"zone": "a"}}, "cpu": 4, "strategy": "load_balanced"}, "busy"),
        ({"affinity": {"labels": {"zone": "a"}, "nodes": ["big"]}}, None),
        ({"affinity": {"tasks": ["train"]}}, "busy"),
        ({"affinity": {"tasks": ["gone"]}}, None),
        ({"anti_affinity": {"nodes": ["gpu-master"]}, "strategy": "load_balanced"}, "big"),
        ({"anti_affinity": {"labels": {"zone": "b"}}, "cpu": 8}, None),
        ({"anti_affinity": {"tasks": ["train"]}, "strategy": "best_fit", "cpu": 4}, "gpu-master"),
        ({"affinity": {"nodes": ["small"], "required": False}}, "small"),
        ({"affinity": {"nodes": ["small"], "required": False}, "cpu": 8}, "big"),
        ({"anti_affinity": {"nodes": ["gpu-master"], "required": False}}, "big"),
        ({"anti_affinity": {"nodes": ["big", "busy", "small"], "required": False}, "cpu": 8}, "big"),
    ],
    ids=str,
)
def test_a_task_is_near_and_far_as_it_was_asked(more: dict[str, Any], expected: str | None) -> None:
    assert chosen(peers={"train": ["busy"]}, **({"cpu": 2} | more)) == expected


def test_a_node_that_is_not_near_or_not_far_is_reported() -> None:
    asked = sought(
        *NODES, cpu=2, affinity={"labels": {"zone": "a"}}, anti_affinity={"tasks": ["x"]}, peers={"x": ["small"]}
    )
    told = refusals(asked)
    assert told["big"] == "the task may not run there: its affinity requires zone=a"
    assert told["small"] == "the task may not run there: its anti-affinity excludes the tasks x"
    assert "busy" not in told


def test_a_nodes_new_labels_are_seen() -> None:
    asked = sought(HOME, BIG, affinity={"labels": {"zone": "c"}}, cpu=2)
    assert choose(asked) is None
    asked.columns.put(replace(BIG, labels={"zone": "c"}), Usage(), NO_RULES)
    assert choose(replace(asked)).node == "big"  # type: ignore[union-attr]


# -- gangs ----------------------------------------------------------------------------------------------------


def test_a_gang_has_places_for_all_or_for_none() -> None:
    assert gang(3, HOME, SMALL, BUSY, cpu=4, strategy="best_fit") == ["busy", "gpu-master", "small"]
    assert gang(4, HOME, SMALL, BUSY, cpu=4, strategy="best_fit") is None


def test_a_gangs_search_leaves_the_table_as_it_was() -> None:
    asked = sought(HOME, SMALL, BUSY, cpu=4)
    for count in (3, 4):
        choose_gang(asked, count)
        assert not any(column.any() for column in asked.columns.promised.values())
        assert not asked.columns.tasks.any()


def test_members_that_want_to_be_apart_are_on_nodes_of_their_own() -> None:
    apart = {"anti_affinity": {"tasks": ["replica"]}, "tags": ["replica"], "cpu": 1}
    found = gang(4, **apart)
    assert found is not None and sorted(found) == sorted(n.name for n in NODES)
    assert gang(5, **apart) is None
    assert gang(4, **apart, peers={"replica": ["big"]}) is None


def test_members_that_want_to_be_together_are_on_one_node() -> None:
    together = {"affinity": {"tasks": ["ring"]}, "tags": ["ring"], "strategy": "best_fit"}
    assert gang(4, cpu=1, **together) == ["busy"] * 4
    assert gang(4, cpu=4, **together) == ["big"] * 4
    assert gang(5, cpu=4, **together) is None
    assert gang(2, cpu=1, **together, peers={"ring": ["big"]}) == ["big"] * 2


# -- the table ------------------------------------------------------------------------------------------------


def test_what_was_promised_is_not_free_until_it_is_given_back() -> None:
    asked = sought(node("gpu-master", cpus=2), cpu=2)
    choice = choose(asked)
    assert choice is not None
    after = promise(asked, choice)
    assert choose(after) is None
    promise(after, choice, -1)
    assert choose(replace(after)) is not None


def test_a_row_that_is_set_anew_is_as_in_a_new_table() -> None:
    columns = NodeColumns.of(NodeTable(NODES))
    changed = node("big", cpus=16, used=cpu(3), base=amounts(cpu=16, memory=16, widget=1))
    held = (reservation(kind="cpu", amount=2, source="big"),)
    columns.put(changed, Usage.of(held), NO_RULES)
    afresh = NodeColumns.of(NodeTable((HOME, SMALL, changed, BUSY)), Usage.of(held))
    for kind in ("cpu", "memory", "widget"):
        for name in ("total", "own", "lend"):
            assert (getattr(columns, name)[kind] == getattr(afresh, name)[kind]).all(), (name, kind)


@pytest.mark.parametrize("kept", [Headroom("balanced", of_base=0.2), Headroom("conservative", of_idle=0.2)])
def test_a_node_lacks_what_its_row_says_once_some_of_it_is_promised(kept: Headroom) -> None:
    """Of 8 CPUs, 1.6 are kept and 2.4 promised. A promise makes neither the base nor the headroom smaller."""
    asked = sought(HOME, node("gpu1", cpus=8), rules=Rules(headroom=kept), cpu=4.4)
    row = asked.columns.row["gpu1"]
    asked.columns.promise(row, cpu(2.4))
    assert asked.columns.rooms("cpu", asked.columns.row["gpu-master"])[row] == cpu(4)["cpu"]
    assert asked.columns.why_lacking(row, "gpu-master", cpu(4)) == ""
    told = asked.columns.why_lacking(row, "gpu-master", cpu(4.4))
    headroom = f"policy {kept.policy} keeps 1.6 CPUs free for the node's own work"
    assert told == f"5.6 of 8 CPUs free, but {headroom}; 4.4 requested"
