"""Boosts that are asked back, over HTTP, from the command line and from Python, against the real controller."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fake_cluster import FakeCluster
from hook_server import HookServer
from served_grid import NODES, ServedGrid, WallClock, asked_back

from distributed_grid.client import GridClient
from distributed_grid.engine.engine import Engine
from distributed_grid.model.lease_changes import IdleChanged
from distributed_grid.model.leases import Idle
from distributed_grid.orchestration.resource_boost_manager import (
    IdleNotice,
    ReclaimNotice,
    ResourceBoostManager,
    ResourceBoostRequest,
)
from distributed_grid.sdk.backend import Backend
from distributed_grid.sdk.boosts import LOOK_EVERY_S
from distributed_grid.store.home import GridHome

GRID = str(Path(sys.executable).with_name("grid"))
LONG_S = 600.0  # nothing is taken while a test runs
WANTED = {"target_node": "b", "resource_type": "cpu", "amount": 3, "source_node": "a", "grace_seconds": LONG_S}


def owner(grid: ServedGrid) -> str:
    return grid.home.token.read_text().strip()


def boost(grid: ServedGrid, **others: Any) -> str:
    return str(grid.client.request_boost(WANTED | others)["boost_id"])


# -- the API -----------------------------------------------------------------------------------------------


def test_a_boost_shows_its_team_cause_notice_and_checkpoint(fresh: ServedGrid) -> None:
    boost_id = boost(fresh, reclaim_url="watch:")
    before = fresh.client.boost(boost_id)
    assert (before["team"], before["cause"], before["notice"], before["checkpointed_at"]) == (
        "default",
        "asked",
        None,
        None,
    )

    fresh.reclaim(boost_id, 2)
    fresh.client.checkpointed(boost_id)

    shown = fresh.client.boost(boost_id)
    assert (shown["notice"]["amount"], shown["notice"]["reason"]) == (2, "ana needs it")
    assert shown["notice"]["asked_at"] < shown["notice"]["deadline"]
    assert shown["checkpointed_at"]
    assert fresh.client.boost_status()["boosts"] == [shown]


def test_a_part_is_released_and_the_answer_is_about_that_part(fresh: ServedGrid) -> None:
    boost_id = boost(fresh)

    part = fresh.client.release_boost(boost_id, {"amount": 1})

    assert (part["amount"], part["state"]) == (1, "released")
    assert part["boost_id"] != boost_id
    assert fresh.client.boost(boost_id)["amount"] == 2


def test_a_client_that_lost_the_answer_gives_up_a_part_only_once(fresh: ServedGrid) -> None:
    boost_id = boost(fresh)
    answers = [
        fresh.ask(
            "POST",
            f"/boosts/{boost_id}/release",
            {"amount": 1},
            token=owner(fresh),
            Idempotency_Key="k",
        )
        for _ in range(3)
    ]
    assert [status for status, _ in answers] == [200] * 3
    assert len({answer["boost_id"] for _, answer in answers}) == 1
    assert fresh.client.boost(boost_id)["amount"] == 2


@pytest.mark.parametrize(
    ("amount", "code"), [(0, "INVALID_AMOUNT"), (-1, "INVALID_AMOUNT"), ("x", "INVALID_AMOUNT"), (9, "INVALID_AMOUNT")]
)
def test_a_part_that_makes_no_sense_is_refused(served: ServedGrid, amount: object, code: str) -> None:
    boost_id = boost(served)
    try:
        status, answer = served.ask("POST", f"/boosts/{boost_id}/release", {"amount": amount}, token=owner(served))
        assert (status, answer["error"]["code"]) == (422, code)
        assert served.client.boost(boost_id)["amount"] == 3
    finally:
        served.client.release_boost(boost_id)


def test_a_url_elsewhere_is_refused_before_anything_is_lent(served: ServedGrid) -> None:
    status, answer = served.ask(
        "POST", "/boosts", WANTED | {"reclaim_url": "http://169.254.169.254/"}, token=owner(served)
    )
    assert (status, answer["error"]["code"]) == (422, "INVALID_REQUEST")
    assert not served.client.boost_status()["boosts"]


# -- the command -------------------------------------------------------------------------------------------


def type_it(grid: ServedGrid, *words: str) -> str:
    done = subprocess.run(
        [GRID, *words],
        env={**os.environ, "GRID_HOME": str(grid.home.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_asks_to_be_told_gives_up_a_part_and_says_what_is_saved(fresh: ServedGrid) -> None:
    words = ["boost", "request", "b", "cpu", "3", "--source", "a", "--grace", "600"]
    boost_id = json.loads(type_it(fresh, *words, "--reclaim-watch", "--json"))["boost_id"]
    fresh.reclaim(boost_id, 2)

    assert "reclaim of 2 CPUs (preempted by ana's request r1e9f00d" in type_it(fresh, "boost", "status")
    assert "its work is saved" in type_it(fresh, "boost", "checkpointed", boost_id[:8])
    assert "a has its 2 CPUs back" in type_it(fresh, "boost", "release", boost_id[:8], "--amount", "2")
    assert fresh.client.boost(boost_id)["notice"] is None

    with HookServer({"release": True}) as holder:
        other = json.loads(type_it(fresh, *words[:4], "1", "--grace", "600", "--reclaim-url", holder.url, "--json"))
        fresh.reclaim(other["boost_id"])
        asyncio.run(until(lambda: holder.asked and other["boost_id"] not in str(fresh.client.boost_status())))


# -- Python ------------------------------------------------------------------------------------------------


async def until(holds: Callable[[], object]) -> None:
    while not holds():  # noqa: ASYNC110 - it has to be asked
        await asyncio.sleep(0.02)


async def with_callback(
    manager: ResourceBoostManager,
    callback: Callable[[ReclaimNotice], Any],
    ask: Callable[[str], Awaitable[object]],
) -> str:
    request = ResourceBoostRequest("b", "cpu", 3, preferred_source="a", grace_seconds=LONG_S, on_reclaim=callback)
    boost_id = await manager.request_boost(request)
    assert boost_id is not None
    await ask(boost_id)
    return boost_id


async def amount_of(manager: ResourceBoostManager, boost_id: str) -> float:
    found = [boost.amount for boost in await manager.get_active_boosts() if boost.boost_id == boost_id]
    return found[0] if found else 0


def asks(grid: ServedGrid, amount: float) -> Callable[[str], Awaitable[object]]:
    return lambda boost_id: asyncio.to_thread(grid.reclaim, boost_id, amount)


async def settles(manager: ResourceBoostManager, boost_id: str, amount: float) -> None:
    while await amount_of(manager, boost_id) != amount:  # noqa: ASYNC110 - it has to be asked
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(("given", "left"), [(2, 1), (1.5, 1.5), (3, 0), (100, 0), (None, 0), (True, 0)])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_callback_gives_up_what_it_returns(
    fresh: ServedGrid, monkeypatch: pytest.MonkeyPatch, given: object, left: float, is_async: bool
) -> None:
    monkeypatch.setenv("GRID_HOME", str(fresh.home.path))
    heard: list[ReclaimNotice] = []

    def plain(notice: ReclaimNotice) -> object:
        heard.append(notice)
        return given

    async def awaited(notice: ReclaimNotice) -> object:
        return plain(notice)

    async def scene() -> None:
        async with ResourceBoostManager() as manager:
            boost_id = await with_callback(manager, awaited if is_async else plain, asks(fresh, 2))
            await settles(manager, boost_id, left)
            (notice,) = heard
            assert (notice.boost_id, notice.resource_type, notice.amount) == (boost_id, "cpu", 2)
            assert notice.reason == "ana needs it"
            assert notice.deadline.tzinfo is not None

    asyncio.run(asyncio.wait_for(scene(), 60))


async def is_idle(grid: ServedGrid, boost_id: str, since: datetime | None) -> None:
    """It has been idle since then, or is in use."""

    async def change() -> None:
        ledger, measures = grid.engine.parts.ledger, grid.engine.idle_leases
        if measures is not None:
            await measures.stop()  # which knows better
        ledger.apply(ledger.find(boost_id), IdleChanged(None if since is None else Idle(since, yields=True)))

    await asyncio.to_thread(grid.in_its_loop, change())


MORNING = datetime(2025, 6, 1, 9, 0, tzinfo=UTC)


@pytest.mark.parametrize(("given", "left"), [(2, 1), (True, 0), (100, 0), (None, 3), (False, 3), (0, 3), (-1, 3)])
@pytest.mark.parametrize("is_async", [False, True])
def test_an_idle_callback_is_called_once_for_each_idle_time_and_gives_up_what_it_returns(
    fresh: ServedGrid, monkeypatch: pytest.MonkeyPatch, given: Any, left: float, is_async: bool
) -> None:
    monkeypatch.setenv("GRID_HOME", str(fresh.home.path))
    heard: list[IdleNotice] = []

    def plain(idle: IdleNotice) -> Any:
        heard.append(idle)
        return given if len(heard) == 2 else None

    async def awaited(idle: IdleNotice) -> Any:
        return plain(idle)

    async def scene() -> None:
        async with ResourceBoostManager() as manager:
            request = ResourceBoostRequest("b", "cpu", 3, preferred_source="a", on_idle=awaited if is_async else plain)
            boost_id = await manager.request_boost(request)
            assert boost_id is not None
            await is_idle(fresh, boost_id, MORNING)
            await until(lambda: heard)
            assert heard == [IdleNotice(boost_id, "cpu", 3, MORNING)]
            await is_idle(fresh, boost_id, MORNING + timedelta(hours=1))
            await until(lambda: len(heard) == 2)
            if left == 3:  # called again, it is through with the time before
                await is_idle(fresh, boost_id, MORNING + timedelta(hours=2))
                await until(lambda: len(heard) == 3)
            await settles(manager, boost_id, left)

    asyncio.run(asyncio.wait_for(scene(), 60))


def failing(notice: ReclaimNotice) -> None:
    raise RuntimeError("not now")


@pytest.mark.parametrize("callback", [lambda notice: False, lambda notice: 0, failing])
def test_a_callback_that_keeps_it_or_fails_changes_nothing_until_the_deadline(
    fresh: ServedGrid, monkeypatch: pytest.MonkeyPatch, callback: Callable[[ReclaimNotice], Any]
) -> None:
    monkeypatch.setenv("GRID_HOME", str(fresh.home.path))
    calls: list[ReclaimNotice] = []

    def counted(notice: ReclaimNotice) -> Any:
        calls.append(notice)
        return callback(notice)

    async def scene() -> None:
        async with ResourceBoostManager() as manager:
            boost_id = await with_callback(manager, counted, asks(fresh, 2))
            await until(lambda: calls)
            # Asked for more, it is called again: so the first call and its answer are through.
            await asks(fresh, 3)(boost_id)
            await until(lambda: len(calls) == 2)
            shown = await manager.get_boost(boost_id)
            assert (shown.amount, shown.is_active) == (3, True)
            assert shown.notice is not None
            assert [notice.amount for notice in calls] == [2, 3]

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_python_says_what_is_saved_and_gives_up_a_part_by_itself(
    fresh: ServedGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRID_HOME", str(fresh.home.path))

    async def scene() -> None:
        async with ResourceBoostManager() as manager:
            boost_id = await manager.request_boost(ResourceBoostRequest("b", "cpu", 3, preferred_source="a"))
            assert boost_id is not None
            assert (await manager.checkpointed(boost_id)).checkpointed_at is not None
            assert await manager.release_boost(boost_id, 1)
            assert await amount_of(manager, boost_id) == 2

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_a_callback_is_asked_where_the_program_itself_is_the_controller(fresh: ServedGrid, tmp_path: Path) -> None:
    """Library mode: the same engine, in the caller's own event loop, which a slow callback must not block."""
    cluster = FakeCluster(WallClock())
    for name, base in NODES.items():
        cluster.add_node(name, **base)

    async def scene() -> None:
        engine = Engine(cluster, fresh.config, GridHome(tmp_path / "library"))
        await engine.start()
        backend = Backend.of(engine)
        manager = ResourceBoostManager(backend=backend)
        boost_id = await with_callback(
            manager, lambda notice: notice.amount, lambda boost_id: asked_back(engine, boost_id, 2)
        )
        await settles(manager, boost_id, 1)
        await manager.close()
        await backend.close()

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_no_program_looks_for_notices_where_no_boost_has_a_callback(fresh: ServedGrid) -> None:
    looks: list[float] = []

    class Counting(Backend):
        """Notes when it looks, as a program with callbacks does from time to time."""

        async def ask(self, call: Callable[..., Any], *args: Any, **more: Any) -> Any:
            if call is GridClient.boost_status:
                looks.append(time.monotonic())
            return await super().ask(call, *args, **more)

    async def looks_within(seconds: float) -> int:
        before = len(looks)
        await asyncio.sleep(seconds)
        return len(looks) - before

    async def scene() -> None:
        backend = Counting(GridClient(fresh.home))
        async with ResourceBoostManager(backend=backend) as manager:
            assert await manager.request_boost(ResourceBoostRequest("b", "cpu", 1, preferred_source="a"))
            assert await looks_within(3 * LOOK_EVERY_S) == 0
            boost_id = await with_callback(manager, lambda notice: None, asks(fresh, 3))
            assert await looks_within(3 * LOOK_EVERY_S)
            await settles(manager, boost_id, 0)
            while await looks_within(3 * LOOK_EVERY_S):
                pass  # the watch ends by itself
        await backend.close()

    asyncio.run(asyncio.wait_for(scene(), 60))
