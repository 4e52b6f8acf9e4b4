"""What commands say when there is no cluster to talk to."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from served_grid import ServedGrid
from service_unit import STAYS_DOWN

from distributed_grid.errors import RayUnsuitable
from distributed_grid.execution.ray_start import check_ray_version

GRID = str(Path(sys.executable).with_name("grid"))


def run(
    home: Path, *args: str, env: dict[str, str] | None = None, timeout: float = 120
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [GRID, *args],
        env=os.environ | {"GRID_HOME": str(home)} | (env or {}),
        capture_output=True,
        text=True,
        timeout=timeout,
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
    ["audit"],
    ["audit", "--repair"],
    ["audit", "log"],
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
    assert "has ended" in done.stderr


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


NOT_TO_BE_INHERITED = {"RAY_ADDRESS": "", "RAY_AUTH_MODE": "", "RAY_AUTH_TOKEN": "", "RAY_AUTH_TOKEN_PATH": ""}


def start(home: Path, address: str, **env: str) -> "subprocess.CompletedProcess[str]":
    done = run(home, "start", "--address", address, env=NOT_TO_BE_INHERITED | env)
    assert "Traceback" not in done.stderr
    return done


def test_no_ray_at_that_address(tmp_path: Path) -> None:
    done = start(tmp_path, "127.0.0.1:1")

    assert done.returncode == 5
    assert "No Ray cluster answers at 127.0.0.1:1" in done.stderr
    assert "nothing listens there" in done.stderr
    assert "grid cluster start" in done.stderr


def test_a_cluster_of_this_machine_that_is_gone_is_no_cluster(tmp_path: Path) -> None:
    done = start(tmp_path, "auto", RAY_ADDRESS="127.0.0.1:1")

    assert done.returncode == 5
    assert "No Ray cluster answers at auto" in done.stderr
    assert "nothing listens there" in done.stderr


@pytest.mark.parametrize("address", ["nonsense", "local", "ray://127.0.0.1:10001", "127.0.0.1:99999", ":6379"])
@pytest.mark.parametrize("options", [[], ["--supervise"]], ids=["once", "supervised"])
def test_what_is_no_address_of_a_head_joins_nothing_starts_nothing_and_waits_for_nothing(
    tmp_path: Path, address: str, options: list[str]
) -> None:
    done = run(tmp_path / "home", "start", "--address", address, *options)

    assert done.returncode == 2
    assert f"{address} is not the address of a Ray cluster" in done.stderr
    assert "Give HOST:PORT" in done.stderr
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        (["--tls-cert", "/nowhere"], "go together"),
        (["--host", "0.0.0.0"], "only with TLS"),
        (["--allow-host", "a b"], "is not a host name"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml"),
    ],
)
def test_a_supervisor_does_not_wait_for_a_head_to_find_its_own_arguments_wrong(
    tmp_path: Path, options: list[str], reported: str
) -> None:
    done = run(tmp_path, "start", "--address", "127.0.0.1:1", "--supervise", *options)

    assert done.returncode == 2
    assert reported in done.stderr


def test_a_supervisor_ends_where_rays_token_is_missing_and_systemd_may_start_it_again(tmp_path: Path) -> None:
    with answering(grpc.StatusCode.UNAUTHENTICATED) as address:
        done = run(tmp_path, "start", "--address", address, "--supervise", env=NOT_TO_BE_INHERITED)

    assert done.returncode == 6
    assert "is missing or wrong" in done.stderr
    assert done.returncode not in STAYS_DOWN


def test_a_supervisor_whose_home_serves_another_cluster_ends_and_stays_ended(tmp_path: Path) -> None:
    grid = ServedGrid(tmp_path)
    try:
        done = run(grid.home.path, "start", "--address", "127.0.0.1:2", "--supervise")
    finally:
        grid.close()

    assert done.returncode in STAYS_DOWN
    assert "The controller of this GRID_HOME is in another cluster" in done.stderr
    assert "grid stop" in done.stderr


@contextmanager
def listening(greeting: bytes) -> Iterator[str]:
    """A server that is not Ray: it takes every connection, says its greeting, and nothing more."""
    taken: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                taken.append(server.accept()[0])
                taken[-1].sendall(greeting)
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    for connection in taken:
        connection.close()


@pytest.mark.parametrize(
    ("greeting", "why"), [(b"220 mail ready\r\n", "does not answer like a Ray head"), (b"", "did not answer in 5 s")]
)
def test_a_port_that_is_not_rays_is_reported_within_seconds(tmp_path: Path, greeting: bytes, why: str) -> None:
    with listening(greeting) as address:
        done = start(tmp_path, address)

    assert done.returncode == 5
    assert f"No Ray cluster answers at {address}" in done.stderr
    assert why in done.stderr


@contextmanager
def answering(code: grpc.StatusCode) -> Iterator[str]:
    """A gRPC server that answers every call with this error."""

    class Refuses(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: context.abort(code, "no"))

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Refuses()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)


def test_a_cluster_that_wants_another_token_denies_access_and_says_what_to_do(tmp_path: Path) -> None:
    with answering(grpc.StatusCode.UNAUTHENTICATED) as address:
        done = start(tmp_path, address)

    assert done.returncode == 6
    assert f"The token for the Ray cluster at {address} is missing or wrong" in done.stderr
    assert "RAY_AUTH_MODE=token" in done.stderr


def test_a_token_that_cannot_be_read_here_denies_access_too(tmp_path: Path) -> None:
    with answering(grpc.StatusCode.UNAUTHENTICATED) as address:
        done = start(tmp_path, address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(tmp_path / "nowhere"))

    assert done.returncode == 6
    assert str(tmp_path / "nowhere") in done.stderr


def test_another_port_of_ray_is_not_its_head(tmp_path: Path) -> None:
    with answering(grpc.StatusCode.UNIMPLEMENTED) as address:
        done = start(tmp_path, address)

    assert done.returncode == 5
    assert "does not answer like a Ray head" in done.stderr


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


def test_the_modules_of_the_commands_load_without_the_definitions_and_what_those_need() -> None:
    """`wire` needs pydantic: it is there for mypy and for the controller."""
    modules = "boost, plan, resource_sharing, node_view, cluster_view, role_runs, role_runs_view, audit, token, tasks"
    code = (
        f"import sys; from distributed_grid.cli import app, {modules}; import distributed_grid.client; "
        "print([m for m in ('pydantic', 'typing_extensions', 'distributed_grid.wire.boosts') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)

    assert done.stdout == "[]\n"
