"""Every command as a user types it: what a person sees, the JSON, the exit code."""

import json
import re
import sys
from pathlib import Path

import pytest
from live_grid import PACKAGED, LiveGrid

pytestmark = pytest.mark.cluster

CONFIG = PACKAGED

ROOT = Path(__file__).parents[2]
BOOST_KEYS = {
    "parts",
    "boost_id",
    "source_node",
    "target_node",
    "resource_type",
    "amount",
    "resources",
    "purpose",
    "label",
    "priority",
    "delivery",
    "delivery_reason",
    "state",
    "allocated_at",
    "expires_at",
    "placement_group",
    "requester",
    "team",
    "cause",
    "notice",
    "checkpointed_at",
    "idle_since",
    "at_most",
    "capacity",
    "grown",
    "ending",
    "programs",
    "warnings",
}
UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def test_the_json_of_a_boost(grid: LiveGrid) -> None:
    boost = grid.json("boost", "request", "gpu-master", "memory", "2.5", "--priority", "critical", "--duration", "90")

    assert set(boost) == BOOST_KEYS
    assert (boost["amount"], boost["priority"], boost["state"]) == (2.5, "critical", "active")
    assert UTC.fullmatch(boost["allocated_at"]) and UTC.fullmatch(boost["expires_at"])
    assert boost["placement_group"] is None
    renewed = grid.json("boost", "renew", boost["boost_id"][:8])
    assert set(renewed) == BOOST_KEYS and renewed["boost_id"] == boost["boost_id"]
    released = grid.json("boost", "release", boost["boost_id"][:8])
    assert set(released) == BOOST_KEYS and released["state"] == "released"


def test_the_json_of_status(grid: LiveGrid) -> None:
    grid.boost("gpu-master", "cpu", 3)
    grid.boost("gpu-master", "cpu", 1)
    grid.boost("gpu1", "gpu", 1)

    status = grid.json("boost", "status")

    assert set(status) == {"total_active", "resources", "boosts", "problems", "cut"}
    assert status["total_active"] == 3
    assert status["resources"] == {"cpu": 4, "gpu": 1, "memory": 0}
    assert all(set(boost) == BOOST_KEYS for boost in status["boosts"])
    assert len(grid.json("boost", "status", "--node", "gpu1")["boosts"]) >= 1
    assert grid.cli("boost", "status", "--node", "nowhere").returncode == 3


def test_cluster_status(grid: LiveGrid) -> None:
    grid.settled()
    boost = grid.boost("gpu-master", "cpu", 3)

    grid.total_is("gpu-master", "CPU", 7.0)

    status = grid.json("cluster", "status")

    assert set(status) >= {"ray_address", "controller", "nodes", "boosts"}
    assert set(status["controller"]) == {"state", "url", "pid"}
    assert status["ray_address"] == grid.address
    master, lender = _node(status, "gpu-master"), _node(status, boost["source_node"])
    for key in ("name", "node_id", "alive", "base", "total", "free", "lent", "borrowed"):
        assert key in master
    assert (master["base"]["cpu"], master["total"]["cpu"], master["borrowed"]["cpu"]) == (4, 7, 3)
    assert (lender["base"]["cpu"], lender["total"]["cpu"], lender["lent"]["cpu"]) == (8, 5, 3)
    assert master["base"] == {"cpu": 4, "gpu": 0, "memory": 8}
    assert {n["name"]: n["node_id"] for n in status["nodes"]} == grid.ids
    shown = grid.cli("cluster", "status")
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in ("gpu-master", "gpu1", "gpu2", grid.address))


def _node(status: dict, name: str) -> dict:
    return next(node for node in status["nodes"] if node["name"] == name)


def test_resource_sharing_status(grid: LiveGrid) -> None:
    shown = grid.cli("resource-sharing", "status")
    assert shown.returncode == 0
    assert "enabled" in shown.stdout and "balanced" in shown.stdout and "6 CPUs" in shown.stdout

    status = grid.json("resource-sharing", "status")
    assert status["enabled"] is True
    gpu1 = next(node for node in status["nodes"] if node["name"] == "gpu1")
    assert gpu1["limits"] == {"cpu": 6, "gpu": 1, "memory": 12}


def test_a_config_that_the_controller_does_not_run_is_refused(grid: LiveGrid, tmp_path) -> None:
    same = ROOT / "config" / "my-cluster-enhanced.yaml"
    other = tmp_path / "other.yaml"
    other.write_text(same.read_text().replace("max_share_cpu: 6", "max_share_cpu: 5"))

    assert grid.cli("boost", "status", "--config", str(same)).returncode == 0
    refused = grid.cli("boost", "status", "--config", str(other))

    assert refused.returncode == 4
    assert f"grid cluster stop && grid cluster start --config {other}" in refused.stderr
    assert refused.stdout == ""


def test_what_the_controller_runs_is_in_force_whatever_file_lies_here(grid: LiveGrid, tmp_path) -> None:
    here = tmp_path / "config" / "my-cluster-enhanced.yaml"
    here.parent.mkdir()
    here.write_text((ROOT / "config" / here.name).read_text().replace("max_share_cpu: 6", "max_share_cpu: 5"))

    running = grid.cli("config", "show", "--json", cwd=tmp_path)
    named = grid.cli("config", "show", "--json", "--config", str(here), cwd=tmp_path)

    setting = "nodes[1].resource_sharing.max_share_cpu"
    assert json.loads(running.stdout)["values"][setting]["value"] == 6
    assert "configuration of the running controller" in running.stderr
    assert json.loads(named.stdout)["values"][setting]["value"] == 5


def test_watch_shows_it_again_and_again(grid: LiveGrid) -> None:
    import subprocess

    from live_grid import GRID

    watching = subprocess.Popen(
        [GRID, "boost", "status", "--watch", "--json"], env=grid.env, stdout=subprocess.PIPE, text=True
    )
    try:
        lines = [json.loads(watching.stdout.readline()) for _ in range(2)]
    finally:
        watching.terminate()
        watching.wait()
    assert all(line["total_active"] == 0 for line in lines)


def test_a_second_cluster_in_the_same_home_is_refused(grid: LiveGrid) -> None:
    again = grid.cli("cluster", "start")

    assert again.returncode == 5
    assert "grid cluster stop" in again.stderr


def test_a_wrong_token_is_refused(grid: LiveGrid, tmp_path: Path) -> None:
    assert grid.home.token.stat().st_mode & 0o777 == 0o600
    (tmp_path / "controller.json").write_text(grid.home.controller.read_text())
    (tmp_path / "token").write_text("wrong\n")

    refused = grid.cli("boost", "request", "gpu-master", "cpu", "1", env={"GRID_HOME": str(tmp_path)})

    assert refused.returncode == 6
    assert "token" in refused.stderr
    assert grid.client.boost_status()["boosts"] == []


@pytest.mark.parametrize("path", ["/boosts", "/cluster", "/resource-sharing", "/events", "/config"])
def test_nothing_is_reported_without_a_token(grid: LiveGrid, path: str) -> None:
    import httpx2

    url = json.loads(grid.home.controller.read_text())["url"]

    assert httpx2.get(f"{url}/api/v1{path}").status_code == 401
    assert httpx2.get(f"{url}/api/v1/health").json() == {"status": "ok"}


def test_the_api_describes_itself(grid: LiveGrid) -> None:
    import httpx2

    url = json.loads(grid.home.controller.read_text())["url"]

    spec = httpx2.get(f"{url}/api/v1/openapi.json").json()

    assert {"/api/v1/boosts", "/api/v1/cluster", "/api/v1/boosts/{boost_id}/release"} <= set(spec["paths"])
    assert set(spec["components"]["schemas"]["Boost"]["properties"]) == BOOST_KEYS


def test_no_command_imports_ray(grid: LiveGrid, tmp_path) -> None:
    """In the process of `grid` itself; what needs Ray runs in processes of its own."""
    boost = grid.boost("gpu-master", "cpu", 1, delivery="reserve")
    commands = [
        ["boost", "status"],
        ["boost", "request", "gpu-master", "cpu", "1", "--duration", "2"],
        ["boost", "renew", boost["boost_id"]],
        ["boost", "shell", boost["boost_id"], "--", "true"],
        ["boost", "release", boost["boost_id"]],
        ["cluster", "status"],
        ["resource-sharing", "status"],
        ["config", "show"],
        ["cluster", "start"],
        ["doctor"],
    ]
    program = tmp_path / "watch_imports.py"
    program.write_text(
        "import sys\nsys.argv[0] = 'grid'\n"
        "from distributed_grid.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        "print('RAY' if 'ray' in sys.modules else 'NO-RAY', file=sys.stderr)\n"
    )
    import subprocess

    for command in commands:
        done = subprocess.run(
            [sys.executable, str(program), *command],
            env=grid.env,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.stderr.strip().endswith("NO-RAY"), f"grid {' '.join(command)}: {done.stderr}"
