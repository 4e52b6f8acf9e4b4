"""Lengths of time in requests: one syntax, over HTTP and from Python. Zero is a wait, too: none."""

import asyncio
from datetime import datetime
from typing import Any

import pytest
from builders import process
from served_grid import ServedGrid

from distributed_grid.sdk.boosts import ResourceBoostManager, ResourceBoostRequest

CPU = {"target_node": "a", "source_node": "b", "resource_type": "cpu", "amount": 1}
ZERO = [0, 0.0, "0", "0s"]
SOME = [5, 0.5, "90", "30s", "1m30s", " 0.5 h "]


def owner(grid: ServedGrid) -> str:
    return grid.home.token.read_text().strip()


def given_back(served: ServedGrid, boost_id: str, **body: Any) -> tuple[int, Any]:
    return served.ask("POST", f"/boosts/{boost_id}/release", body, token=owner(served))


@pytest.mark.parametrize("wait", [*ZERO, *SOME, "1d"])
def test_a_request_waits_for_capacity(served: ServedGrid, wait: Any) -> None:
    status, boost = served.ask("POST", "/boosts", CPU | {"wait_seconds": wait}, token=owner(served))

    assert status == 201, boost
    assert given_back(served, boost["boost_id"], wait_seconds="20s")[1]["state"] == "released"


@pytest.mark.parametrize("wait", [*ZERO, *SOME, "1h"])
def test_a_release_waits_for_its_end(served: ServedGrid, wait: Any) -> None:
    boost = served.client.request_boost(CPU)

    assert given_back(served, boost["boost_id"], wait_seconds=wait)[0] == 200


@pytest.mark.parametrize(("wait", "lasts_s"), [(1800, 1800), ("1800", 1800), ("30m", 1800), ("1h30m", 5400)])
def test_a_request_in_the_queue_is_withdrawn_then(served: ServedGrid, wait: Any, lasts_s: float) -> None:
    asked = CPU | {"amount": 100, "wait_seconds": wait}
    status, found = served.ask("POST", "/requests", asked, token=owner(served))

    assert status == 202
    since, until = (datetime.fromisoformat(found["waiting"][key]) for key in ("since", "until"))
    assert (until - since).total_seconds() == lasts_s
    served.client.release_allocation(found["request_id"])


@pytest.mark.parametrize("wait", ZERO)
def test_a_request_that_does_not_wait_is_refused_at_once(served: ServedGrid, wait: Any) -> None:
    status, found = served.ask("POST", "/requests", CPU | {"amount": 100, "wait_seconds": wait}, token=owner(served))

    assert (status, found["error"]["code"]) == (409, "NO_CAPACITY")


@pytest.mark.parametrize(
    ("path", "too_long", "most"), [("/boosts", "2d", "86400 s"), ("/requests", "400d", "a year"), ("", "2h", "3600 s")]
)
def test_what_is_no_length_of_time_or_too_long_is_refused_and_changes_nothing(
    served: ServedGrid, path: str, too_long: str, most: str
) -> None:
    boost = served.client.request_boost(CPU)
    body = CPU if path else {}
    path = path or f"/boosts/{boost['boost_id']}/release"
    before = served.client.boost_status()
    for wait in ("soon", "", "-1s", -1, too_long):
        status, answer = served.ask("POST", path, body | {"wait_seconds": wait}, token=owner(served))

        assert (status, answer["error"]["code"]) == (422, "INVALID_DURATION"), wait
        assert wait != too_long or most in answer["error"]["message"]
    assert served.client.boost_status() == before
    served.client.release_boost(boost["boost_id"], {"wait_seconds": 20})


def test_a_stop_waits_for_capacity_to_return(fresh: ServedGrid) -> None:
    assert fresh.ask("POST", "/controller/stop", {"wait_seconds": "2h"}, token=owner(fresh))[0] == 422
    assert fresh.left == 0
    assert fresh.ask("POST", "/controller/stop", {"wait_seconds": "1m"}, token=owner(fresh)) == (200, {"released": 0})
    assert fresh.left == 1


def test_a_forecast_looks_ahead(served: ServedGrid) -> None:
    served.measure()

    for horizon in ("1800", "1800.0", "30m"):
        status, found = served.ask("GET", f"/nodes/a?horizon_seconds={horizon}", token=owner(served))
        assert status == 200
        assert found["forecast"]["cpu"]["horizon_seconds"] == pytest.approx(1800, abs=60)
    _, answer = served.ask("GET", "/nodes/a?horizon_seconds=2d", token=owner(served))
    assert answer["error"]["code"] == "INVALID_DURATION"


def test_the_client_takes_them_as_they_are(fresh: ServedGrid) -> None:
    boost = fresh.client.request_boost({**CPU, "wait_seconds": "1m", "duration_seconds": "2h"})  # type: ignore[typeddict-item]
    released = fresh.client.release_boost(boost["boost_id"], {"grace_seconds": "0", "wait_seconds": "20s"})
    assert released["state"] == "released"
    here = next(raylet.node_id for raylet in fresh.cluster.raylets() if raylet.labels["grid/name"] == "a")
    fresh.control.add(here, process(4711, "a"))
    planned = fresh.client.offload({"pid": 4711, "to": "b", "grace_seconds": "1m", "dry_run": True})
    assert planned["plan"] is not None and planned["plan"]["grace_seconds"] == 60


def test_so_do_the_python_classes(fresh: ServedGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRID_HOME", str(fresh.home.path))

    async def ask() -> float:
        async with ResourceBoostManager() as boosts:
            boost_id = await boosts.request_boost(
                ResourceBoostRequest("a", "cpu", 1, duration_seconds="30m", wait_seconds="1m", grace_seconds="5s")
            )
            assert boost_id is not None
            boost = await boosts.get_boost(boost_id)
            return (boost.expires_at - boost.allocated_at).total_seconds()

    assert asyncio.run(ask()) == 1800
