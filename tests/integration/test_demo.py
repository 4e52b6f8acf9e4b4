"""What newcomers run first, run as they type it: `grid demo`, the validation script and the example."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
from live_grid import PACKAGED, LiveGrid

from distributed_grid.demo import __main__ as demo
from distributed_grid.demo import performance
from distributed_grid.demo.performance import Stage, why_unsuitable
from distributed_grid.demo.show import check
from distributed_grid.demo.story import Story
from distributed_grid.errors import CheckFailed
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.scheduling import SchedulingStrategy
from distributed_grid.store.home import GridHome

CONFIG = PACKAGED

ROOT = Path(__file__).parents[2]
GRID = str(Path(sys.executable).with_name("grid"))
CLAIMS = [
    "Every node offers what it started with",
    "It is pending: no node can run it",
    "The capacity itself has moved: +2 on gpu-master, -2 on gpu1",
    "The waiting job ran by itself, on gpu-master, with 6 CPUs",
    "They are returned",
    "Its placement group is on the lender, gpu",
    "No other program gets that GPU meanwhile",
    "A task with num_gpus=1 in that group ran on gpu",
    "The reservation is gone, and the GPU is free again",
    "It is there, and the command that asked for it has ended",
    "When its 5 s were over it was returned, and no client had to ask",
    "Every resource of every node is exactly at its base",
    "All of it is free, and no reservation and no boost is left",
]


class Installation:
    """Commands from the repository's root, with a GRID_HOME of their own."""

    def __init__(self, home: Path) -> None:
        self.env = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "GRID_CONFIG")}
        self.env |= {"GRID_HOME": str(home), "PYTHONIOENCODING": "utf-8"}

    def run(self, *command: str, timeout_s: float = 120) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(command, cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=timeout_s)

    def grid(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.run(GRID, *words)

    def python(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.run(sys.executable, *words)

    def boosts(self) -> list[dict[str, Any]]:
        status = json.loads(self.grid("boost", "status", "--json").stdout)
        found: list[dict[str, Any]] = status["boosts"]
        return found


@pytest.fixture
def here(grid: LiveGrid) -> Installation:
    """The embedded cluster of the default configuration, running."""
    grid.settled()
    return Installation(grid.home.path)


@pytest.fixture
def nowhere(tmp_path: Path) -> Installation:
    """No cluster is running here."""
    return Installation(tmp_path)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files. Not pytest's own: Ray puts sockets into it, whose paths must be short."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        yield Path(folder)


def all_claims_hold(output: str) -> bool:
    return [claim for claim in CLAIMS if f"✔ {claim}" not in output] == [] and "✘" not in output


def processes_with(variable: str, value: str) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(variable) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return met


# -- grid demo ------------------------------------------------------------------------------------------------


@pytest.mark.cluster
def test_the_demo_shows_all_its_claims_on_a_cluster_of_its_own_and_leaves_nothing(
    nowhere: Installation, temporary: Path
) -> None:
    nowhere.env["TMPDIR"] = str(temporary)

    played = nowhere.grid("demo")

    assert played.returncode == 0, played.stdout + played.stderr
    assert all_claims_hold(played.stdout), played.stdout
    assert f"All {len(CLAIMS)} claims hold" in played.stdout
    assert "Ray: CPUs gpu-master 6, gpu1 6, gpu2 8" in played.stdout
    assert played.stderr == "", "neither Ray nor grid has anything to complain about"
    assert list(temporary.glob("grid-demo-*")) == []
    assert list(Path(nowhere.env["GRID_HOME"]).iterdir()) == []
    assert processes_with("TMPDIR", str(temporary)) == []


@pytest.mark.cluster
def test_the_demo_uses_the_cluster_that_is_running_and_leaves_it_as_it_was(here: Installation) -> None:
    before = json.loads(here.grid("cluster", "status", "--json").stdout)

    played = here.grid("demo")

    after = json.loads(here.grid("cluster", "status", "--json").stdout)
    assert played.returncode == 0, played.stdout + played.stderr
    assert f"Using the cluster that is running at {before['ray_address']}" in played.stdout
    assert all_claims_hold(played.stdout), played.stdout
    assert capacity(after) == capacity(before)


def capacity(status: dict) -> list[dict]:
    """What Ray and grid count, without what was measured meanwhile."""
    counted = ("name", "node_id", "alive", "base", "total", "used", "free", "lent", "borrowed")
    return [{field: node[field] for field in counted} for node in status["nodes"]]


@pytest.mark.cluster
def test_the_demo_keeps_out_of_the_way_of_boosts_that_are_active(here: Installation) -> None:
    boost = json.loads(here.grid("boost", "request", "gpu-master", "cpu", "1", "--json").stdout)
    try:
        played = here.grid("demo")
        still_there = [b["boost_id"] for b in here.boosts()]
    finally:
        here.grid("boost", "release", boost["boost_id"])

    assert played.returncode == 4
    assert played.stdout == ""
    assert "boosts are active there (1)" in played.stderr
    assert "GRID_HOME=$(mktemp -d) grid demo" in played.stderr
    assert still_there == [boost["boost_id"]]


@pytest.mark.cluster
def test_an_interrupted_demo_gives_back_what_it_borrowed(here: Installation) -> None:
    playing = subprocess.Popen(
        [GRID, "demo"], cwd=ROOT, env=here.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert playing.stdout is not None
    seen = ""
    while "The capacity itself has moved" not in seen:
        line = playing.stdout.readline()
        assert line, f"it ended early:\n{seen}"
        seen += line

    playing.send_signal(signal.SIGINT)
    rest, complaints = playing.communicate(timeout=60)

    assert playing.returncode == 130
    assert rest.endswith("Stopped.\n")
    assert "Traceback" not in complaints
    assert within(60, lambda: here.boosts() == [])


@pytest.fixture
def own_signals() -> Iterator[None]:
    """The demo ignores signals after its end: it is meant to be a program of its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_claim_that_is_false_makes_the_demo_fail(
    own_signals: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Ray:
        """Says that gpu-master offers one CPU more than it has."""

        def bases(self) -> dict[str, ResourceVector]:
            return {"gpu-master": ResourceVector.of(cpu=4), "gpu1": ResourceVector.of(cpu=8)}

        def totals(self) -> dict[str, ResourceVector]:
            return self.bases() | {"gpu-master": ResourceVector.of(cpu=5)}

    all_steps = Story.steps
    stage = Stage(GridHome(Path("/nowhere")), "nowhere:1")
    monkeypatch.setattr(performance, "the_stage", lambda show: nullcontext(stage))
    monkeypatch.setattr(performance, "driver_of", lambda address: nullcontext(Ray()))
    monkeypatch.setattr(Story, "steps", lambda self: all_steps(self)[:1])

    code = demo.main()

    reported = capsys.readouterr()
    assert code == CheckFailed.exit_code == 9
    assert "✘ Every node offers what it started with" in reported.out
    assert "Ray: CPUs gpu-master 5, gpu1 8" in reported.out
    assert "expected: CPUs gpu-master 4, gpu1 8" in reported.out
    assert "1 of 1 claims failed" in reported.err


def test_a_check_looks_until_the_claim_is_true() -> None:
    seen = iter([4, 5, 6, 7])

    found = check("it grows", lambda: next(seen), 6, within_s=10)

    assert found.holds
    assert found.seen == "6"


def test_a_check_gives_up_in_time_and_tells_both_what_it_saw_and_what_it_wanted() -> None:
    found = check("it grows", lambda: 4, 6, within_s=0.1, describe=lambda cpus: f"{cpus} CPUs")

    assert not found.holds
    assert (found.seen, found.expected) == ("4 CPUs", "6 CPUs")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c, s: c["boosts"]["boosts"].append({}), "boosts are active there (1)"),
        (lambda c, s: c["nodes"][0].update(name="head"), "it has no node gpu-master"),
        (lambda c, s: c["nodes"].pop(), "lending takes two"),
        (lambda c, s: c["nodes"][1].update(free={"cpu": 7}), "work is running on gpu1"),
        (lambda c, s: c["nodes"][0].update(total={"cpu": 5}, free={"cpu": 5}), "gpu-master does not offer"),
        (lambda c, s: s.update(enabled=False), "resource sharing is not enabled"),
        (lambda c, s: s["nodes"][1]["limits"].update(cpu=1), "no node may lend 2 CPUs"),
        (lambda c, s: s["nodes"][1].update(can_share=False), "no node may lend a GPU"),
    ],
)
def test_the_demo_says_what_is_in_its_way(change: Callable[[Any, Any], object], reason: str) -> None:
    def node(name: str, cpus: int) -> dict[str, Any]:
        has = {"cpu": cpus, "gpu": 1}
        return {"name": name, "alive": True, "base": has, "total": has, "free": has, "can_share": True, "limits": {}}

    cluster = {"nodes": [node("gpu-master", 4), node("gpu1", 8)], "boosts": {"boosts": []}}
    sharing = {"enabled": True, "nodes": [node("gpu-master", 4), node("gpu1", 8)]}
    assert why_unsuitable(cluster, sharing, target="gpu-master", cpus=2) == []

    change(cluster, sharing)

    assert reason in " and ".join(why_unsuitable(cluster, sharing, target="gpu-master", cpus=2))


# -- scripts/validate_ray_cluster.py --------------------------------------------------------------------------


@pytest.mark.cluster
def test_lent_and_borrowed_amounts_are_read_from_the_nodes_and_add_up(here: Installation) -> None:
    granted = [
        json.loads(here.grid("boost", "request", "gpu-master", kind, "2", "--source", "gpu1", "--json").stdout)
        for kind in ("cpu", "memory")
    ]
    address = json.loads(here.grid("cluster", "status", "--json").stdout)["ray_address"]
    try:
        validated = here.python("scripts/validate_ray_cluster.py", "--json", "--address", address)
    finally:
        for boost in granted:
            here.grid("boost", "release", boost["boost_id"])

    assert validated.returncode == 0, validated.stderr
    report = json.loads(validated.stdout)
    nodes = {node["name"]: node for node in report["nodes"]}
    assert report["ok"] and report["problems"] == []
    assert nodes["gpu1"]["lent"] == {"cpu": 2, "gpu": 0, "memory": 2}
    assert nodes["gpu-master"]["borrowed"] == {"cpu": 2, "gpu": 0, "memory": 2}
    assert nodes["gpu-master"]["total"] == {"cpu": 6, "gpu": 0, "memory": 10}


@pytest.mark.cluster
def test_a_node_that_offers_what_no_node_lent_it_is_a_problem(here: Installation, grid: LiveGrid) -> None:
    grid.resize("gpu2", CPU=9.0)
    try:
        validated = here.python("scripts/validate_ray_cluster.py")
    finally:
        grid.resize("gpu2", CPU=8.0)

    assert validated.returncode == 9
    assert "Problem: gpu2: it offers 9 CPUs; base - lent + borrowed is 8 CPUs" in validated.stderr
    assert "FAILED" in validated.stdout
    assert "1 problems" in validated.stdout


def test_without_a_cluster_the_validation_says_how_to_get_one(nowhere: Installation) -> None:
    validated = nowhere.python("scripts/validate_ray_cluster.py")

    assert validated.returncode == 5
    assert validated.stdout == ""
    assert "There is no Ray cluster to validate" in validated.stderr
    assert "grid cluster start" in validated.stderr


def test_an_address_where_nothing_listens_is_reported_at_once(nowhere: Installation) -> None:
    validated = nowhere.run(sys.executable, "scripts/validate_ray_cluster.py", "--address", "127.0.0.1:1", timeout_s=30)

    assert validated.returncode == 5
    assert "No Ray cluster answers at 127.0.0.1:1" in validated.stderr


# -- examples/intelligent_sharing_demo.py ---------------------------------------------------------------------


@pytest.mark.cluster
def test_the_example_shows_all_five_parts(here: Installation) -> None:
    shown = here.python("examples/intelligent_sharing_demo.py")

    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert shown.stderr == ""
    for part in ("Cluster status", "Resource monitoring", "A request", "Scheduling", "Load balancing"):
        assert f"\n{part}" in shown.stdout
    monitored = [line for line in shown.stdout.splitlines() if line.count(" = ") == 3]
    assert len(set(monitored)) > 1 and monitored[-1] == monitored[0], "the numbers move, and come back"
    assert "Released: True; active boosts: 0" in shown.stdout
    assert "20 CPUs, as many as the whole cluster has: waiting" in shown.stdout
    said = dict(line.strip().split(": ", 1) for line in shown.stdout.splitlines() if ": " in line)
    assert all(strategy in said for strategy in SchedulingStrategy)
    assert len(set(said["spread"].partition(" (")[0].split(", "))) > 1
    assert said["node_specific"].startswith("no place (")
    assert said["Before the boost"].startswith("no place (gpu-master: ")
    assert "It ran with 6 CPUs on gpu-master" in shown.stdout
    alone, boosted = (slots_used(shown.stdout, line) for line in ("Alone:", "With the boost: 24"))
    assert alone <= 4 and boosted <= 8, "never more than there is"
    assert said["It asks for 4 more"] in ("gpu1 lends 4", "gpu2 lends 4")
    assert here.boosts() == []


def slots_used(output: str, line_start: str) -> int:
    """The number in "... up to 4 at a time ..."."""
    line = next(line for line in output.splitlines() if line.startswith(line_start))
    return int(line.split("up to ")[1].split()[0])
