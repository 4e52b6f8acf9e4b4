"""A controller whose files or port are not as they should be: it answers, tells what is wrong, and mends it later."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from builders import LENDS_ALL
from fake_cluster import FakeCluster
from fake_telemetry import FakeTelemetry
from faulty_files import FAULTS
from served_grid import WallClock

from distributed_grid.client import GridClient
from distributed_grid.client.connections import Call, Connections
from distributed_grid.config import GridConfig
from distributed_grid.controller.runtime import ControllerRuntime
from distributed_grid.controller.tokens import Tokens
from distributed_grid.errors import StoreBroken, Unavailable
from distributed_grid.model.listening import Listening
from distributed_grid.store.home import GridHome
from distributed_grid.store.writer_lock import WriterLock


async def leave() -> None:
    pass


Start = Callable[..., ControllerRuntime]


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster(WallClock())
    for name in ("a", "b"):
        cluster.add_node(name, cpus=4)
    return cluster


@pytest.fixture
def started(home: GridHome, cluster: FakeCluster) -> Iterator[Start]:
    """Starts controllers, and ends them with the test."""
    running: list[ControllerRuntime] = []

    def start(*, patient: bool = True, telemetry: FakeTelemetry | None = None) -> ControllerRuntime:
        names = [{"name": name} for name in ("a", "b")]
        runtime = ControllerRuntime(
            cluster,
            GridConfig.from_dict({"name": "lab", "resource_sharing": LENDS_ALL, "nodes": names}),
            home,
            ray_address="127.0.0.1:1",
            config_source="a test",
            leave=leave,
            listening=Listening(),
            patient=patient,
            telemetry=telemetry,
        )
        running.append(runtime)
        runtime.start()
        return runtime

    yield start
    for runtime in running:
        runtime.end()
    assert not [thread for thread in threading.enumerate() if thread.name == "grid-controller"]


def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def home(tmp_path: Path) -> GridHome:
    return GridHome(tmp_path / "home").create()


def problems(home: GridHome) -> str:
    with closing(GridClient(home, retry_s=10.0)) as client:
        return " ".join(client.boost_status()["problems"])


@pytest.mark.parametrize("name", ["tokens.json", "audit.jsonl", "resource_boosts.json", "sharing.json"])
def test_a_folder_in_the_place_of_a_file_is_reported_until_it_is_gone(
    home: GridHome, started: Start, name: str
) -> None:
    (home.path / name).mkdir()
    started()

    until(lambda: name in problems(home))
    (home.path / name).rmdir()
    until(lambda: not problems(home))


def test_where_the_controller_cannot_write_how_it_is_reached_it_does_so_later(home: GridHome, started: Start) -> None:
    home.controller.mkdir()
    runtime = started()

    assert runtime.where()["url"]
    home.controller.rmdir()
    until(home.controller.is_file)
    until(lambda: not problems(home))


def test_a_record_of_the_last_controller_that_is_nonsense_is_replaced(home: GridHome, started: Start) -> None:
    home.controller.write_bytes(b"[" * 100_000)
    started()

    assert not problems(home)


@pytest.mark.parametrize("port", [65536, 10**30, -1])
def test_a_port_of_the_last_controller_that_none_can_have_is_not_tried(
    home: GridHome, started: Start, port: int
) -> None:
    home.controller.write_text(json.dumps({"url": f"http://127.0.0.1:{port}"}))
    started()

    assert not problems(home)


def test_while_another_process_has_the_lock_the_status_says_so_and_changes_are_refused(
    home: GridHome, started: Start
) -> None:
    with WriterLock(home.lock):
        started()
        assert "already runs grid" in problems(home)
        with closing(GridClient(home, retry_s=1.0)) as client, pytest.raises(Unavailable, match="not started yet"):
            client.request_boost({"target_node": "a", "resource_type": "cpu", "amount": "1"})
    until(lambda: not problems(home))


def test_after_an_unforeseen_error_the_controller_answers_and_looks_at_its_files_again(
    home: GridHome, started: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    catch_up, failed = Tokens.catch_up, threading.Event()

    async def fail_once(self: Tokens) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("unforeseen")
        await catch_up(self)

    monkeypatch.setattr(Tokens, "catch_up", fail_once)
    started()
    assert failed.wait(30)
    home.controller.unlink()
    until(home.controller.is_file)
    assert not problems(home)


def test_a_first_start_ends_with_the_error(home: GridHome, started: Start) -> None:
    home.boosts.mkdir()
    with pytest.raises(StoreBroken, match="Is a directory"):
        started(patient=False)


def test_after_grid_was_stopped_no_probe_is_left(home: GridHome, started: Start) -> None:
    telemetry = FakeTelemetry()
    started(telemetry=telemetry)
    with closing(GridClient(home, retry_s=10.0)) as client:
        client.stop_controller(force=False, wait_s=5)

    assert telemetry.left


# -- every file, and everything that can be wrong with it ------------------------------------------------------

FILES: dict[str, Callable[[GridHome], Path]] = {
    "token": lambda home: home.token,
    "tokens": lambda home: home.tokens,
    "controller": lambda home: home.controller,
    "boosts": lambda home: home.boosts,
    "sharing": lambda home: home.sharing,
    "history": lambda home: home.history,
    "audit": lambda home: home.audit_log,
    "security": lambda home: home.path / "audit-security.jsonl",
    "stopped": lambda home: home.stopped,
    "reclaim": lambda home: home.reclaim,
    "home": lambda home: home.path,
}
READ = ("token", "tokens", "boosts", "sharing")
TOLD = {
    *((name, "folder") for name in (*READ, "controller", "audit")),
    *((name, fault) for name in READ for fault in ("huge", "pipe", "unreadable", "failing", "deep", "encoding")),
    *(("audit", fault) for fault in ("unreadable", "failing", "unwritable")),
}
"""Of a record that is only written over, little is told: its content does not matter."""


def answer(url: str, path: str, token: str = "") -> tuple[int, dict[str, Any]]:
    connections = Connections(url, {"Authorization": f"Bearer {token}"} if token else {})
    try:
        found = connections.ask(Call("GET", f"/api/v1{path}", answer_s=60.0))
        return found.status, found.json()
    finally:
        connections.close()


def each_file_and_fault() -> Iterator[Any]:
    """All pairs. Each takes seconds, so most of them are slow: the others have every file and every fault."""
    for number, name in enumerate(FILES):
        for other, fault in enumerate(FAULTS):
            is_quick = number % len(FAULTS) == other or other % len(FILES) == number
            yield pytest.param(name, fault, id=f"{name}-{fault}", marks=() if is_quick else pytest.mark.slow)


@pytest.mark.parametrize(("name", "fault"), list(each_file_and_fault()))
def test_whatever_is_wrong_with_a_file_the_controller_answers_ends_loans_and_heals(
    home: GridHome, cluster: FakeCluster, started: Start, name: str, fault: str
) -> None:
    telemetry = FakeTelemetry() if name == "history" else None
    first = started(telemetry=telemetry)
    with closing(GridClient(home, retry_s=10.0)) as client:
        anas = client.create_token({"name": "ana", "scopes": ["view"]})["token"]
        client.request_boost({"target_node": "b", "resource_type": "cpu", "amount": "2", "duration_seconds": 3})
        installations = home.token.read_text().strip()
    first.end()
    path = FILES[name](home)
    if name == "stopped":
        path.write_text("{}")
    elif name == "reclaim":
        path.mkdir()
    assert path.exists() and not cluster.is_at_base()

    with FAULTS[fault](path, lambda: time.sleep(0.5)):
        url = started(telemetry=telemetry).where()["url"]
        assert answer(url, "/health")[0] == 200
        if name != "home":  # where nothing is known, capacity stays for a minute
            until(cluster.is_at_base)  # the loan ended
        if (name, fault) in TOLD:
            good = anas if name == "token" else installations
            named = str(path) if name == "token" else path.name
            until(lambda: named in str(answer(url, "/boosts", good)[1]["problems"]))

    until(lambda: answer(url, "/boosts", installations)[0] == 200)
    until(cluster.is_at_base)
    until(lambda: not answer(url, "/boosts", installations)[1]["problems"])
    until(lambda: answer(url, "/boosts", anas)[0] == 200)
    until(lambda: json.loads(home.controller.read_bytes())["url"] == url)
    with closing(GridClient(home, retry_s=10.0)) as client:
        boost = client.request_boost({"target_node": "b", "resource_type": "cpu", "amount": "1"})
        assert boost["state"] == "active"
        client.create_token({"name": "bob", "scopes": ["view"]})
    assert answer(url, "/boosts", anas)[0] == 200
