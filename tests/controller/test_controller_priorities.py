"""How high a priority each caller may ask for, over HTTP and over the files on disk."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from served_grid import ServedGrid

from distributed_grid.cli.app import app
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.store.token_file import TokenFile

BOOST = {"target_node": "a", "resource_type": "cpu", "amount": 1}
TASK = {"target": "a", "cpu": 1}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGrid]:
    teams = [{"name": "vision", "max_priority": "high"}, {"name": "audio"}]
    grid = ServedGrid(tmp_path_factory.mktemp("priorities"), teams=teams)
    yield grid
    grid.close()


def token(grid: ServedGrid, **others: Any) -> str:
    return grid.token("ana", "view", "lend", **others)


@pytest.mark.parametrize(
    ("path", "body"), [("/boosts", BOOST), ("/requests", BOOST), ("/plan", BOOST), ("/tasks", TASK | {"task_id": "t"})]
)
def test_a_new_token_asks_for_normal_at_most_and_learns_what_to_do(
    served: ServedGrid, path: str, body: dict[str, Any]
) -> None:
    ana = token(served)

    status, answer = served.ask("POST", path, body | {"priority": "high"}, token=ana)

    assert (status, answer["error"]["code"]) == (403, "PRIORITY_NOT_ALLOWED")
    assert answer["error"]["message"] == "The priority high is above normal, the maximum for the token of ana"
    assert "grid token create ana --max-priority high" in answer["error"]["try_next"]
    assert served.client.boost_status()["boosts"] == []
    assert served.client.tasks()["tasks"] == []
    assert served.client.queue()["requests"] == []


def test_refused_requests_and_tasks_are_in_the_audit_log_with_their_callers_name(served: ServedGrid) -> None:
    ana = token(served)

    served.ask("POST", "/boosts", BOOST | {"priority": "critical"}, token=ana)
    assert (served.audit()[-1]["event"], served.audit()[-1]["who"]) == ("refused", "ana")
    served.ask("POST", "/tasks", TASK | {"priority": "critical"}, token=ana)
    assert (served.audit()[-1]["event"], served.audit()[-1]["who"]) == ("access_refused", "ana")
    assert served.audit()[-1]["code"] == "PRIORITY_NOT_ALLOWED"


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({"max_priority": "critical"}, "critical"),
        ({"max_priority": "low"}, "low"),
        ({"team": "vision"}, "high"),
        ({"team": "vision", "max_priority": "critical"}, "high"),
        ({"team": "audio"}, "normal"),
    ],
)
def test_a_token_gets_what_it_and_its_team_may_have_and_no_more(
    served: ServedGrid, given: dict[str, str], allowed: str
) -> None:
    ana = token(served, **given)
    assert served.ask("GET", "/me", token=ana)[1]["max_priority"] == allowed

    for priority in AllocationPriority:
        status, answer = served.ask("POST", "/boosts", BOOST | {"priority": priority}, token=ana)
        assert status == (201 if priority.rank <= AllocationPriority(allowed).rank else 403), answer
        if status == 201:
            served.client.release_boost(answer["boost_id"], {"wait_seconds": 20})


def test_a_boost_that_a_caller_could_not_ask_for_it_cannot_renew(served: ServedGrid) -> None:
    before = token(served, max_priority="critical")
    _, urgent = served.ask("POST", "/boosts", BOOST | {"priority": "critical"}, token=before)
    path = f"/boosts/{urgent['boost_id']}"

    status, answer = served.ask("POST", f"{path}/renew", {}, token=token(served))
    assert (status, answer["error"]["code"]) == (403, "PRIORITY_NOT_ALLOWED")
    assert served.ask("POST", f"{path}/release", {"wait_seconds": 20}, token=token(served))[0] == 200


def test_admins_ask_for_any_priority(served: ServedGrid) -> None:
    admin = served.token("root1", "admin", team="vision", max_priority="low")

    status, boost = served.ask("POST", "/boosts", BOOST | {"priority": "critical"}, token=admin)
    assert status == 201
    served.client.release_boost(boost["boost_id"], {"wait_seconds": 20})


def test_what_is_no_priority_is_refused(served: ServedGrid) -> None:
    body = {"name": "ana", "scopes": ["lend"], "max_priority": "enormous"}

    assert served.ask("POST", "/tokens", body, token=served.token("root1", "admin"))[0] == 422


def test_the_list_of_tokens_shows_how_high_each_may_ask(fresh: ServedGrid) -> None:
    def grid(*args: str) -> str:
        env = {"GRID_HOME": str(fresh.home.path), "COLUMNS": "200"}
        return CliRunner(env=env).invoke(app, ["token", *args], catch_exceptions=False).stdout

    for given in (["ana"], ["bo", "--max-priority", "high"], ["carl", "--scope", "admin"]):
        assert grid("create", *given)

    rows = [re.split(r" {2,}", line) for line in grid("ls").splitlines()]
    assert rows[0][4] == "Priority"
    assert {row[1]: row[4] for row in rows[1:]} == {"ana": "normal, or team's", "bo": "high", "carl": "any"}


def test_tokens_from_before_there_was_a_limit_may_ask_for_any_priority(served: ServedGrid, tmp_path: Path) -> None:
    entries = json.loads(served.home.tokens.read_text())
    for entry in entries["tokens"]:
        del entry["max_priority"]
    (tmp_path / "tokens.json").write_text(json.dumps(entries))

    loaded, problems = TokenFile(tmp_path / "tokens.json").load()

    assert not problems
    assert loaded and {one.user.max_priority for one in loaded} == {AllocationPriority.CRITICAL}
