"""The places where tests can end a process: they do what was ordered, once, and nothing without an order."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PASSES = "from distributed_grid.faults import *; [fault_point(point) for point in Point]; print('through')"


def run(orders: Path | None) -> "subprocess.Popen[str]":
    env = {name: value for name, value in os.environ.items() if name != "GRID_FAULTS"}
    if orders is not None:
        env["GRID_FAULTS"] = str(orders)
    return subprocess.Popen([sys.executable, "-c", PASSES], env=env, stdout=subprocess.PIPE, text=True)


def test_nothing_happens_where_no_test_asked_for_it(tmp_path: Path) -> None:
    assert run(None).communicate()[0] == "through\n"
    assert run(tmp_path / "orders").communicate()[0] == "through\n"


def test_a_process_is_killed_at_a_point_and_gets_past_it_the_next_time(tmp_path: Path) -> None:
    (orders := tmp_path / "orders").write_text("store.renamed kill")

    first, second = run(orders), None
    assert first.wait(20) == -signal.SIGKILL
    assert (tmp_path / "orders.passed").read_text().split()[-1] == "store.renamed"
    second = run(orders)
    assert second.communicate()[0] == "through\n"
    assert not orders.exists() and (tmp_path / "orders.done").exists()


def test_only_the_turn_that_was_meant(tmp_path: Path) -> None:
    (orders := tmp_path / "orders").write_text("grant.written kill 0 2")

    assert run(orders).wait(20) == 0
    assert run(orders).wait(20) == -signal.SIGKILL


def test_a_process_is_stopped_and_goes_on_when_told_to(tmp_path: Path) -> None:
    (orders := tmp_path / "orders").write_text("renew.begun stop")

    process = run(orders)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    os.kill(process.pid, signal.SIGCONT)
    assert process.communicate()[0] == "through\n"


def test_a_delay(tmp_path: Path) -> None:
    (orders := tmp_path / "orders").write_text("renew.begun delay 0.3")

    began = time.monotonic()
    assert run(orders).wait(20) == 0
    assert time.monotonic() - began > 0.3


@pytest.mark.parametrize("nonsense", ["", "kill", "nowhere kill"])
def test_orders_that_make_no_sense_change_nothing(tmp_path: Path, nonsense: str) -> None:
    (orders := tmp_path / "orders").write_text(nonsense)

    assert run(orders).wait(20) == 0
