"""Access to the embedded cluster: from loopback only, with TLS, and with a stray token of Ray's in the user's home."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import ray
import trustme
from live_grid import GRID, LiveGrid, on, until, where_am_i

from distributed_grid.cluster.processes import carrying, child_environment, trees
from distributed_grid.cluster.record import load
from distributed_grid.execution.on_node_raylet import MARK

pytestmark = pytest.mark.cluster

CONFIG = """
name: stray
embedded: true
resource_sharing: {enabled: true}
nodes:
- {name: head, role: master, cpu_count: 1, memory_gb: 1}
- {name: lender, cpu_count: 2, memory_gb: 1}
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGrid]:
    """With TLS, and beside a token that a plain `ray.init()` left."""
    folder = tmp_path_factory.mktemp("access")
    issued = trustme.CA().issue_cert("somewhere.example.org")
    issued.private_key_and_cert_chain_pem.write_to_path(str(folder / "both.pem"))
    (folder / ".ray").mkdir()
    (folder / ".ray" / "auth_token").write_text(secrets.token_hex(32))
    live = LiveGrid(folder, CONFIG)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        live.env.pop(name, None)
    live.env["HOME"] = str(folder)
    try:
        live.start("--tls-cert", "both.pem", "--tls-key", "both.pem")
        yield live
    finally:
        live.stop()


def test_it_lends_with_tls_on_loopback_alone_and_beside_a_token_that_a_plain_ray_init_left(live: LiveGrid) -> None:
    assert json.loads(live.home.controller.read_text())["url"].startswith("https://127.0.0.1:")
    live.boost("head", "cpu", 1)
    live.total_is("head", "CPU", 2.0)
    assert ray.get(where_am_i.options(**on("lender")).remote()) == "lender"  # so that both nodes have workers
    assert listening_of(live) == {"127.0.0.1"}
    for address in (live.address, "auto"):
        assert plain_program(live, address) == {"127.0.0.1"}
    live.release_everything()


PRIVATE = """
import pathlib, sys, time, ray
ray.init(logging_level="ERROR", log_to_driver=False)
ray.get(ray.remote(lambda: 1).remote())
print("ready", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.1)
"""


@pytest.mark.timeout(600)
def test_a_private_cluster_on_it_listens_on_loopback_alone_too(live: LiveGrid, tmp_path: Path) -> None:
    end = tmp_path / "end"
    program = [sys.executable, "-c", PRIVATE, str(end)]
    run = [GRID, "run", "--isolation", "cluster", "--cpus", "1", "--source", "lender", "--", *program]
    with subprocess.Popen(run, env=live.env, cwd=live.folder, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert any(line == "ready\n" for line in running.stdout)
            private = {process for process in psutil.process_iter() if is_private(process, live)}
            names = [process.name() for process in private]
            assert (names.count("gcs_server"), names.count("raylet")) == (1, 2), names
            drivers = trees([psutil.Process(running.pid)])
            assert {address for process in private | drivers for address in listening(process)} == {"127.0.0.1"}
        finally:
            end.touch()
        assert running.wait(300) == 0


def is_private(process: psutil.Process, live: LiveGrid) -> bool:
    """Whether it is part of a private cluster of this installation."""
    try:
        environment = process.environ()
    except psutil.Error:
        return False
    return MARK in environment and environment.get("GRID_HOME") == str(live.home.path)


def test_a_start_on_far_fewer_cores_than_its_nodes_have_cpus_says_what_that_means(tmp_path: Path) -> None:
    live = LiveGrid(tmp_path, CONFIG.replace("cpu_count: 2", "cpu_count: 12"))
    one_core = {min(os.sched_getaffinity(0))}
    try:
        done = subprocess.run(
            [GRID, "cluster", "start", "--config", str(live.config)],
            env=live.env,
            preexec_fn=lambda: os.sched_setaffinity(0, one_core),
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "CPUs together, and this machine has 1 core." in done.stderr
        assert "grid run --cpus 1 -- PROGRAM" in done.stderr
        assert len(live.supervisors()) == 1
    finally:
        live.client.close()
        live.cli("cluster", "stop")
    until(lambda: not live.supervisors(), 20, "what watches the controller ends with the cluster")


def listening_of(live: LiveGrid) -> set[str]:
    """The addresses at which the cluster's processes, and those of grid in it, take connections."""
    record = load(live.home)
    assert record is not None
    processes = trees(psutil.Process(node.pid) for node in record.nodes) | carrying(record.marker)
    names = {process.name() for process in processes}
    assert {"gcs_server", "raylet"} <= names and any("GridController" in name for name in names)
    return {address for process in processes for address in listening(process)}


def listening(process: psutil.Process) -> list[str]:
    with suppress(psutil.NoSuchProcess):
        found = [each for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
        return [each.laddr.ip.removeprefix("::ffff:") for each in found]
    return []


PROGRAM = """
import sys, psutil, ray
ray.init(address=sys.argv[1])
ray.get(ray.remote(lambda: 1).remote())
found = [each for each in psutil.Process().net_connections("inet") if each.status == "LISTEN"]
print(*[each.laddr.ip.removeprefix("::ffff:") for each in found])
"""


def plain_program(live: LiveGrid, address: str) -> set[str]:
    """Where a Ray program without anything of grid's listens; it connects as Ray's pages say."""
    given = {} if address == "auto" else {"RAY_ADDRESS": address}
    command = [sys.executable, "-c", PROGRAM, address]
    done = subprocess.run(command, env=live.env | given, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_a_mode_that_was_set_is_the_clusters() -> None:
    modes = {
        given: child_environment({"RAY_AUTH_MODE": given}, "m")["RAY_AUTH_MODE"] for given in ("token", "disabled", "")
    }

    assert modes == {"token": "token", "disabled": "disabled", "": "disabled"}
    assert child_environment({}, "m")["RAY_AUTH_MODE"] == "disabled"
