"""What was measured, over HTTP."""

from typing import Any

import pytest
from builders import amounts, reading
from live_grid import until
from prometheus_client.parser import text_string_to_metric_families
from served_grid import ServedGrid

from distributed_grid.errors import BoostNotFound, NoCapacity
from distributed_grid.model.demand import Bundle, Pending, Shape


def node(grid: ServedGrid, name: str) -> dict[str, Any]:
    return next(node for node in grid.client.nodes()["nodes"] if node["name"] == name)


def measured(grid: ServedGrid, name: str = "a") -> dict[str, Any]:
    return until(lambda: (found := node(grid, name))["state"] == "ok" and found)


def test_every_node_shows_what_ray_counts_and_what_was_measured(served: ServedGrid) -> None:
    found = measured(served)

    assert (found["total"]["cpu"], found["used"]["cpu"]) == (8, 0)
    assert found["measured"]["host"]["cpu_used"] == 8.0
    assert found["pressure"]["cpu"] == 0.5
    assert 0 <= found["age_seconds"] < 60


def test_one_node_has_its_history_trends_forecast_demand_and_boosts(served: ServedGrid) -> None:
    measured(served)
    boost = served.client.request_boost({"target_node": "a", "resource_type": "cpu", "amount": 1, "source_node": "b"})

    found = until(lambda: (one := served.client.node("a"))["history"]["times"] and one)

    assert found["history"]["series"]["cpu"][0] == 0.5
    assert found["trends"]["cpu"]["5m"]["per_minute"] is None  # one sample is no trend
    assert found["forecast"]["cpu"]["horizon_seconds"] >= 900
    assert found["forecast"]["gpu"] is None
    assert [one["boost_id"] for one in found["boosts"]] == [boost["boost_id"]]
    served.client.release_boost(boost["boost_id"])


def test_a_node_is_under_pressure_by_the_thresholds_that_are_configured(fresh: ServedGrid) -> None:
    measured(fresh)
    assert node(fresh, "a")["pressed"] == []

    fresh.telemetry.answers["a"] = reading(cpu_used=16.0, memory_used=0)  # 100 %; with 0.6 of the weight, not 80 %
    fresh.measure()

    for found in (fresh.client.node("a"), *fresh.client.cluster_status()["nodes"][:1]):
        assert (found["name"], found["pressed"]) == ("a", ["cpu"])
        assert found["pressure"]["overall"] < 0.8


def test_all_nodes_have_their_last_hour_in_few_points_if_asked(fresh: ServedGrid) -> None:
    measured(fresh)
    fresh.telemetry.answers["a"] = reading(cpu_used=16.0, memory_used=0)
    fresh.measure()

    found = {node["name"]: node for node in fresh.client.nodes(history=12)["nodes"]}

    series = found["b"]["history"]["series"]
    assert {kind: len(points) for kind, points in series.items()} == dict.fromkeys(
        ("overall", "cpu", "memory", "gpu"), 12
    )
    assert series["cpu"] == [None] * 11 + [0.5]
    assert series["overall"][-1] == 0.375  # 0.3 x 0.5 + 0.3 x 0.25, of 0.6
    assert series["gpu"] == [None] * 12
    assert found["a"]["history"]["series"]["cpu"][-1] > 0.5  # the mean of all rounds so far
    assert "history" not in node(fresh, "a")
    token = fresh.home.token.read_text().strip()
    assert fresh.ask("GET", "/nodes?history=0", token=token)[0] == 422


def test_a_node_that_is_not_there_is_not_found(served: ServedGrid) -> None:
    status, answer = served.ask("GET", "/nodes/nobody", token=served.home.token.read_text().strip())

    assert (status, answer["error"]["code"]) == (404, "TARGET_NOT_FOUND")
    assert "a, b, c" in answer["error"]["try_next"]


def test_what_a_node_could_lend_is_what_a_request_gets_and_no_more(fresh: ServedGrid) -> None:
    """Planners of roles rely on it: the policy's headroom and the node's limits are counted in."""
    wanted = {"target_node": "a", "source_node": "b", "resource_type": "cpu"}
    assert node(fresh, "b")["lendable"]["cpu"] == 8
    fresh.client.set_policy(policy="conservative")
    could = node(fresh, "b")["lendable"]["cpu"]

    with pytest.raises(NoCapacity):
        fresh.client.request_boost({**wanted, "amount": could + 1})
    fresh.client.request_boost({**wanted, "amount": could})

    assert could == 4, "conservative lends half"
    assert node(fresh, "b")["lendable"]["cpu"] == 0


def test_a_node_that_falls_silent_is_stale_and_lends_nothing_until_it_answers_again(fresh: ServedGrid) -> None:
    measured(fresh)
    wanted = {"target_node": "a", "resource_type": "cpu", "amount": 1, "source_node": "b"}

    fresh.telemetry.answers["b"] = "its probe died"
    fresh.measure()
    assert (node(fresh, "b")["state"], node(fresh, "b")["stale_because"]) == ("stale", "its probe died")
    try:
        fresh.client.request_boost(wanted)
        raise AssertionError("a node lent of which nothing is known")
    except NoCapacity as refused:
        assert any("b: no recent measurement: its probe died [Stale]" in line for line in refused.because)

    fresh.telemetry.answers["b"] = reading()
    fresh.measure()
    assert node(fresh, "b")["state"] == "ok"
    assert fresh.client.request_boost(wanted)["state"] == "active"


def test_pressure_is_an_event(fresh: ServedGrid) -> None:
    fresh.telemetry.answers["c"] = reading(cpu_used=16.0)
    fresh.measure()
    until(lambda: any(e["event"] == "pressure_high" and e["node"] == "c" for e in fresh.client.events()))
    fresh.telemetry.answers["c"] = reading(cpu_used=0.0)
    fresh.measure()

    told = [e["message"] for e in fresh.client.events() if e["node"] == "c" and e["event"].startswith("pressure")]
    assert told == ["c is under pressure: cpu at 100%", "c is no longer under pressure: cpu at 0%"]


def test_what_waits_is_told_with_its_reason(fresh: ServedGrid) -> None:
    fresh.telemetry.waiting = (Pending(Shape((Bundle(amounts(cpu=64)),)), 3, {"a": 3}),)
    fresh.measure()

    (demand,) = fresh.client.demand()["demand"]

    assert (demand["shape"], demand["count"], demand["reason"]) == ("64 CPUs", 3, "infeasible")
    assert demand["detail"] == "no node has more than 8 CPUs"
    assert fresh.client.cluster_status()["demand"][0]["shape"] == "64 CPUs"


def test_prometheus_reads_the_same(served: ServedGrid) -> None:
    measured(served)
    token = served.home.token.read_text().strip()

    answer = served.raw("GET", "/metrics", None, {"Authorization": f"Bearer {token}"}, at="")

    families = {family.name: family for family in text_string_to_metric_families(answer.body.decode())}
    pressure = {
        sample.labels["node"]: sample.value
        for sample in families["grid_node_pressure_ratio"].samples
        if sample.labels["resource"] == "cpu"
    }
    assert pressure["a"] == 0.5
    assert families["grid_collecting_seconds"].samples[0].value > 0
    assert "grid_controller_process_resident_memory_bytes" in families


def test_how_long_a_command_took_is_counted_and_noted(fresh: ServedGrid) -> None:
    boost = fresh.client.request_boost({"target_node": "a", "resource_type": "cpu", "amount": 1})
    fresh.client.release_boost(boost["boost_id"], {"wait_seconds": 20})
    fresh.client.report_run(boost["boost_id"], 12.5, 0)  # which may come when the boost has ended

    with pytest.raises(BoostNotFound):
        fresh.client.report_run("0123-abcd", 12.5, 0)

    assert "took 12.5 s and ended with 0" in fresh.client.events()[-1]["message"]
    token = fresh.home.token.read_text().strip()
    text = fresh.raw("GET", "/metrics", None, {"Authorization": f"Bearer {token}"}, at="").body.decode()
    assert "grid_task_execution_seconds_sum 12.5" in text


def test_suggestions_say_what_would_help_why_and_how_sure(fresh: ServedGrid) -> None:
    measured(fresh)
    assert fresh.client.suggestions() == {"suggestions": []}
    fresh.telemetry.answers["b"] = reading(cpu_used=15.5)
    fresh.measure()
    fresh.rebalance()

    (found,) = fresh.client.suggestions()["suggestions"]

    assert (found["node"], found["resource_type"], found["cause"], found["in_seconds"]) == (
        "b",
        "cpu",
        "pressure",
        None,
    )
    assert found["what"].startswith("b is short of CPUs; ")
    assert (found["confidence"], found["how_sure"]) == (1.0, "certain: measured")
    assert found["command"].startswith(f"grid boost request b cpu {found['amount']} --source {found['source_node']}")
    assert fresh.client.cluster_status()["suggestions"] == [found]
    assert [event["message"] for event in fresh.client.events() if event["event"] == "suggested"]
