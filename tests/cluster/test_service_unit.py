"""The systemd unit: systemd can read it, and it starts what there is. And what a service tells systemd."""

import shutil
import socket
import subprocess
from configparser import ConfigParser
from contextlib import suppress
from pathlib import Path

import click
import pytest
from service_unit import UNIT, service_unit

from distributed_grid.cli.start import start
from distributed_grid.cluster import supervise
from distributed_grid.cluster.supervise import ServiceManager


@pytest.fixture
def unit() -> ConfigParser:
    return service_unit()


def test_the_command_of_the_unit_can_be_typed_like_that(unit: ConfigParser) -> None:
    path, *arguments = unit["Service"]["ExecStart"].split()

    assert Path(path).is_absolute()
    assert arguments[0] == "start"
    context = click.Context(start)
    start.parse_args(context, arguments[1:])
    assert context.params["supervise"] is True
    assert context.params["address"] == "${GRID_ADDRESS}"


def test_the_unit_fits_what_the_supervisor_does(unit: ConfigParser) -> None:
    service = unit["Service"]

    assert service["Type"] == "notify"
    assert service["Restart"] == "on-failure", "after grid stop it ends with 0, and must stay down"
    assert service["TimeoutStartSec"] == "infinity", "the head may come long after"
    assert float(service["WatchdogSec"]) >= 15, "one look may take some seconds"
    assert service["StateDirectory"] in service_home(unit)


def service_home(unit: ConfigParser) -> str:
    text = UNIT.read_text()
    return next(
        line.partition("GRID_HOME=")[2] for line in text.splitlines() if line.startswith("Environment=GRID_HOME")
    )


@pytest.mark.parametrize("broken", ["PrivateTmp", "PrivateNetwork", "PrivateIPC", "PrivateDevices", "ProtectProc"])
def test_what_would_cut_it_off_from_ray_is_not_set(unit: ConfigParser, broken: str) -> None:
    assert broken not in unit["Service"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    there = tmp_path / "grid"
    there.write_text("#!/bin/sh\n")
    there.chmod(0o755)
    copy = tmp_path / "grid.service"
    copy.write_text(UNIT.read_text().replace("/opt/distributed-grid/bin/grid", str(there)))

    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert str(copy) not in done.stderr


# -- what systemd is told ------------------------------------------------------------------------------------


@pytest.fixture(params=["file", "abstract"])
def ear(request: pytest.FixtureRequest, tmp_path: Path) -> "tuple[socket.socket, str]":
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.settimeout(5)
    name = str(tmp_path / "notify") if request.param == "file" else f"@{tmp_path}/notify"
    listening.bind("\0" + name[1:] if name.startswith("@") else name)
    request.addfinalizer(listening.close)
    return listening, name


def test_systemd_hears_of_readiness_status_life_and_end(ear: "tuple[socket.socket, str]") -> None:
    listening, name = ear
    manager = ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, pid=7)

    manager.ready()
    manager.status("two\nlines")
    manager.alive()
    manager.stopping()

    heard = [listening.recv(1000) for _ in range(4)]
    assert heard == [b"READY=1", b"STATUS=two lines", b"WATCHDOG=1", b"STOPPING=1"]
    assert manager.watchdog_s == 30.0


def test_one_that_does_not_listen_does_not_hold_us_up(
    ear: "tuple[socket.socket, str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "PATIENCE_S", 0.001)
    listening, name = ear
    manager = ServiceManager({"NOTIFY_SOCKET": name})
    for n in range(1000):  # more than the socket keeps for a reader that does not come
        manager.status(str(n))

    listening.setblocking(False)
    heard = []
    with suppress(BlockingIOError):
        while True:
            heard.append(listening.recv(1000))
    assert heard == [f"STATUS={n}".encode() for n in range(len(heard))], "the first are kept, in order"
    assert 0 < len(heard) < 1000
    manager.ready()
    assert listening.recv(1000) == b"READY=1", "there is room again"


@pytest.mark.parametrize(
    "environ",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "5", "WATCHDOG_PID": "8"}],
)
def test_without_a_watchdog_of_ours_there_are_no_signs_of_life(environ: dict[str, str]) -> None:
    assert ServiceManager(environ, pid=7).watchdog_s is None


def test_without_systemd_or_with_one_that_is_gone_nothing_happens(tmp_path: Path) -> None:
    for environ in ({}, {"NOTIFY_SOCKET": str(tmp_path / "gone")}):
        manager = ServiceManager(environ)
        manager.ready()
        manager.alive()
        assert manager.watchdog_s is None
    assert list(tmp_path.iterdir()) == [], "no socket appears"
