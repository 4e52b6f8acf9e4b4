"""`grid doctor` on a real embedded cluster with grid in it; what it left behind is asked of Ray."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest
from live_grid import PACKAGED, LiveGrid, until
from pydantic import TypeAdapter

from distributed_grid.cluster.attach import ask_apart
from distributed_grid.cluster.processes import trees
from distributed_grid.cluster.record import load
from distributed_grid.decide.diagnosis import diagnose
from distributed_grid.model.checkup_facts import Facts
from distributed_grid.model.findings import Severity
from distributed_grid.store.home import GridHome

pytestmark = pytest.mark.cluster

CONFIG = PACKAGED

COMMAND = (sys.executable, "-c", "from distributed_grid.cli import main; main()")


def run(home: GridHome, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.run(
        [*COMMAND, *arguments],
        env=kept | {"GRID_HOME": str(home.path)} | env,
        capture_output=True,
        text=True,
        timeout=150,
    )


@pytest.fixture
def home(grid: LiveGrid) -> GridHome:
    """That of the default configuration's cluster."""
    grid.settled()
    return grid.home


def address(home: GridHome) -> str:
    record = load(home)
    assert record is not None
    return record.ray_address


def examined(home: GridHome, *arguments: str, **env: str) -> dict[str, dict[str, str]]:
    done = run(home, "doctor", "--json", *arguments, **env)
    assert "Traceback" not in done.stderr
    reported = json.loads(done.stdout)
    assert reported["ok"] is (done.returncode == 0)
    return {f"{finding['code']} {finding['subject']}".strip(): finding for finding in reported["findings"]}


def left_in(home: GridHome) -> Any:
    """Every resource name and every standing placement group of the cluster, as a driver of its own sees them."""
    script = """
        import json, sys, time, ray, ray._private.state as state
        def names():
            return sorted({name for total in state.total_resources_per_node().values() for name in total})
        from ray.util.placement_group import placement_group_table
        ray.init(sys.argv[1], namespace="t", log_to_driver=False)
        deadline = time.monotonic() + 20
        while any(name.startswith("grid:") for name in names()) and time.monotonic() < deadline:
            time.sleep(0.02)  # the view lags
        groups = [g["name"] for g in placement_group_table().values() if g["state"] != "REMOVED"]
        print(json.dumps([names(), groups]))
    """
    driver = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), address(home)], capture_output=True, text=True, timeout=60
    )
    assert driver.returncode == 0, driver.stderr
    return json.loads(driver.stdout.splitlines()[-1])


def test_a_healthy_cluster_is_found_healthy_and_nothing_is_left_behind(home: GridHome) -> None:
    found = examined(home)

    assert {
        check: f
        for check, f in found.items()
        if f["severity"] != "ok" and check not in ("authentication", "view_lag", "measured_use")
    } == {}
    assert found["view_lag"]["severity"] in ("ok", "warn")  # how soon is the machine's affair
    assert {"nodes gpu-master", "nodes gpu1"} <= set(found)
    assert address(home) in found["ray_cluster"]["detail"]
    assert re.search("pinned to gpu[12] by label, was created there and removed", found["reservations"]["detail"])
    names, groups = left_in(home)
    assert [name for name in names if name.startswith("grid:")] == []
    assert groups == []


def test_a_token_that_others_can_read_is_found_and_the_table_tells_a_person(home: GridHome) -> None:
    home.token.chmod(0o644)
    try:
        done = run(home, "doctor", COLUMNS="200")
    finally:
        home.token.chmod(0o600)

    assert done.returncode != 0
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if " fail " in line] == ["secrets"], done.stdout
    assert f"chmod 600 {home.token}" in done.stdout + done.stderr
    assert [line.split()[:3] for line in lines if line.startswith("nodes ")] == [
        ["nodes", "gpu-master", "ok"],
        ["nodes", "gpu1", "ok"],
        ["nodes", "gpu2", "ok"],
    ]


def test_from_another_home_the_controller_is_seen_but_not_known(home: GridHome, tmp_path: Path) -> None:
    found = examined(GridHome(tmp_path / "other"), "--address", address(home))

    assert found["controller"]["severity"] == "warn"
    assert "not started from this GRID_HOME" in found["controller"]["detail"]
    assert found["resize"]["severity"] == "ok"


def test_a_wrong_token_is_told_from_a_controller_that_is_gone(home: GridHome, tmp_path: Path) -> None:
    other = GridHome(tmp_path / "other").create()
    other.controller.write_text(home.controller.read_text())
    other.token.touch(0o600)
    other.token.write_text("not the token")

    found = examined(other)["controller"]

    assert found["severity"] == "fail"
    assert "not to the token of this GRID_HOME: it answered 401" in found["detail"]


def test_a_node_that_does_not_answer_is_named(grid: LiveGrid, home: GridHome) -> None:
    record = load(home)
    assert record is not None
    (raylet,) = [process for process in trees([psutil.Process(record.nodes[1].pid)]) if process.name() == "raylet"]
    raylet.send_signal(signal.SIGSTOP)
    try:
        for within_s in (3, 15, 40):  # a busy machine starts workers slowly
            asked = {"home": str(home.path), "nodes_within_s": within_s}
            seen = ask_apart("distributed_grid.controller.checkup", asked)
            found = {
                f"{finding.code} {finding.subject}".strip(): finding
                for finding in diagnose(TypeAdapter(Facts).validate_python(seen))
            }
            if found["nodes gpu-master"].severity is Severity.OK:
                break
    finally:
        raylet.send_signal(signal.SIGCONT)

    assert found["nodes gpu1"].severity is Severity.FAIL
    assert f"gpu1 is in the cluster, but did not run a test task within {within_s} s" in found["nodes gpu1"].detail
    assert {found[check].severity for check in ("nodes gpu-master", "resize", "reservations")} == {Severity.OK}
    until(lambda: {node["state"] for node in grid.client.nodes()["nodes"]} == {"ok"}, 30, "it answers again")
