"""Attacks on a real controller in a real cluster: by the order of what happens, not by how long it takes."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from disks import filled, small_disk
from live_grid import LiveGrid, until

from distributed_grid.client import GridClient
from distributed_grid.client.connections import Call, Connections, Unreachable
from distributed_grid.client.whereabouts import Whereabouts
from distributed_grid.errors import GridError

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

CONFIG = """
name: attacked
embedded: true
resource_sharing: {enabled: true, mode: share_and_offload, grace_seconds: 1, thresholds: {excess_threshold: 0}}
nodes:
- {name: head, role: master, cpu_count: 1, memory_gb: 2, resource_sharing: {can_share: false}}
- {name: lender, cpu_count: 9, memory_gb: 4}
"""
SLOW_CALLS = 7
MB = 2**20


@contextlib.contextmanager
def never_answers() -> Iterator[str]:
    """An address that takes connections and says nothing, so that a raylet that joins it waits."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []
        threading.Thread(target=_take, args=[server, taken], daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        for each in taken:
            each.close()


def _take(server: socket.socket, taken: list[socket.socket]) -> None:
    with contextlib.suppress(OSError):
        while True:
            taken.append(server.accept()[0])


@pytest.fixture
def eves_token(grid: LiveGrid) -> Iterator[str]:
    made = grid.client.create_token({"name": "eve", "scopes": ["view", "lend", "run"]})
    yield made["token"]
    grid.client.revoke_tokens(made["id"])


@pytest.fixture
def eve(grid: LiveGrid, eves_token: str) -> Iterator[GridClient]:
    """A user with a token of her own."""
    client = GridClient(grid.home, at=Whereabouts(grid.client.url(), eves_token), retry_s=0.0)
    yield client
    client.close()


def hosts() -> list[str]:
    """The actors that hold private raylets, as Ray knows them."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return [each["name"] for each in named if each["name"].startswith("grid-raylet-")]


def test_while_seven_slow_calls_last_boosts_are_granted_and_end_and_requests_are_answered(
    grid: LiveGrid, eve: GridClient
) -> None:
    asked = {"target_node": "head", "resource_type": "cpu", "amount": 1, "delivery": "reserve"}
    boosts = [eve.request_boost(asked)["boost_id"] for _ in range(SLOW_CALLS)]
    with never_answers() as nowhere, ThreadPoolExecutor(SLOW_CALLS) as callers:
        calls = [callers.submit(_join, eve, boost, nowhere) for boost in boosts]
        until(lambda: len(hosts()) >= 4, 60, "several private raylets are being started")

        short = grid.boost("head", "cpu", 1, duration_seconds=2, source_node="lender")
        assert short["state"] == "active"
        until(lambda: grid.state(short) == "released", 20, "the short boost has ended")
        assert grid.json("cluster", "status")["nodes"]
        still = [call for call in calls if not call.done()]

        assert still, "the slow calls were over before: this shows nothing"
        for boost in boosts:
            grid.release(boost, grace_seconds=0, wait_seconds=0)
        for call in calls:
            call.result(600)
    until(lambda: not hosts(), 60, "the private raylets are gone")


def _join(client: GridClient, boost: str, address: str) -> None:
    with contextlib.suppress(GridError):
        client.join_private_cluster(boost, address)


def test_long_fields_neither_grow_the_controller_nor_push_anything_out_of_the_log(
    grid: LiveGrid, eves_token: str
) -> None:
    first = grid.boost("head", "cpu", 1)
    process = psutil.Process(grid.controller_pid())
    before = process.memory_info().rss
    with contextlib.closing(Connections(grid.client.url(), {"Authorization": f"Bearer {eves_token}"})) as plain:
        for number in range(200):
            for length in (MB, 200_000, 200):
                body = {"target_node": f"{number}" + "x" * length, "resource_type": "cpu", "amount": 1}
                with contextlib.suppress(Unreachable):  # it does not wait for the end of what is too long
                    plain.ask(Call("POST", "/api/v1/boosts", body, answer_s=120))

    assert process.memory_info().rss - before < 100 * MB
    assert len(json.dumps(grid.client.events())) < 5 * MB
    entries = grid.client.audit_log(limit=10_000)
    events = [(entry["event"], entry["who"]) for entry in entries]
    assert first["boost_id"] in [entry["boost_id"] for entry in entries if entry["event"] == "granted"]
    assert "token_created" in [event for event, _ in events]
    assert 0 < events.count(("refused", "eve")) < 200
    assert sum(path.stat().st_size for path in grid.home.path.glob("audit*")) < MB


def test_a_full_disk_and_an_attacker_together_keep_no_boost_from_being_returned(tmp_path: Path) -> None:
    with small_disk(tmp_path / "home", "1m"):
        grid = LiveGrid(tmp_path, CONFIG)
        try:
            grid.start()
            kept = grid.boost("head", "cpu", 1, duration_seconds=600)
            made = grid.client.create_token({"name": "eve", "scopes": ["view", "lend"]})
            eve = GridClient(grid.home, at=Whereabouts(grid.client.url(), made["token"]), retry_s=0.0)
            with filled(grid.home.path):
                for number in range(100):
                    with contextlib.suppress(GridError):
                        eve.request_boost({"target_node": f"none-{number}", "resource_type": "cpu", "amount": 1})
                assert grid.release(kept)["state"] == "released"
                until(grid.is_at_base, 10, "all capacity home")
            until(lambda: not grid.json("cluster", "status")["problems"], 10, "what waited is written")
            events = _events(grid)
            assert {"token_created", "refused", "returned"} <= set(events)
            assert events.count("refused") <= 20
            eve.close()
        finally:
            grid.stop()


def _events(grid: LiveGrid) -> list[Any]:
    return [entry["event"] for entry in grid.client.audit_log(limit=10_000)]
