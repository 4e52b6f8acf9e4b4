"""grid plan, why, cooldown and resource-sharing as a person types and reads them: the real engine, a fake cluster."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served_grid import ServedGrid

GRID = str(Path(sys.executable).with_name("grid"))
NODES = {"gpu-master": {"cpus": 4}, "gpu1": {"cpus": 8, "gpus": 1}, "gpu2": {"cpus": 8, "gpus": 1}}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGrid]:
    found = ServedGrid(tmp_path_factory.mktemp("sharing"), nodes=NODES)
    found.measure()
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(autouse=True)
def _nothing_left(served: ServedGrid) -> Iterator[None]:
    yield
    for request in served.client.queue()["requests"]:
        served.client.release_allocation(request["request_id"])
    for boost in served.client.boost_status()["boosts"]:
        served.client.release_boost(boost["boost_id"])


def typed(served: ServedGrid, *words: str, code: int = 0, width: int = 80) -> str:
    done = subprocess.run(
        [GRID, *words],
        env={**os.environ, "GRID_HOME": str(served.home.path), "COLUMNS": str(width)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert not [line for line in done.stdout.splitlines() if len(line) > width]
    return done.stdout or done.stderr


def reported(served: ServedGrid, *words: str, code: int = 0) -> Any:
    return json.loads(typed(served, *words, "--json", width=100_000, code=code))


def test_a_plan_that_fits(served: ServedGrid) -> None:
    shown = typed(served, "plan", "gpu-master", "cpu", "4")
    assert shown.startswith("Fits: yes   4 CPUs for gpu-master: gpu1 lends it now (transfer)\n")
    assert "gpu2        could lend: 8 of 8 CPUs free, it can lend 8" in shown
    assert not served.client.boost_status()["boosts"]


def test_a_plan_that_does_not_fit_says_when_how_much_and_why(served: ServedGrid) -> None:
    for source in ("gpu1", "gpu2"):
        typed(served, "boost", "request", "gpu-master", "cpu", "6", "--source", source, "--duration", "900")
    shown = typed(served, "plan", "gpu-master", "cpu", "5", code=4)
    assert shown.startswith("Fits: not now")
    assert "expected start, if it waits: " in shown
    assert "the most that fits now: 4 CPUs of gpu1 and gpu2" in shown
    assert "gpu2        NoCapacity: 2 of 2 CPUs free, 5 requested" in shown


def test_a_request_in_the_queue_from_first_to_last(served: ServedGrid) -> None:
    for source in ("gpu1", "gpu2"):
        typed(served, "boost", "request", "gpu-master", "cpu", "8", "--source", source)
    asked = typed(served, "resource-sharing", "request", "gpu-master", "cpu", "4", "--priority", "high")
    short = asked.split()[1][:8]
    assert "4 CPUs for gpu-master, priority high, number 1 in the queue" in asked
    assert f"grid resource-sharing release {short}" in asked

    queue = typed(served, "resource-sharing", "queue")
    assert queue.splitlines()[0].split() == [
        *("#", "Request", "Wants", "For", "Priority", "Team", "Waited", "Expected", "start")
    ]
    assert f"1  {short}  4 CPUs  gpu-master  high" in queue
    assert "waits for 4 CPUs" in queue

    why = typed(served, "why", short)
    assert why.startswith("Request ")
    assert "gpu1        NoCapacity: 0 of 0 CPUs free" in why
    status = typed(served, "resource-sharing", "status")
    assert f"Waiting in the queue: 1 request\n  {short}: 4 CPUs for gpu-master, priority high, expected in" in status

    assert "was withdrawn" in typed(served, "resource-sharing", "release", short)
    assert typed(served, "resource-sharing", "queue") == "Queue: empty\n"
    assert f"Request {short} has ended" in typed(served, "resource-sharing", "release", short, code=3)


def test_every_status_lists_waiting_requests_with_the_queues_own_verdicts(served: ServedGrid) -> None:
    assert "Waiting: nothing" in typed(served, "cluster", "status")
    for source in ("gpu1", "gpu2"):
        typed(served, "boost", "request", "gpu-master", "cpu", "8", "--source", source, "--duration", "900")
    for amount in (4, 17, *range(1, 9)):
        typed(served, "resource-sharing", "request", "gpu-master", "cpu", str(amount))
    shown = typed(served, "cluster", "status", width=200)
    assert "Waiting: nothing" not in shown
    assert "Waiting in the queue: 10 requests" in shown
    assert re.search(r"\w{8}: 4 CPUs for gpu-master, priority normal, expected in 1\d min: waits for 4 CPUs: ", shown)
    never = r"no node can ever lend 17 CPUs"
    assert re.search(r"\w{8}: 17 CPUs for .*, no estimate: " + never, shown)
    assert "2 more: grid resource-sharing queue" in shown
    assert shown.count("CPUs for gpu-master, priority") + shown.count("1 CPU for gpu-master, priority") == 8

    def listed(requests: Any) -> list[tuple[Any, ...]]:
        return [(one["request_id"], one["reason"], one["expected_start"]) for one in requests]

    queue = listed(reported(served, "resource-sharing", "queue")["requests"])
    for status in (reported(served, "cluster", "status"), reported(served, "resource-sharing", "status")):
        assert status["waiting"] == 10
        assert listed(status["queue"]) == queue[:8]


def test_a_refused_boost_says_when_it_would_be_met_and_how_to_wait_for_it(served: ServedGrid) -> None:
    for source in ("gpu1", "gpu2"):
        typed(served, "boost", "request", "gpu-master", "cpu", "8", "--source", source, "--duration", "900")
    refused = typed(served, "boost", "request", "gpu-master", "cpu", "4", code=4)
    when = r"(\d{4}-\d\d-\d\d )?\d\d:\d\d \S+"  # with its date if midnight comes first
    assert re.search(rf"- waits for 4 CPUs: 8 come back to gpu\d at {when}; expected in 1\d min", refused)
    assert re.search(r"Try: Wait for it with --wait 1[56]m; or let it wait in the queue: grid resource", refused)
    as_json = json.loads(typed(served, "boost", "request", "gpu-master", "cpu", "4", "--json", code=4))["error"]
    assert (
        as_json["expected_start"]
        == reported(served, "plan", "gpu-master", "cpu", "4", code=4)["expected_start"]
        is not None
    )

    never = typed(served, "boost", "request", "gpu-master", "cpu", "9", "--max-sources", "1", code=4)
    assert "- no node can ever lend 9 CPUs (gpu1 can lend the most: 8 CPUs)" in never
    assert "Try: Waiting does not help." in never and "--wait" not in never


def test_an_allocation_that_is_met_at_once_is_shown_as_a_boost(served: ServedGrid) -> None:
    found = reported(served, "resource-sharing", "request", "gpu-master", "cpu", "2")
    assert (found["state"], found["waiting"], found["boost"]["boost_id"]) == ("active", None, found["request_id"])
    assert "has its 2 CPUs back" in typed(served, "resource-sharing", "release", found["request_id"])


def test_why_a_boost_has_its_lender_also_after_it_ended(served: ServedGrid) -> None:
    body = {"target_node": "gpu-master", "resource_type": "cpu", "amount": 2, "source_node": "gpu1"}
    boost = served.client.request_boost(body)
    shown = typed(served, "why", boost["boost_id"][:8])
    assert shown.startswith(f"Boost {boost['boost_id']}  active\n")
    assert "gpu1        chosen: " in shown
    assert "gpu-master  IsTarget: it is the target of the request" in shown
    served.client.release_boost(boost["boost_id"])
    again = reported(served, "why", boost["boost_id"])
    assert {node["node"]: node["verdict"] for node in again["nodes"]}["gpu1"] == "chosen"
    assert again["state"] == "released"
    assert "No request and no boost" in typed(served, "why", "nothing", code=3)


def test_a_policy_is_shown_and_set_and_put_back(served: ServedGrid) -> None:
    assert "headroom of base" in typed(served, "resource-sharing", "policy", "show")
    assert "policy aggressive (set; configured: balanced)" in typed(
        served, "resource-sharing", "policy", "set", "aggressive"
    )
    assert "policy aggressive (set" in typed(served, "resource-sharing", "status")
    assert "Unknown policy: 'bold'" in typed(served, "resource-sharing", "policy", "set", "bold", code=2)
    assert reported(served, "resource-sharing", "policy", "set", "configured")["policy"] == "balanced"


def test_a_node_cools_down_and_is_warm_again(served: ServedGrid) -> None:
    typed(served, "boost", "request", "gpu-master", "cpu", "2", "--source", "gpu1")
    assert typed(served, "cooldown", "gpu1") == (
        "gpu1 is cordoned: 1 boost is returned\nTo let it share again: grid cooldown gpu1 --off\n"
    )
    assert "cordoned" in typed(served, "resource-sharing", "status")
    refused = typed(served, "boost", "request", "gpu-master", "cpu", "2", "--source", "gpu1", code=4)
    assert "gpu1 is cordoned" in refused
    assert typed(served, "cooldown", "gpu1", "--off") == "gpu1 lends and borrows again\n"
    assert "no node is named 'nowhere'" in typed(served, "cooldown", "nowhere", code=3)


@pytest.mark.parametrize(
    "words", [("plan", "gpu-master", "cpu", "-1"), ("resource-sharing", "request", "gpu-master", "cpu", "none")]
)
def test_what_makes_no_sense_is_said_without_asking_the_controller(served: ServedGrid, words: tuple[str, ...]) -> None:
    assert "Error: " in typed(served, *words, code=2)
