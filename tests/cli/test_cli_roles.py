"""grid roles plan: the sessions that the page shows, the running cluster, JSON, and what it says of mistakes."""

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
PAGE = Path(__file__).parents[2] / "docs" / "roles.md"
FILES = {name: text for text, name in re.findall(r"^```yaml\n(# (\w+\.yaml)\n.*?)^```$", PAGE.read_text(), re.M | re.S)}
SESSIONS = re.findall(r"^```console\n\$ (grid roles plan .*?)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def type_it(folder: Path, *words: str, home: Path | None = None, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [GRID, "roles", "plan", *words],
        cwd=folder,
        env={**os.environ, "GRID_HOME": str(home or folder / "home"), "PYTHONIOENCODING": "utf-8", "COLUMNS": "120"}
        | env,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        timeout=60,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(("command", "shown"), SESSIONS, ids=[command for command, _ in SESSIONS])
def test_the_page_shows_what_is_printed(folder: Path, command: str, shown: str) -> None:
    done = type_it(folder, *command.split()[3:])

    assert done.stdout == shown and done.stderr == ""
    assert done.returncode == (4 if "does not fit" in shown else 0)


def test_json_has_every_actor(folder: Path) -> None:
    done = type_it(folder, "rl.yaml", "--cluster", "lab.yaml", "--json")
    plan: dict[str, Any] = json.loads(done.stdout)

    assert plan["fits"] and plan["cluster"] == "lab.yaml"
    members = [(m["role"], m["index"]) for node in plan["nodes"] for unit in node["units"] for m in unit["members"]]
    assert sorted(members) == [
        ("data_loader", 0),
        *(("rollout_worker", index) for index in range(7)),
        ("trainer", 0),
        ("trajectory_pool", 0),
    ]
    assert [node["planned"]["cpu"] for node in plan["nodes"]] == [4, 4, 4]
    assert plan["pools"][0]["planned"]["cpu"] == 1


def test_json_has_what_is_missing_and_what_would_help(folder: Path) -> None:
    done = type_it(folder, "big.yaml", "--cluster", "lab.yaml", "--json")
    plan: dict[str, Any] = json.loads(done.stdout)

    assert done.returncode == 4 and not plan["fits"] and plan["certain"]
    boost, add, shrink = plan["remedies"]
    assert boost["commands"] == ["grid boost request gpu1 cpu 2 --source cpu2 --delivery transfer"]
    assert add["missing"] == [{"node": "gpu1", "pool": None, "resource_type": "cpu", "amount": 2}]
    assert shrink["counts"] == {"trainer": 0}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("file", ["rl.yaml", "big.yaml"])
def test_no_line_is_longer_than_the_terminal(folder: Path, file: str, width: int) -> None:
    shown = type_it(folder, file, "--cluster", "lab.yaml", COLUMNS=str(width)).stdout

    assert [line for line in shown.splitlines() if len(line) > width] == []


def test_a_workload_that_begins_with_nothing_is_shown_like_any_other(folder: Path) -> None:
    (folder / "later.yaml").write_text("roles:\n  a: {count: [0, 3], cpus: 99}\n")

    done = type_it(folder, "later.yaml", "--cluster", "lab.yaml")

    assert done.returncode == 0 and "0 actors in 0 units   on 0 of 3 nodes" in done.stdout


def test_a_mistake_in_the_file_is_reported_at_its_place(folder: Path) -> None:
    (folder / "bad.yaml").write_text("roles:\n  a: {gpus: 1.5}\n")

    done = type_it(folder, "bad.yaml", "--cluster", "lab.yaml")

    assert done.returncode == 2 and done.stdout == ""
    assert "bad.yaml:2:13: roles.a.gpus: must be a fraction of one GPU, or whole GPUs, not 1.5 GPUs" in done.stderr
    assert "grid roles plan bad.yaml" in done.stderr


def test_a_key_that_is_not_known_is_a_warning(folder: Path) -> None:
    (folder / "odd.yaml").write_text("roles:\n  a: {cpu: 1}\n")

    done = type_it(folder, "odd.yaml", "--cluster", "lab.yaml")

    assert done.returncode == 0
    assert done.stderr == "Warning: odd.yaml:2:7: roles.a.cpu: unknown key 'cpu' (ignored); did you mean 'cpus'?\n"


def test_without_a_cluster_it_says_how_to_plan_all_the_same(folder: Path) -> None:
    done = type_it(folder, "rl.yaml")

    assert done.returncode == 5
    assert "No cluster is running" in done.stderr and "--cluster FILE" in done.stderr


# -- the running cluster -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGrid]:
    nodes = {"a": {"cpus": 4, "gpus": 1, "memory": 16}, "b": {"cpus": 8, "memory": 16}, "c": {"cpus": 2, "memory": 1.3}}
    grid = ServedGrid(tmp_path_factory.mktemp("served"), nodes=nodes)
    yield grid
    grid.close()


def live(folder: Path, served: ServedGrid, text: str) -> dict[str, Any]:
    (folder / "live.yaml").write_text(text)
    done = type_it(folder, "live.yaml", "--json", home=served.home.path)
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_is_free_in_the_running_cluster_is_planned_on(folder: Path, served: ServedGrid) -> None:
    plan = live(folder, served, "roles: {trainer: {profile: trainer_self_hosted}, worker: {count: 8}}\n")

    assert {node["name"]: node["planned"]["cpu"] for node in plan["nodes"]} == {"a": 4, "b": 8, "c": 0}


def test_a_boost_of_the_running_cluster_is_reported_and_makes_it_fit(folder: Path, served: ServedGrid) -> None:
    wants_more = "roles: {trainer: {cpus: 6, gpus: 1}}\n"
    refused = live(folder, served, wants_more)

    assert not refused["fits"]
    (command,) = refused["remedies"][0]["commands"]
    assert command == "grid boost request a cpu 2 --source b --delivery transfer"
    granted = served.client.request_boost(
        {"target_node": "a", "resource_type": "cpu", "amount": 2, "source_node": "b", "duration_seconds": 60}
    )
    try:
        assert live(folder, served, wants_more)["fits"]
    finally:
        served.client.release_boost(granted["boost_id"], {"wait_seconds": 5})


def test_a_boost_that_would_not_be_granted_is_not_told(folder: Path, served: ServedGrid) -> None:
    def reported() -> list[str]:
        refused = live(folder, served, "roles: {trainer: {cpus: 9, gpus: 1}}\n")
        return [remedy["kind"] for remedy in refused["remedies"]]

    assert reported() == ["boost", "add"]
    served.client.set_policy(policy="conservative")  # a lender keeps half of what is idle: 4 of 8 CPUs
    try:
        assert reported() == ["add"]
    finally:
        served.client.set_policy(policy="balanced")


def test_labels_of_the_running_cluster_count(folder: Path, served: ServedGrid) -> None:
    found = {node["name"]: node["labels"] for node in served.client.nodes()["nodes"]}

    assert set(found) == {"a", "b", "c"}
    refused = live(folder, served, "roles: {r: {node_affinity: [zone=nowhere]}}\n")
    assert refused["reasons"][0]["detail"] == "every node is excluded: r must be on zone=nowhere"
