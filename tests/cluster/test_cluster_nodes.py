import json
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from distributed_grid.cluster import NodeSpec, nodes
from distributed_grid.cluster.nodes import head_first, is_up, ray_executable, spawn, start_command
from distributed_grid.cluster.ports import LockedPorts
from distributed_grid.errors import ClusterStartFailed, RayUnsuitable
from distributed_grid.model.resources import GB


def node(name: str = "gpu1", **changes: object) -> NodeSpec:
    given = {"cpus": 8, "gpus": 1, "memory_bytes": 16 * GB, "resources": {}, "is_head": False}
    return NodeSpec(name, **(given | changes))  # type: ignore[arg-type]


def flags(command: list[str]) -> dict[str, str]:
    return {flag: value for flag, value in pairwise(command) if flag.startswith("--")}


def test_a_node_is_described_as_people_say_it() -> None:
    assert node(resources={"fpga": 2}).describe() == "8 CPUs, 16 GB of memory, 1 GPU, 2 fpga"
    assert node(cpus=0, gpus=0).describe() == "0 CPUs, 16 GB of memory"


def test_the_head_starts_first_and_the_others_keep_their_order() -> None:
    ordered = head_first([node("b"), node("m", is_head=True), node("a")])

    assert [n.name for n in ordered] == ["m", "b", "a"]


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        ([node(is_head=True, cpus=1.5)], "whole number of CPUs, not 1.5"),
        ([node("a")], "one head node, not 0"),
        ([node("a", is_head=True), node("b", is_head=True)], "one head node, not 2"),
        ([node("a", is_head=True), node("a")], "same name"),
        ([node("../a", is_head=True)], "not a valid node name"),
    ],
)
def test_what_ray_could_not_start_is_refused_before_anything_starts(specs: list[NodeSpec], reason: str) -> None:
    with pytest.raises(ClusterStartFailed) as refused:
        head_first(specs)

    assert any(reason in line for line in refused.value.because)


def test_a_worker_joins_the_head_with_all_it_has() -> None:
    spec = node(cpus=8.0, resources={"custom": 1.5}, labels={"zone": "a"})
    with LockedPorts() as ports:
        given = flags(start_command(spec, "10.0.0.1:20001", ports))

    assert given["--address"] == "10.0.0.1:20001"
    assert given["--num-cpus"] == "8"
    assert given["--num-gpus"] == "1"
    assert given["--memory"] == str(16 * GB)
    assert json.loads(given["--resources"]) == {"custom": 1.5}
    assert given["--labels"] == "zone=a,grid/name=gpu1"
    assert "--head" not in given


def test_no_two_ports_of_a_cluster_are_the_same() -> None:
    with LockedPorts() as ports:
        commands = [
            flags(start_command(node("m", is_head=True), "10.0.0.1:1", ports)),
            flags(start_command(node("w"), "10.0.0.1:1", ports)),
        ]

    taken = [
        value for given in commands for flag, value in given.items() if flag.endswith("-port") and flag != "--port"
    ]
    assert len(taken) == 9
    assert len(set(taken)) == 9


def test_rays_command_is_this_pythons_and_finding_it_does_not_import_ray() -> None:
    script = (
        "import sys; from distributed_grid.cluster.nodes import ray_executable; "
        "print(ray_executable()[0] == sys.executable, 'ray' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["True", "False"]


def test_without_ray_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes.importlib.util, "find_spec", lambda _: None)

    with pytest.raises(RayUnsuitable) as missing:
        ray_executable()

    assert "pip install" in str(missing.value.try_next)


def run(script: str, log: Path) -> "subprocess.Popen[bytes]":
    return spawn([sys.executable, "-c", script], log, {})


def test_a_node_that_ends_at_once_is_explained_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "ray.log"
    process = run("print('the port is taken'); raise SystemExit(3)", log)
    process.wait()

    with pytest.raises(ClusterStartFailed, match=r"Node gpu1 did not start: .*exit status 3") as failed:
        is_up("gpu1", process, log, math.inf)

    assert failed.value.because == ("the port is taken",)
    assert str(log) in str(failed.value.try_next)


def test_a_node_that_never_comes_up_is_given_up(tmp_path: Path) -> None:
    log = tmp_path / "ray.log"
    process = run("import time; time.sleep(60)", log)
    try:
        with pytest.raises(ClusterStartFailed, match="not up after"):
            is_up("gpu1", process, log, deadline=0.0)
    finally:
        process.kill()
        process.wait()
