"""Tasks over HTTP, and from Python through the controller."""

import asyncio
from typing import Any

import pytest
from served_grid import ServedGrid

from distributed_grid.errors import InvalidRequest, RequestNotFound, TargetNotFound
from distributed_grid.orchestration.intelligent_scheduler import IntelligentScheduler, SchedulingRequest, ray_options
from distributed_grid.orchestration.resource_boost_manager import ResourceBoostManager, ResourceBoostRequest
from distributed_grid.sdk.backend import Backend


def test_a_task_has_a_place_says_that_it_began_and_is_done(fresh: ServedGrid) -> None:
    client = fresh.client
    decision = client.schedule_task({"cpu": 2, "target": "b", "tags": ["x"], "duration_seconds": 60})
    assert decision["accepted"]
    assert (decision["node"], decision["delivery"]) == ("b", "reserve")
    assert client.boost(decision["lease_id"])["purpose"] == "task"
    task_id = decision["task_id"]
    assert client.task(task_id) == decision
    assert client.task_started(task_id)["accepted"]
    status = client.tasks()
    assert (status["placed"], status["waiting"], status["decisions"]["accepted"]) == (1, 0, 1)
    assert status["tasks"][0]["started_at"] is not None
    assert client.complete_task(task_id) == {"task_id": task_id, "completed": True}
    with pytest.raises(RequestNotFound):
        client.complete_task(task_id)
    assert client.boost_status()["boosts"] == []


def test_a_task_that_has_no_place_is_answered_with_a_reason_for_every_node(served: ServedGrid) -> None:
    status, answer = served.ask("POST", "/tasks", {"cpu": 64}, token=served.token("ana", "lend"))
    assert (status, answer["accepted"]) == (200, False)
    assert [reason.partition(":")[0] for reason in answer["reasons"]] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"cpu": -1}, InvalidRequest),
        ({"strategy": "best"}, InvalidRequest),
        ({"cpus": 1}, InvalidRequest),
        ({"count": 0}, InvalidRequest),
        ({"affinity": {"node": "a"}}, InvalidRequest),
        ({"target": "nowhere"}, TargetNotFound),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_an_error(served: ServedGrid, body: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        served.client.schedule_task(body)


def test_the_python_class_decides_as_the_controller_does(fresh: ServedGrid) -> None:
    async def use() -> None:
        boosts = ResourceBoostManager(backend=Backend(fresh.client))
        async with IntelligentScheduler(boost_manager=boosts) as scheduler:
            asked = SchedulingRequest(cpu=10, node="a", task_id="big")
            rejected = await scheduler.schedule_task(asked)
            assert not rejected and "a: 8 of 8 CPUs free, 10 requested" in rejected.reasons
            with pytest.raises(ValueError, match="has no place"):
                ray_options(rejected)
            await boosts.request_boost(ResourceBoostRequest("a", "cpu", 4))
            decision = await scheduler.schedule_task(asked)
            assert decision and decision.node == "a" and 0 < decision.confidence < 1
            waiting = await scheduler.schedule_task(SchedulingRequest(cpu=10, node="a", wait=True, priority="high"))
            assert waiting.queued and waiting.position == 1
            assert await scheduler.complete_task(decision.task_id)
            assert (await scheduler.wait_for_place(waiting.task_id)).node == "a"
            assert not await scheduler.complete_task("never")
            gang = await scheduler.schedule_task(SchedulingRequest(cpu=2, count=3, strategy="spread", target="b"))
            assert len(gang.members) == 3
            status = await scheduler.get_scheduling_status()
            assert status["placed"] == 2
            assert set(status["calibration"]) >= {"brier_score", "base_rate_brier_score", "reliability", "count"}

    asyncio.run(use())


def test_metrics_tell_what_was_decided_and_how_good_it_was(fresh: ServedGrid) -> None:
    fresh.measure()
    task = fresh.client.schedule_task({"cpu": 1})
    fresh.client.schedule_task({"cpu": 99})
    fresh.client.complete_task(task["task_id"])
    text = fresh.raw(
        "GET", "/metrics", None, {"Authorization": f"Bearer {fresh.token('p', 'view')}"}, at=""
    ).body.decode()
    assert 'grid_scheduling_decisions_total{result="accepted"} 1.0' in text
    assert 'grid_scheduling_decisions_total{result="rejected"} 1.0' in text
    assert "grid_scheduling_brier_score 0." in text
    assert "grid_scheduling_base_rate_brier_score 0.0" in text
