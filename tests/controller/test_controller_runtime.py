"""A controller whose files or port are not as they should be: it answers, tells what is wrong, and mends it later."""

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from builders import LENDS_ALL
from fake_cluster import FakeCluster

from distributed_grid.client import GridClient
from distributed_grid.config import GridConfig
from distributed_grid.controller.runtime import ControllerRuntime
from distributed_grid.errors import StoreBroken, Unavailable
from distributed_grid.model.listening import Listening
from distributed_grid.store.home import GridHome
from distributed_grid.store.writer_lock import WriterLock


async def leave() -> None:
    pass


def started(home: GridHome, *, patient: bool = True, port: int = 0) -> ControllerRuntime:
    cluster = FakeCluster()
    cluster.add_node("a", cpus=4)
    config = GridConfig.from_dict({"name": "lab", "resource_sharing": LENDS_ALL, "nodes": [{"name": "a"}]})
    runtime = ControllerRuntime(
        cluster,
        config,
        home,
        ray_address="127.0.0.1:1",
        config_source="a test",
        leave=leave,
        listening=Listening(port=port),
        patient=patient,
    )
    runtime.start()
    return runtime


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
def test_a_folder_in_the_place_of_a_file_is_told_until_it_is_gone(home: GridHome, name: str) -> None:
    (home.path / name).mkdir()
    started(home)

    until(lambda: name in problems(home))
    (home.path / name).rmdir()
    until(lambda: not problems(home))


def test_where_the_controller_cannot_write_how_it_is_reached_it_does_so_later(home: GridHome) -> None:
    home.controller.mkdir()
    runtime = started(home)

    assert runtime.where()["url"]
    home.controller.rmdir()
    until(home.controller.is_file)
    until(lambda: not problems(home))


def test_a_record_of_the_last_controller_that_is_nonsense_is_replaced(home: GridHome) -> None:
    home.controller.write_bytes(b"[" * 100_000)
    started(home)

    assert not problems(home)


def test_while_another_process_has_the_lock_the_status_says_so_and_changes_are_refused(home: GridHome) -> None:
    with WriterLock(home.lock):
        started(home)
        assert "already runs grid" in problems(home)
        with closing(GridClient(home, retry_s=1.0)) as client, pytest.raises(Unavailable, match="not started yet"):
            client.request_boost({"target_node": "a", "resource_type": "cpu", "amount": "1"})
    until(lambda: not problems(home))


def test_a_first_start_ends_with_the_error(home: GridHome) -> None:
    home.boosts.mkdir()
    with pytest.raises(StoreBroken, match="Is a directory"):
        started(home, patient=False)
