"""What commands say when there is no cluster to talk to."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distributed_grid.errors import RayUnsuitable
from distributed_grid.execution.ray_version import check_ray_version

GRID = str(Path(sys.executable).with_name("grid"))


def run(home: Path, *args: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [GRID, *args],
        env=os.environ | {"GRID_HOME": str(home)} | (env or {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


COMMANDS = [
    ["boost", "status"],
    ["boost", "request", "gpu-master", "cpu", "1"],
    ["boost", "release", "abc"],
    ["boost", "renew", "abc"],
    ["boost", "shell", "abc"],
    ["cluster", "status"],
    ["resource-sharing", "status"],
    ["stop"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_says_that_no_cluster_runs_and_how_to_start_one(tmp_path: Path, command: list[str]) -> None:
    done = run(tmp_path / "home", *command)

    assert done.returncode == 5
    assert done.stdout == ""
    assert "No cluster is running" in done.stderr
    assert "grid cluster start" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_record_of_a_cluster_that_is_gone_is_no_cluster(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t\n")
    (tmp_path / "controller.json").write_text(
        json.dumps({"url": "http://127.0.0.1:9", "pid": 1, "ray_address": "127.0.0.1:9"})
    )

    done = run(tmp_path, "boost", "status")

    assert done.returncode == 5
    assert "is gone" in done.stderr


def test_stopping_what_does_not_run_is_no_error(tmp_path: Path) -> None:
    done = run(tmp_path, "cluster", "stop")

    assert done.returncode == 0
    assert "No embedded cluster is running" in done.stdout


def test_a_configuration_of_real_machines_is_not_started_here(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("nodes: [{name: a}]\n")

    done = run(tmp_path / "home", "cluster", "start", "--config", str(config))

    assert done.returncode == 2
    assert "grid start --address" in done.stderr


def test_no_ray_at_that_address(tmp_path: Path) -> None:
    done = run(tmp_path, "start", "--address", "127.0.0.1:1", env={"RAY_gcs_server_request_timeout_seconds": "1"})

    assert done.returncode == 5
    assert "No Ray cluster answers at 127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_ray_that_is_too_old_is_refused_with_what_to_do(tmp_path: Path) -> None:
    old = tmp_path / "site" / "ray"
    old.mkdir(parents=True)
    (old / "__init__.py").write_text("__version__ = '2.40.0'\n")

    done = run(tmp_path, "start", "--address", "auto", env={"PYTHONPATH": str(old.parent)})

    assert done.returncode == 7
    assert "Ray 2.40.0 is too old" in done.stderr
    assert "pip install --upgrade" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("version", ["2.55.0", "2.60.1", "3.0.0", "2.56.0rc1"])
def test_a_ray_that_is_new_enough(version: str) -> None:
    check_ray_version(version)


@pytest.mark.parametrize("version", ["2.54.9", "1.13.0", "2.9.3"])
def test_a_ray_that_is_not(version: str) -> None:
    with pytest.raises(RayUnsuitable):
        check_ray_version(version)


@pytest.mark.parametrize("command", [[], ["boost"], ["cluster"], ["config"], ["resource-sharing"]])
def test_help_is_there_for_every_group(tmp_path: Path, command: list[str]) -> None:
    done = run(tmp_path, *command, "--help")

    assert done.returncode == 0
    assert "Usage: grid" in done.stdout


def test_an_unknown_command_is_a_message_and_exit_code_2(tmp_path: Path) -> None:
    done = run(tmp_path, "boots")

    assert done.returncode == 2
    assert "No such command" in done.stderr
