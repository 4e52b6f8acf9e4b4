"""A supervisor whose own files are in disorder watches on, and puts the controller in."""

import errno
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
from faulty_files import FAULTS, failing

from distributed_grid.cluster.attach import ask_apart
from distributed_grid.cluster.supervise import (
    Order,
    ServiceManager,
    Supervisor,
    end_supervisors,
    restored_supervisor,
    start_supervisor,
)
from distributed_grid.errors import NotOnHead, Unavailable
from distributed_grid.store.home import GridHome

TURNS = 10


class Watched:
    """A head that listens, and a supervisor beside it that ends once grid was put in, or after some turns."""

    def __init__(self, home: GridHome, address: str) -> None:
        self.home = home
        self._address = address
        self.said: list[str] = []
        self.tries = 0
        self.turns = 0
        self.is_in = False
        self.errors: list[Exception] = []
        """What the first tries meet."""

    def put_in(self, meanwhile: Callable[[], None]) -> dict[str, Any]:
        self.tries += 1
        if self.errors:
            raise self.errors.pop(0)
        self.is_in = True
        return {"ray_address": self._address, "url": "http://127.0.0.1:1"}

    def is_over(self) -> bool:
        self.turns += 1
        return self.is_in or self.turns > TURNS

    def run(self, *, say: Callable[[str], None] | None = None, was_in: bool = True) -> None:
        manager = ServiceManager({})
        Supervisor(
            self._address,
            self.home,
            self.put_in,
            manager,
            say=say or self.said.append,
            on_ready=lambda _: None,
            is_over=self.is_over,
            was_in=was_in,
        ).run()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with socket.create_server(("127.0.0.1", 0)) as head:
        yield Watched(GridHome(tmp_path / "home").create(), f"127.0.0.1:{head.getsockname()[1]}")


def test_a_log_on_a_full_disk_does_not_end_it(watched: Watched) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    refused: list[OSError] = []

    def say(text: str) -> None:
        try:
            os.write(full, text.encode())
        except OSError as error:
            refused.append(error)
            raise

    try:
        watched.run(say=say)
    finally:
        os.close(full)
    assert refused
    assert watched.is_in


@contextmanager
def looking(path: Path, act: Callable[[], None]) -> Iterator[None]:
    really = os.stat

    def stat(looked_at: Any, *args: Any, **options: Any) -> os.stat_result:
        if str(looked_at) == str(path):
            act()
        return really(looked_at, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "stat", stat)
        yield


@pytest.mark.parametrize("fault", [*FAULTS, "stat"])
@pytest.mark.parametrize("name", ["stopped.json", "controller.json", "cluster.json", "token", "supervisor.json"])
def test_whatever_is_wrong_with_its_files_it_puts_the_controller_in(watched: Watched, name: str, fault: str) -> None:
    path = watched.home.path / name
    if name != "stopped.json" or fault in ("missing", "unwritable", "stat"):
        path.write_text("{}")
    wrong: AbstractContextManager[None] = (
        looking(path, failing(errno.EIO)) if fault == "stat" else FAULTS[fault](path, lambda: None)
    )
    with wrong:
        watched.run(was_in=False)

    assert watched.is_in


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "Too many open files"), RuntimeError("a bug"), Unavailable("not just now")]
)
def test_an_error_of_any_kind_ends_one_try_and_is_reported(watched: Watched, error: Exception) -> None:
    watched.errors = [error]
    watched.run(was_in=False)

    assert watched.tries == 2
    assert any(str(getattr(error, "message", error)) in line and "Retrying in 1 s" in line for line in watched.said)


@pytest.mark.parametrize("was_in", [True, False])
def test_only_what_the_command_itself_got_wrong_ends_it(watched: Watched, was_in: bool) -> None:
    watched.errors = [NotOnHead("another machine")]
    with nullcontext() if was_in else pytest.raises(NotOnHead):
        watched.run(was_in=was_in)

    assert watched.is_in is was_in


def test_a_controller_that_was_taken_out_on_purpose_stays_out(watched: Watched) -> None:
    watched.home.stopped.write_text('{"at": "now"}')
    watched.run()

    assert watched.tries == 0
    assert "removed from the cluster" in watched.said[-1]


def test_a_process_that_cannot_be_started_is_no_surprise(monkeypatch: pytest.MonkeyPatch) -> None:
    def popen(*args: object, **options: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(Unavailable, match="Cannot start a process"):
        ask_apart("distributed_grid.controller.join", {})


def test_an_order_that_cannot_be_read_is_reported(watched: Watched) -> None:
    assert restored_supervisor(watched.home) is None, "none was wanted"
    watched.home.supervisor.write_text("[" * 100_000)
    assert "could not be restarted" in (restored_supervisor(watched.home) or "")


def test_a_supervisor_is_replaced_though_what_it_was_starting_outlives_it(tmp_path: Path) -> None:
    home, others = GridHome(tmp_path / "home").create(), set(psutil.Process().children())
    try:
        assert start_supervisor(home, Order("127.0.0.1:1", {}, "", {})) is None
        (first,) = set(psutil.Process().children()) - others
        started = subprocess.Popen(["sleep", "600"], env=os.environ | {"GRID_SUPERVISES": str(home.path)})
        first.kill()
        first.wait(60)

        assert restored_supervisor(home) == "the supervisor was not running and has been restarted"
        assert len(set(psutil.Process().children()) - others) == 2
    finally:
        assert end_supervisors(home)
    started.wait(60)
    assert set(psutil.Process().children()) <= others
