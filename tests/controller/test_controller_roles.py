"""Runs of roles over HTTP: what any caller sees of them, and what may be asked of them."""

from collections.abc import Iterator
from typing import Any

import pytest
from role_runs import a_role, a_run
from served_grid import ServedGrid


@pytest.fixture
def runs(served: ServedGrid) -> Iterator[ServedGrid]:
    served.role_records.write_record(a_run())
    yield served
    served.store.kept.clear()
    served.store.dead.clear()


def ask(runs: ServedGrid, verb: str, path: str, body: Any = None) -> tuple[int, Any]:
    return runs.ask(verb, path, body, token=runs.token("somebody", "view", "run", "lend"))


def scale(runs: ServedGrid, role: str, count: Any) -> tuple[int, Any]:
    return ask(runs, "POST", "/roles/run-1/scale", {"role": role, "count": count})


def test_the_list_has_each_run_in_short_the_youngest_first(runs: ServedGrid) -> None:
    runs.role_records.write_record(a_run("run-2", "failed", why="no more", began_at="2025-01-01T11:00:00+00:00"))

    code, found = ask(runs, "GET", "/roles")

    assert code == 200
    assert [(run["name"], run["state"], run["up"], run["wanted"]) for run in found["runs"]] == [
        ("run-2", "failed", 3, 3),
        ("run-1", "running", 3, 3),
    ]
    assert "members" not in found["runs"][0]


def test_one_run_is_its_record(runs: ServedGrid) -> None:
    assert ask(runs, "GET", "/roles/run-1") == (200, a_run() | {"pending_command": None})


def test_a_run_whose_owner_is_dead_is_lost(runs: ServedGrid) -> None:
    runs.store.dead.add("worker-of-run-1")

    assert ask(runs, "GET", "/roles/run-1")[1]["state"] == "lost"
    assert ask(runs, "GET", "/roles")[1]["runs"][0]["state"] == "lost"


@pytest.mark.parametrize(
    ("verb", "path"), [("GET", "/roles/nobody"), ("DELETE", "/roles/nobody"), ("POST", "/roles/nobody/scale")]
)
def test_a_run_that_is_not_there_is_not_found(runs: ServedGrid, verb: str, path: str) -> None:
    code, answer = ask(runs, verb, path, {"role": "trainer", "count": 1} if verb == "POST" else None)

    assert (code, answer["error"]["code"]) == (404, "ROLE_RUN_NOT_FOUND")
    assert answer["error"]["try_next"] == "grid roles status"


def test_a_name_that_is_none_is_refused(runs: ServedGrid) -> None:
    code, answer = ask(runs, "GET", "/roles/a%20b")

    assert (code, answer["error"]["because"]) == (422, ["must not contain spaces or '/', but is 'a b'"])


# -- scaling -------------------------------------------------------------------------------------------------


def test_another_count_is_commanded_of_the_owner_and_written_down(runs: ServedGrid) -> None:
    code, found = scale(runs, "rollout_worker", 4)

    assert code == 200
    assert found["pending_command"]["counts"] == {"rollout_worker": 4}
    assert runs.audit()[-1]["event"] == "role_scale_asked"
    assert (runs.audit()[-1]["who"], runs.audit()[-1]["run"]) == ("somebody", "run-1")
    taken = runs.role_records.take_command("run-1")
    assert taken is not None and taken["counts"] == {"rollout_worker": 4}
    assert ask(runs, "GET", "/roles/run-1")[1]["pending_command"] is None


def test_what_shares_a_place_scales_together(runs: ServedGrid) -> None:
    def shared(name: str) -> dict[str, Any]:
        return a_role(name, 1, 3, colocation_group="pair", colocation="process")

    runs.role_records.write_record(a_run(roles=[shared("learner"), shared("pool"), a_role("alone", 1, 3)]))

    assert scale(runs, "pool", 3)[1]["pending_command"]["counts"] == {"learner": 3, "pool": 3}


@pytest.mark.parametrize(
    ("role", "count", "status", "code", "reported"),
    [
        ("nobody", 1, 404, "ROLE_NOT_FOUND", "The run run-1 has no role 'nobody'"),
        ("rollout_worker", 5, 422, "INVALID_REQUEST", "rollout_worker of run-1 has from 2 to 4 members, not 5"),
        ("rollout_worker", 1, 422, "INVALID_REQUEST", "rollout_worker of run-1 has from 2 to 4 members, not 1"),
        ("trainer", 2, 422, "INVALID_REQUEST", "trainer of run-1 has 1 member, and does not scale"),
        ("rollout_worker", -1, 422, "INVALID_REQUEST", "The request is invalid"),
        ("rollout_worker", "3", 422, "INVALID_REQUEST", "The request is invalid"),
    ],
)
def test_an_impossible_count_is_refused_and_no_command_is_sent(
    runs: ServedGrid, role: str, count: Any, status: int, code: str, reported: str
) -> None:
    answered, answer = scale(runs, role, count)

    assert (answered, answer["error"]["code"], answer["error"]["message"]) == (status, code, reported)
    assert runs.role_records.pending_command("run-1") is None


@pytest.mark.parametrize("state", ["stopping", "ended", "failed", "lost"])
def test_a_run_that_ends_or_is_over_does_not_scale(runs: ServedGrid, state: str) -> None:
    runs.role_records.write_record(a_run(state="running" if state == "lost" else state))
    if state == "lost":
        runs.store.dead.add("worker-of-run-1")

    code, answer = scale(runs, "rollout_worker", 3)

    assert (code, answer["error"]["code"], answer["error"]["message"]) == (
        409,
        "ROLE_RUN_OVER",
        f"The run run-1 is {state}",
    )


# -- down ----------------------------------------------------------------------------------------------------


def test_a_run_that_lives_is_asked_to_end(runs: ServedGrid) -> None:
    assert ask(runs, "DELETE", "/roles/run-1") == (200, {"name": "run-1", "state": "running", "removed": False})

    pending_command = runs.role_records.pending_command("run-1")
    assert pending_command is not None and pending_command["down"]
    assert runs.audit()[-1]["event"] == "role_run_down_asked"


@pytest.mark.parametrize("state", ["ended", "failed", "lost"])
def test_a_run_that_is_over_is_forgotten(runs: ServedGrid, state: str) -> None:
    runs.role_records.write_record(a_run(state="running" if state == "lost" else state))
    if state == "lost":
        runs.store.dead.add("worker-of-run-1")

    assert ask(runs, "DELETE", "/roles/run-1") == (200, {"name": "run-1", "state": state, "removed": True})
    assert runs.store.kept == {}


def test_what_a_lost_run_held_is_returned_and_nothing_else_that_its_record_names(runs: ServedGrid) -> None:
    def lease(**what: Any) -> str:
        body = {"target_node": "a", "resource_type": "cpu", "amount": 1, "delivery": "reserve"} | what
        return str(ask(runs, "POST", "/boosts", body)[1]["boost_id"])

    held, others = lease(purpose="roles", label="run-1/cpu_pool"), lease()
    of_another = lease(purpose="roles", label="run-10")
    named = [
        {"node": "b", "pool": None, "resources": {"cpu": 1.0}, "boost_id": boost_id}
        for boost_id in (held, others, of_another, "gone already", None)
    ]
    runs.role_records.write_record(a_run(holdings=named))
    runs.store.dead.add("worker-of-run-1")

    assert ask(runs, "DELETE", "/roles/run-1")[0] == 200

    left = {boost["boost_id"] for boost in runs.client.boost_status()["boosts"] if boost["state"] == "active"}
    assert held not in left and {others, of_another} <= left
    for boost_id in (others, of_another):
        runs.client.release_boost(boost_id)


def test_the_client_asks_for_all_of_it(runs: ServedGrid) -> None:
    client = runs.client

    assert client.role_runs()["runs"][0]["name"] == "run-1"
    assert client.role_run("run-1")["workload"] == "rl"
    assert client.scale_role("run-1", "rollout_worker", 3)["pending_command"]["counts"] == {"rollout_worker": 3}
    assert client.role_run_down("run-1")["removed"] is False
