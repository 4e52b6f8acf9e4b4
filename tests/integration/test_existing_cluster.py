"""grid in a Ray cluster that other people run: put in, used, taken out; nothing of it is left."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from live_grid import LiveGrid, is_pending, until, where_am_i

from distributed_grid.cluster import NodeSpec, local
from distributed_grid.cluster.supervise import end_supervisors
from distributed_grid.errors import AlreadyRunning
from distributed_grid.orchestration.resource_boost_manager import ResourceBoostManager, ResourceBoostRequest
from distributed_grid.orchestration.resource_boost_persistence import ResourceBoostPersistence
from distributed_grid.orchestration.resource_sharing_manager import AllocationPriority, ResourceType
from distributed_grid.store.home import GridHome

pytestmark = pytest.mark.cluster

HEAD = NodeSpec(name="head", cpus=0, gpus=0, memory_bytes=2**30, resources={}, is_head=True)
WORKER = NodeSpec(
    name="worker", cpus=4, gpus=0, memory_bytes=2**31, resources={"accelerator_type:H200": 1, "tape": 2}, is_head=False
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGrid]:
    """A Ray cluster without grid: a head that was started with no CPUs, and a worker."""
    folder = tmp_path_factory.mktemp("plain")
    cluster_home = GridHome(folder / "cluster").create()
    record = local.start(cluster_home, "plain", [HEAD, WORKER], progress=lambda _: None)
    live = LiveGrid(folder)
    try:
        live.connect_to(record.ray_address)
        yield live
    finally:
        end_supervisors(live.home)
        live.client.close()
        ray.shutdown()
        local.stop(cluster_home, progress=lambda _: None)


@pytest.fixture
def inside(plain: LiveGrid) -> Iterator[LiveGrid]:
    """grid in it, without a configuration file. It stays there for the next test that wants it."""
    if not plain.home.controller.exists():
        started = plain.cli("start", "--address", plain.address, "--json")
        assert started.returncode == 0, started.stderr
    yield plain
    if plain.home.controller.exists():
        plain.release_everything()


@pytest.fixture
def outside(plain: LiveGrid) -> LiveGrid:
    """The cluster without grid in it."""
    if plain.home.controller.exists():
        stopped = plain.cli("stop", "--force")
        assert stopped.returncode == 0, stopped.stderr
    return plain


def test_nodes_are_discovered_and_a_head_without_cpus_can_be_boosted(inside: LiveGrid) -> None:
    assert {n["name"] for n in inside.json("cluster", "status")["nodes"]} == {"head", "worker"}
    task = where_am_i.options(num_cpus=2, label_selector={"grid/name": "head"}).remote()
    assert is_pending(task, 0.2)

    inside.boost("head", "cpu", 2)

    assert ray.get(task, timeout=60) == "head"
    inside.total_is("head", "CPU", 2.0)
    inside.total_is("worker", "CPU", 2.0)


def test_what_says_what_a_node_is_is_never_lent_shown_or_suggested(inside: LiveGrid) -> None:
    described = ("accelerator_type:H200", f"node:{inside.address.rpartition(':')[0]}", "node:__internal_head__")
    for kind in described:
        for command in (("boost", "request", "head", kind, "1"), ("plan", "head", kind, "1")):
            refused = inside.cli(*command)
            assert refused.returncode == 2, refused.stdout
            assert "describes a node" in refused.stderr

    shown = inside.cli("cluster", "status").stdout + inside.cli("node", "ls").stdout
    status = json.dumps([inside.json("cluster", "status"), inside.json("node", "show", "worker")])
    assert "tape" in shown
    assert '"tape"' in status
    for text in (shown, status):
        assert not [kind for kind in described if kind in text]
    assert ray.available_resources()["accelerator_type:H200"] == 1.0


def test_a_second_controller_is_refused(inside: LiveGrid, tmp_path: Path) -> None:
    again = inside.cli("start", "--address", inside.address, env={"GRID_HOME": str(tmp_path)})

    assert again.returncode == 5
    assert "grid is already in this cluster" in again.stderr


def test_a_controller_that_ray_has_given_up_is_put_back_by_what_grid_start_left_in_the_background(
    inside: LiveGrid,
) -> None:
    boost = inside.boost("head", "cpu", 1)
    pid = inside.controller_pid()
    assert len(inside.supervisors()) == 1

    ray.kill(ray.get_actor("grid-controller", namespace="grid"), no_restart=True)

    until(lambda: inside.controller_pid() != pid, 90, "another controller")
    assert inside.state(boost) == "active"
    log = inside.home.logs / "supervisor.log"
    until(lambda: "in the cluster again" in log.read_text(), 30, "the supervisor tells what it did")
    assert inside.cli("stop").returncode == 0
    until(lambda: not inside.supervisors(), 20, "no supervisor")


def test_a_supervisor_that_died_is_replaced_by_the_next_start(inside: LiveGrid) -> None:
    (first,) = inside.supervisors()
    first.kill()
    until(lambda: not inside.supervisors(), 20, "no supervisor")

    again = inside.cli("start", "--address", inside.address)

    assert again.returncode == 5
    assert "the supervisor was not running and has been restarted" in again.stderr
    assert len(inside.supervisors()) == 1
    assert inside.supervisors() != [first]


def test_without_a_supervisor_if_none_is_wanted(outside: LiveGrid) -> None:
    started = outside.cli("start", "--address", outside.address, "--no-supervise")
    assert started.returncode == 0, started.stderr
    try:
        assert not outside.supervisors()
    finally:
        assert outside.cli("stop").returncode == 0


# -- the Python classes, where a controller runs -------------------------------------------------------------


def boost_request(**changes: object) -> ResourceBoostRequest:
    fields = {"target_node": "head", "resource_type": ResourceType.CPU, "amount": 2.0} | changes
    return ResourceBoostRequest(**fields)  # type: ignore[arg-type]


async def use(manager: ResourceBoostManager, live: LiveGrid) -> None:
    """What a Python user does, with either backend."""
    async with manager:
        boost_id = await manager.request_boost(boost_request(priority=AllocationPriority.HIGH, duration_seconds=60))
        assert boost_id is not None
        await asyncio.to_thread(live.total_is, "head", "CPU", 2.0)
        assert [b.boost_id for b in await manager.get_active_boosts("head")] == [boost_id]
        assert await manager.get_active_boosts("worker") == []
        assert (await manager.get_boost_status())["total_active"] == 1
        assert await manager.request_boost(boost_request(amount=50)) is None
        assert "worker" in "".join(manager.last_refusal.because)
        assert await manager.request_boost(boost_request(resource_type="memory", amount=0.5, priority="low"))
        assert await manager.release_boost(boost_id) is True
        assert await manager.release_boost("0000") is False
        for boost in await manager.get_active_boosts():
            await manager.release_boost(boost.boost_id)
    await asyncio.to_thread(until, live.is_at_base, 10)


def test_the_manager_is_the_controllers_client_where_one_runs(
    inside: LiveGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRID_HOME", str(inside.home.path))

    asyncio.run(use(ResourceBoostManager(), inside))


def test_auto_renew_in_python_ends_with_its_process(inside: LiveGrid) -> None:
    program = (
        "import asyncio\n"
        "from distributed_grid.orchestration.resource_boost_manager import *\n"
        "async def main():\n"
        "    manager = ResourceBoostManager()\n"
        "    print(await manager.request_boost(ResourceBoostRequest('head', 'cpu', 1, duration_seconds=4,"
        " auto_renew=True)), flush=True)\n"
        "    await asyncio.sleep(100)\n"
        "asyncio.run(main())\n"
    )
    keeper = subprocess.Popen([sys.executable, "-c", program], env=inside.env, stdout=subprocess.PIPE, text=True)
    try:
        boost = {"boost_id": keeper.stdout.readline().strip()}
        first = inside.shown(boost)["expires_at"]
        until(lambda: inside.shown(boost)["expires_at"] > first, 10, "renewed")
    finally:
        os.kill(keeper.pid, 9)
        keeper.wait()
    until(lambda: inside.state(boost) == "released", 15)


def test_json_is_the_same_from_python_and_the_command(inside: LiveGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRID_HOME", str(inside.home.path))
    inside.boost("head", "cpu", 1)

    async def status() -> dict:
        async with ResourceBoostManager() as manager:
            return await manager.get_boost_status()

    assert json.loads(json.dumps(asyncio.run(status()))) == inside.json("boost", "status")


# -- taken out -----------------------------------------------------------------------------------------------


def test_stop_gives_everything_back_and_leaves_nothing(inside: LiveGrid) -> None:
    inside.boost("head", "cpu", 2)
    inside.boost("head", "cpu", 1, delivery="reserve")

    stopped = inside.cli("stop")

    assert stopped.returncode == 0, stopped.stderr
    assert "boosts returned: 2" in stopped.stdout
    until(inside.is_at_base, 10)
    until(lambda: not _controllers(), 10, "the controller is out of the cluster")
    assert "grid:lent:cpu" not in inside.totals("worker")
    assert inside.cli("boost", "status").returncode == 5


def test_stop_refuses_to_end_work_unless_forced(inside: LiveGrid, tmp_path: Path) -> None:
    from live_grid import hold_until

    inside.boost("head", "cpu", 2)
    work = hold_until.options(num_cpus=2, label_selector={"grid/name": "head"}, max_retries=0).remote(
        str(tmp_path / "never")
    )
    until(lambda: inside.free("head").get("CPU", 0.0) == 0.0, 20)

    refused = inside.cli("stop", "--wait", "1")

    assert refused.returncode == 4
    assert "grid stop --force" in refused.stderr
    forced = inside.cli("stop", "--force")
    assert forced.returncode == 0, forced.stderr
    until(inside.is_at_base, 10)
    with pytest.raises(ray.exceptions.RayError):
        ray.get(work, timeout=60)


def _controllers() -> list[str]:
    from ray.util import list_named_actors

    return [actor["name"] for actor in list_named_actors(all_namespaces=True) if actor["name"] == "grid-controller"]


# -- without a controller, or with another configuration -----------------------------------------------------


def test_without_a_controller_the_manager_takes_its_place(
    outside: LiveGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRID_HOME", str(tmp_path / "home"))

    asyncio.run(use(ResourceBoostManager(), outside))


def test_there_is_never_a_second_writer(outside: LiveGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRID_HOME", str(tmp_path / "home"))

    async def two() -> None:
        async with ResourceBoostManager():
            with pytest.raises(AlreadyRunning):
                await ResourceBoostManager().initialize()

    asyncio.run(two())


def test_boosts_of_a_manager_survive_it_and_expire_under_the_next(
    outside: LiveGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRID_HOME", str(tmp_path / "home"))

    async def first() -> str:
        async with ResourceBoostManager() as manager:
            return await manager.request_boost(boost_request(duration_seconds=2)) or ""

    async def second() -> None:
        async with ResourceBoostManager() as manager:
            while await manager.get_active_boosts():  # noqa: ASYNC110 - as a user of the class would
                await asyncio.sleep(0.05)
            await asyncio.to_thread(until, outside.is_at_base, 10)

    boost_id = asyncio.run(first())
    assert [b["boost_id"] for b in ResourceBoostPersistence().load_boosts()] == [boost_id]
    outside.total_is("head", "CPU", 2.0)
    asyncio.run(second())


def test_configured_names_limits_and_a_switched_off_sharing(outside: LiveGrid, tmp_path: Path) -> None:
    config = tmp_path / "cluster.yaml"
    config.write_text(
        "name: named\nresource_sharing: {enabled: false}\n"
        "nodes: [{name: head, role: master}, {name: worker, resource_sharing: {max_share_cpu: 1}}, {name: absent}]\n"
    )
    started = outside.cli("start", "--address", outside.address, "--config", str(config))
    assert started.returncode == 0, started.stderr
    try:
        refused, planned = (outside.cli(*command, "head", "cpu", "1") for command in (("boost", "request"), ("plan",)))
        assert refused.returncode == planned.returncode == 4
        assert "Resource sharing not enabled" in refused.stderr
        assert planned.stderr == refused.stderr, "the plan is refused where the request would be, in the same words"
        nodes = {n["name"]: n["alive"] for n in outside.json("cluster", "status")["nodes"]}
        assert nodes == {"head": True, "worker": True, "absent": False}
    finally:
        assert outside.cli("stop").returncode == 0
