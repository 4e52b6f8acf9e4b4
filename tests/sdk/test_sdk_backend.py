"""An engine in the caller's process answers the client's calls, as a controller does."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fake_cluster import FakeCluster
from served_grid import NODES, ServedGrid, WallClock

from distributed_grid.client import GridClient
from distributed_grid.engine.engine import Engine
from distributed_grid.errors import BoostNotFound, InvalidAmount, NoCapacity, TargetNotFound, Unavailable
from distributed_grid.model.leases import Purpose
from distributed_grid.sdk.backend import Backend
from distributed_grid.sdk.boosts import ResourceBoostManager, ResourceBoostRequest
from distributed_grid.store.home import GridHome

Scene = Callable[[Backend], Awaitable[None]]


@pytest.fixture
def within(fresh: ServedGrid, tmp_path: Path) -> Callable[[Scene], None]:
    """Plays a scene in an event loop that also runs an engine."""

    def play(scene: Scene) -> None:
        async def life() -> None:
            cluster = FakeCluster(WallClock())
            for name, base in NODES.items():
                cluster.add_node(name, **base)
            engine = Engine(cluster, fresh.config, GridHome(tmp_path / "library"))
            await engine.start()
            backend = Backend.of(engine)
            try:
                await scene(backend)
            finally:
                await engine.give_all_back(force=True)
                await backend.close()

        asyncio.run(asyncio.wait_for(life(), 120))

    return play


def test_a_boost_from_its_request_to_its_release(within: Callable[[Scene], None]) -> None:
    async def scene(backend: Backend) -> None:
        async with ResourceBoostManager(backend=backend) as manager:
            boost_id = await manager.request_boost(ResourceBoostRequest("b", "cpu", 3, preferred_source="a"))
            assert boost_id is not None
            assert [(b.source_node, b.amount) for b in await manager.get_active_boosts()] == [("a", 3)]
            assert (await backend.ask(GridClient.cluster_status))["controller"]["state"] == "running"
            assert await manager.release_boost(boost_id)
            assert not await manager.get_active_boosts()

    within(scene)


def test_leases_of_programs_are_not_active_boosts(within: Callable[[Scene], None]) -> None:
    async def scene(backend: Backend) -> None:
        async with ResourceBoostManager(backend=backend) as manager:
            boost_id = await manager.request_boost(ResourceBoostRequest("b", "cpu", 1))
            for purpose in (each for each in Purpose if each is not Purpose.BOOST):
                assert await manager.request_boost(ResourceBoostRequest("b", "cpu", 1, purpose=purpose))
            assert [b.boost_id for b in await manager.get_active_boosts()] == [boost_id]
            assert [b.boost_id for b in await manager.get_active_boosts("b")] == [boost_id]
            assert not await manager.get_active_boosts("a")
            assert (await manager.get_boost_status())["total_active"] == 1
            with pytest.raises(TargetNotFound):
                await manager.get_active_boosts("nowhere")

    within(scene)


def test_an_error_arrives_as_it_was_raised(within: Callable[[Scene], None]) -> None:
    async def scene(backend: Backend) -> None:
        with pytest.raises(NoCapacity) as refused:
            await backend.ask(
                GridClient.request_boost, {"target_node": "a", "resource_type": "cpu", "amount": 99, "wait_seconds": 0}
            )
        assert any(line.startswith("b: ") for line in refused.value.because)
        with pytest.raises(InvalidAmount):
            await backend.ask(GridClient.request_boost, {"target_node": "a", "resource_type": "cpu", "amount": -1})
        with pytest.raises(BoostNotFound):
            await backend.ask(GridClient.boost, "no/such id")
        with pytest.raises(Unavailable):  # only a controller reaches the processes of every node
            await backend.ask(GridClient.offload_candidates)

    within(scene)


def test_requests_that_wait_keep_no_other_call_waiting(within: Callable[[Scene], None]) -> None:
    async def scene(backend: Backend) -> None:
        held = await backend.ask(
            GridClient.request_boost, {"target_node": "a", "resource_type": "cpu", "amount": 8, "source_node": "b"}
        )
        wanted = {"target_node": "a", "resource_type": "cpu", "amount": 0.25, "source_node": "b", "wait_seconds": 60}
        waiting = [asyncio.create_task(backend.ask(GridClient.request_boost, wanted)) for _ in range(30)]  # type: ignore[arg-type]
        while len((await backend.ask(GridClient.queue))["requests"]) < len(waiting):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await backend.ask(GridClient.release_boost, held["boost_id"])
        assert {boost["source_node"] for boost in await asyncio.gather(*waiting)} == {"b"}

    within(scene)
