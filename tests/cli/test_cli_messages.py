"""What commands report: leases of programs apart from boosts, cordoned nodes, near misses, exit codes."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import reading
from click.testing import CliRunner, Result
from served_grid import ServedGrid

from distributed_grid.cli.app import app
from distributed_grid.errors import BoostNotFound, GridError, InvalidRequest, TargetNotFound, UnknownResource
from distributed_grid.model.lease_changes import IdleChanged
from distributed_grid.model.leases import Idle, Purpose
from distributed_grid.model.times import parse_instant


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGrid]:
    teams = [{"name": "vision", "guaranteed": {"cpu": 2}}, {"name": "speech"}]
    found = ServedGrid(tmp_path_factory.mktemp("told"), teams=teams)
    found.measure()
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(autouse=True)
def _at_home(served: ServedGrid, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GRID_HOME", str(served.home.path))
    monkeypatch.setenv("COLUMNS", "200")
    yield
    for boost in served.client.boost_status()["boosts"]:
        served.client.release_boost(boost["boost_id"], {"grace_seconds": 0})


def typed(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def error_of(*words: str) -> GridError:
    error = typed(*words).exception
    assert isinstance(error, GridError)
    return error


def lease(served: ServedGrid, **more: Any) -> dict[str, Any]:
    return served.client.request_boost({"target_node": "a", "resource_type": "cpu", "amount": 1} | more)


def test_idle_leases_of_programs_are_counted_where_they_are_not_shown(served: ServedGrid) -> None:
    held = lease(served, purpose="run", delivery="reserve")
    lease(served, purpose="run", delivery="reserve")

    async def idle() -> None:
        ledger, measures = served.engine.parts.ledger, served.engine.idle_leases
        if measures is not None:
            await measures.stop()  # which knows better
        ledger.apply(ledger.find(held["boost_id"]), IdleChanged(Idle(datetime(2025, 6, 1, tzinfo=UTC), yields=True)))

    served.in_its_loop(idle())
    for words in (("boost", "status"), ("cluster", "status"), ("node", "show", "a")):
        assert "2 leases of running programs (1 idle): grid boost status" in typed(*words).output


@pytest.mark.parametrize("purpose", [each for each in Purpose if each is not Purpose.BOOST])
def test_leases_of_programs_are_counted_apart_from_boosts(served: ServedGrid, purpose: Purpose) -> None:
    lease(served, purpose=purpose, label="train.py", delivery="reserve")
    for words in (("boost", "status"), ("cluster", "status")):
        shown = typed(*words).output
        assert "1 lease of a running program: grid boost status --all" in shown
        assert "train.py" not in shown
    assert "Active boosts: 0   Boosted: nothing" in typed("boost", "status").output
    assert "train.py" in typed("boost", "status", "--all").output
    page = typed("node", "show", "a").output
    assert "Boosts: none\n1 lease of a running program: grid boost status --node a --all\n" in page
    assert "train.py" not in page
    lease(served)
    page = typed("node", "show", "a").output
    assert re.search(r"\nBoosts\nID .*\n.* cpu +1 .* active .*\n1 lease of a running program: grid boost", page)
    answers = [json.loads(typed(*words, "--json").output) for words in (("boost", "status"), ("cluster", "status"))]
    for answer in (answers[0], answers[1]["boosts"], served.client.boost_status(), served.client.boost_status("a")):
        assert (answer["total_active"], answer["resources"]["cpu"]) == (1, 1)


def test_a_boost_that_is_taken_says_when_by_whom_and_for_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = ServedGrid(tmp_path)
    monkeypatch.setenv("GRID_HOME", str(grid.home.path))
    try:
        boost = lease(grid, grace_seconds=300)
        grid.cluster.start("a", 9)  # all that it has is in use
        grid.reclaim(boost["boost_id"])
        commands = (("boost", "status"), ("cluster", "status"), ("why", boost["boost_id"]))
        shown = [typed(*words).output for words in commands]
    finally:
        grid.close()
    for each in shown:
        assert "is being returned: preempted by ana's request r1e9f00d: 4 CPUs for gpu-master, priority high" in each
        assert re.search(r"; work that still uses it at (\S+ )?\d\d:\d\d(:\d\d)? \S+ is terminated\n", each)
    lines = [line for line in shown[0].splitlines() if line.startswith(("ID ", f"{boost['boost_id'][:8]} "))]
    heading, row = (re.split(" {2,}", line) for line in lines)
    found = dict(zip(heading, row, strict=True))
    assert (found["State"], found["Owner"], found["Team"]) == ("releasing", boost["requester"], boost["team"])
    assert re.search(r"\(in ([45] min|\d\d s)\)", found["Expires"])  # not in an hour


def test_a_cordoned_node_is_named_wherever_the_node_is_shown(served: ServedGrid) -> None:
    screens = (("cluster", "status"), ("node", "ls"), ("node", "show", "b"))
    served.client.cooldown("b")
    try:
        shown = [typed(*words).output for words in screens]
    finally:
        served.client.cooldown("b", on=False)
    assert "b: cordoned: it lends and borrows nothing until grid cooldown b --off" in shown[0]
    for each in shown[1:]:
        assert "b is cordoned; to let it share again: grid cooldown b --off" in each
    assert not [words for words in screens if "cordoned" in typed(*words).output]


def test_a_gpu_says_what_comes_with_it(served: ServedGrid) -> None:
    (source,) = re.findall(r"1 GPU from (\w) to b", shown := typed("boost", "request", "b", "gpu", "1").output)
    assert f"\n  with 1 CPU, also from {source}\n" in shown


def test_what_is_configured_is_restored_with_one_word(served: ServedGrid) -> None:
    undo = "To undo it: grid resource-sharing policy set configured"
    assert undo in typed("resource-sharing", "policy", "set", "aggressive", "--mode", "offload_only").stderr
    shown = typed("resource-sharing", "policy", "show").output
    assert "acts by itself" in shown
    assert next(line for line in shown.splitlines() if "acts by itself" in line).split()[-1] == "no"
    assert typed("resource-sharing", "policy", "set", "configured").stderr == "In force now, as configured.\n"
    found = served.client.sharing_status()
    assert (found["policy"], found["mode"]) == (found["configured_policy"], found["configured_mode"])


def test_a_token_for_a_team_that_is_not_configured_is_refused(served: ServedGrid) -> None:
    error = error_of("token", "create", "carl", "--team", "visoin")
    assert isinstance(error, InvalidRequest)
    assert error.message == "No team 'visoin' is configured; did you mean 'vision'?"
    assert typed("token", "create", "carl", "--team", "vision").exit_code == 0


def test_a_team_where_none_is_configured_is_accepted_and_said_to_count_as_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = ServedGrid(tmp_path)
    monkeypatch.setenv("GRID_HOME", str(grid.home.path))
    try:
        reported = typed("token", "create", "carl", "--team", "visoin").stderr
        listed = typed("token", "ls").output
    finally:
        grid.close()
    assert "No team 'visoin' is configured: until it is, the token counts as default.\n" in reported
    assert "visoin" not in listed and "default" in listed


@pytest.mark.parametrize(("word", "meant"), [("mem", "memory"), ("gpus", "gpu"), ("cpuu", "cpu")])
def test_a_resource_that_no_node_has_is_an_error_that_names_what_was_meant(word: str, meant: str) -> None:
    error = error_of("boost", "request", "a", word, "4")
    assert isinstance(error, UnknownResource)
    assert f"did you mean {meant!r}?" in error.message


def test_the_page_of_a_node_has_the_requests_that_wait_for_it(served: ServedGrid) -> None:
    body = {"target_node": "c", "resource_type": "cpu", "amount": 99}
    requests = [served.client.request_allocation(body)["request_id"] for _ in range(2)]
    try:
        page, others = typed("node", "show", "c").output, typed("node", "show", "b").output
        answer = json.loads(typed("node", "show", "c", "--json").output)
    finally:
        for each in requests:
            served.client.release_allocation(each)
    assert "Waiting in the queue: 2 requests\n" in page
    assert f"  {requests[0][:8]}: 99 CPUs for c, priority normal, no estimate: no node can ever lend 99 CPUs" in page
    assert "Waiting for it: nothing" not in page
    assert "Waiting for it: nothing" in others
    assert "99 CPUs" not in others
    assert (answer["waiting"], [each["request_id"] for each in answer["queue"]]) == (2, requests)


def test_an_unknown_node_is_not_an_empty_list(served: ServedGrid) -> None:
    error = error_of("boost", "status", "--node", "nowhere")
    assert isinstance(error, TargetNotFound)
    assert error.try_next == "Nodes: a, b, c"
    with pytest.raises(TargetNotFound, match="Target node not found in cluster"):
        served.client.boost_status("nowhere")
    assert typed("boost", "status", "--node", "b").exit_code == 0


def test_a_plan_that_does_not_fit_ends_with_4_and_says_never_where_it_is_never() -> None:
    never = typed("plan", "a", "cpu", "99")
    assert never.exit_code == 4
    assert never.output.startswith("Fits: no   99 CPUs for a; no node can ever lend 99 CPUs")
    assert typed("plan", "a", "cpu", "1").exit_code == 0


def test_releasing_what_has_ended_or_waits_says_so(served: ServedGrid) -> None:
    boost = lease(served)
    served.client.release_boost(boost["boost_id"], {"grace_seconds": 0, "wait_seconds": 10})
    error = error_of("boost", "release", boost["boost_id"])
    assert isinstance(error, BoostNotFound)
    reported = re.fullmatch(
        rf"Boost {boost['boost_id'][:8]} has ended: it was released at (\S+), \d+ s ago", error.message
    )
    assert reported and datetime.now(UTC) - parse_instant(reported[1]) < timedelta(minutes=1)
    assert error.because == ("1 CPU from b to a: capacity is back (released)",)
    lease(served, target_node="c", amount=8, source_node="b")
    body = {"target_node": "a", "resource_type": "cpu", "amount": 8, "source_node": "b"}
    waiting = served.client.request_allocation(body)["request_id"]
    try:
        assert f"grid resource-sharing release {waiting[:8]}" in (error_of("boost", "release", waiting).try_next or "")
    finally:
        served.client.release_allocation(waiting)


def test_every_command_about_a_boost_or_request_that_ended_says_so(served: ServedGrid) -> None:
    boost = lease(served)["boost_id"]
    served.client.release_boost(boost, {"grace_seconds": 0, "wait_seconds": 10})
    for words in (("boost", "renew"), ("boost", "checkpointed"), ("boost", "shell"), ("resource-sharing", "release")):
        assert error_of(*words, boost[:8]).message.startswith(f"Boost {boost[:8]} has ended: it was released at ")
    lease(served, target_node="c", amount=8, source_node="b")
    body = {"target_node": "a", "resource_type": "cpu", "amount": 8, "source_node": "b"}
    waiting = served.client.request_allocation(body)["request_id"]
    served.client.release_allocation(waiting)
    for words in (("boost", "release"), ("boost", "renew"), ("resource-sharing", "release")):
        error = error_of(*words, waiting[:8])
        assert error.message.startswith(f"Request {waiting[:8]} has ended: it was withdrawn at ")
        assert error.because == ("8 CPUs for a: withdrawn",)
    assert f"Request {waiting}  withdrawn" in typed("why", waiting[:8]).output


def test_a_warning_of_many_boosts_is_one_line(served: ServedGrid) -> None:
    served.telemetry.answers["a"] = reading(cpus=8.0, cpu_used=1.0)
    served.measure()
    boosts = []
    for _ in range(3):
        served.in_its_loop(served.engine.parts.look())  # so that each grant knows of the others
        boosts.append(lease(served))
    del served.telemetry.answers["a"]
    served.measure()
    for words in (("boost", "status"), ("cluster", "status"), ("node", "show", "a")):
        lines = [line for line in typed(*words).output.splitlines() if "a's machine has 8 CPUs" in line]
        assert len(lines) == 1, words
        assert {*lines[0].partition(":")[0].split(", ")} == {boost["boost_id"][:8] for boost in boosts}
