"""Boosts from several lenders over HTTP: what a request may say, and what every answer shows of the parts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_grid import until
from served_grid import ServedGrid

from distributed_grid.errors import GridError, InvalidRequest, NoCapacity, SameNode, SourceNotFound

TWELVE = {"target_node": "b", "resource_type": "cpu", "amount": 12}  # a and c can lend 8 each


@pytest.fixture(autouse=True)
def _nothing_left(served: ServedGrid) -> Iterator[None]:
    served.measure()
    yield
    for request in served.client.queue()["requests"]:
        served.client.release_allocation(request["request_id"])
    for boost in served.client.boost_status()["boosts"]:
        served.client.release_boost(boost["boost_id"], {"grace_seconds": 0})


def by_lender(shown: Any) -> dict[str, float]:
    return {part["source_node"]: part["amount"] for part in shown["parts"]}


def requested(served: ServedGrid, **changes: Any) -> Any:
    return served.client.request_boost({**TWELVE, **changes})


def test_an_answer_has_the_part_of_each_lender_and_why(served: ServedGrid) -> None:
    boost = requested(served)
    assert (boost["source_node"], boost["amount"], boost["resources"]) == ("a", 12, {"cpu": 12})
    assert boost["parts"] == [
        {"source_node": "a", "amount": 8, "resources": {"cpu": 8}, "reason": "the most that a can lend", "bundle": 1},
        {"source_node": "c", "amount": 4, "resources": {"cpu": 4}, "reason": "the rest", "bundle": 2},
    ]
    assert served.client.boost(boost["boost_id"])["parts"] == boost["parts"]
    for node in ("a", "b", "c"):
        assert [one["boost_id"] for one in served.client.boost_status(node)["boosts"]] == [boost["boost_id"]]
    assert served.client.renew_boost(boost["boost_id"], 60.0)["parts"] == boost["parts"]


def test_a_boost_of_one_lender_has_no_parts(served: ServedGrid) -> None:
    assert requested(served, amount=8)["parts"] == []
    assert requested(served, target_node="a", amount=1, source_node="c")["parts"] == []


def test_a_reservations_companions_are_divided_too(served: ServedGrid) -> None:
    boost = requested(served, resource_type="gpu", amount=2)
    assert [part["resources"] for part in boost["parts"]] == [{"cpu": 1, "gpu": 1}] * 2
    assert boost["resources"] == {"cpu": 2, "gpu": 2}
    assert boost["placement_group"]


def test_why_names_every_lender_as_chosen(served: ServedGrid) -> None:
    why = served.client.why(requested(served)["boost_id"])
    verdicts = {node["node"]: node for node in why["nodes"]}
    assert [verdicts[name]["verdict"] for name in "abc"] == ["chosen", "IsTarget", "chosen"]
    assert verdicts["c"]["detail"].startswith("it lends a part: no node can lend all of it")


def test_a_plan_shows_the_parts_that_the_request_then_gets(served: ServedGrid) -> None:
    plan = served.client.plan({**TWELVE})
    assert plan["fits"] and plan["source_node"] == "a"
    assert plan["summary"] == "12 CPUs for b: a and c together lend it now (transfer)"
    assert plan["parts"] == requested(served)["parts"]


def test_a_plan_of_too_much_says_what_several_could_lend(served: ServedGrid) -> None:
    plan = served.client.plan({**TWELVE, "amount": 17})
    assert (plan["fits"], plan["parts"]) == (False, [])
    assert plan["largest_now"] == {"amount": 16, "source_node": "a and c"}


@pytest.mark.parametrize("amount", [4, 5, 12])
def test_released_amounts_come_back_from_the_last_lenders_first(served: ServedGrid, amount: int) -> None:
    boost = requested(served)
    given = served.client.release_boost(boost["boost_id"], {"amount": amount, "wait_seconds": 5})
    assert (given["state"], given["amount"]) == ("released", amount)
    left = {one["boost_id"]: one for one in served.client.boost_status()["boosts"]}
    if amount == 12:
        assert left == {} and given["boost_id"] == boost["boost_id"]
        return
    assert by_lender(given) == {4: {"c": 4}, 5: {"a": 1, "c": 4}}[amount]
    assert by_lender(left[boost["boost_id"]]) == {"a": 12 - amount}
    assert served.cluster.true_totals()["c"]["cpu"] == 8 * 10_000


def test_a_reservation_of_several_lenders_is_returned_whole(served: ServedGrid) -> None:
    boost = requested(served, resource_type="gpu", amount=2)
    with pytest.raises(GridError):
        served.client.release_boost(boost["boost_id"], {"amount": 1})
    assert by_lender(served.client.boost(boost["boost_id"])) == {"a": 1, "c": 1}


def test_one_lender_is_all_that_a_request_may_allow(served: ServedGrid) -> None:
    with pytest.raises(NoCapacity) as refused:
        requested(served, max_sources=1)
    assert refused.value.because[0] == "no node can ever lend 12 CPUs (a can lend the most: 8 CPUs)"
    assert refused.value.try_next == "8 CPUs can be lent by a: grid boost request b cpu 8 --source a"
    assert not served.client.plan({**TWELVE, "max_sources": 1})["fits"]


def test_only_named_nodes_lend(served: ServedGrid) -> None:
    assert by_lender(requested(served, source_nodes=["c", "a"])) == {"a": 8, "c": 4}
    with pytest.raises(NoCapacity) as refused:
        requested(served, target_node="a", amount=9, source_nodes=["c"])
    assert refused.value.because[0] == "no node can ever lend 9 CPUs (c can lend the most: 8 CPUs)"


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"max_sources": 0}, InvalidRequest),
        ({"max_sources": 65}, InvalidRequest),
        ({"max_sources": 1.5}, InvalidRequest),
        ({"max_sources": "many"}, InvalidRequest),
        ({"source_nodes": "a"}, InvalidRequest),
        ({"source_nodes": ["a"] * 65}, InvalidRequest),
        ({"source_nodes": ["a", "b"]}, SameNode),
        ({"source_nodes": ["a", "nowhere"]}, SourceNotFound),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(served: ServedGrid, wrong: dict[str, Any], error: type[GridError]) -> None:
    for ask in (served.client.request_boost, served.client.plan, served.client.request_allocation):
        with pytest.raises(error):
            ask({**TWELVE, **wrong})
    assert not served.client.boost_status()["boosts"]


def test_a_waiting_request_names_the_nodes_that_it_expects(served: ServedGrid) -> None:
    first = requested(served, amount=16, duration_seconds=600)
    waiting = served.client.request_allocation({**TWELVE, "amount": 10})
    (shown,) = served.client.queue()["requests"]
    assert shown["expected_source"] == "a and c"
    served.client.release_boost(first["boost_id"], {"grace_seconds": 0, "wait_seconds": 5})
    met = until(lambda: served.client.allocation(waiting["request_id"])["boost"], 20, "the request is met")
    assert by_lender(met) == {"a": 8, "c": 2}


# -- whose it is -----------------------------------------------------------------------------------------------


def test_only_an_owner_of_every_lender_may_release_anothers_boost(tmp_path: Path) -> None:
    grid = ServedGrid(tmp_path, node_owners={"a": ["ana", "carl", "team:infra"], "c": ["carl", "team:infra"]})
    try:
        grid.measure()
        boost = grid.client.request_boost({**TWELVE})["boost_id"]
        carl, ana = grid.token("carl", "lend"), grid.token("ana", "lend")
        status, refused = grid.ask("POST", f"/boosts/{boost}/release", {}, token=ana)
        assert (status, refused["error"]["code"]) == (403, "NOT_OWNER")
        assert "an owner of a and c (carl, team:infra)" in refused["error"]["try_next"]
        assert grid.ask("POST", f"/boosts/{boost}/release", {"amount": 4}, token=carl)[0] == 200
        until(lambda: len(grid.client.boost_status()["boosts"]) == 1, 20, "the part is returned")
        assert grid.ask("POST", f"/boosts/{boost}/release", {}, token=ana)[0] == 200, "only a lends it now"
    finally:
        grid.close()
