"""Probes on a real cluster, without a controller: what counts as a node's use, and that they are there.

With one: test_monitoring.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import ray
from live_grid import GB, LiveGrid, hold_until, on, until, where_am_i
from ray._private import state as ray_state

from distributed_grid.cluster import NodeSpec, local
from distributed_grid.config import GridConfig
from distributed_grid.execution.actors import NAMESPACE, names
from distributed_grid.execution.drain import LATCH
from distributed_grid.execution.processes import RayProcesses
from distributed_grid.execution.ray_cluster import RayCluster
from distributed_grid.model.snapshots import Reading
from distributed_grid.monitoring.probes import PREFIX, Probes, Unread
from distributed_grid.monitoring.resource_metrics import ResourceMetricsCollector
from distributed_grid.orchestration.resource_sharing_orchestrator import ResourceSharingOrchestrator

pytestmark = pytest.mark.cluster

NODES = [
    NodeSpec(name=name, cpus=2, gpus=gpus, memory_bytes=2 * GB, resources={}, is_head=name == "head")
    for name, gpus in (("head", 0), ("one", 1), ("two", 0))
]
CONFIGURED = GridConfig.from_dict(
    {"name": "probe-test", "embedded": True, "resource_sharing": {"monitoring_interval_seconds": 1}}
)
MB = 10**6


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGrid]:
    """A cluster without a controller, which would have probes of its own."""
    live = LiveGrid(tmp_path_factory.mktemp("grid"))
    try:
        live.connect_to(local.start(live.home, "probe-test", NODES, progress=lambda _: None).ray_address)
        yield live
    finally:
        live.stop()


@pytest.fixture(scope="module")
def cluster(bare: LiveGrid) -> RayCluster:
    return RayCluster.connected()


@pytest.fixture
def probes(bare: LiveGrid, cluster: RayCluster) -> Iterator[Probes]:
    probes = Probes()
    probes.keep(cluster.raylets())
    yield probes
    assert probes.stop() == 0


def readings(bare: LiveGrid, probes: Probes) -> dict[str, Reading]:
    """Of the nodes whose probes answer."""
    names = {node_id: name for name, node_id in bare.live_nodes().items()}
    found = probes.read_all(timeout_s=5.0)
    return {names[node_id]: said for node_id, said in found.items() if isinstance(said, Reading) and node_id in names}


def all_read(bare: LiveGrid, probes: Probes) -> dict[str, Reading]:
    return until(
        lambda: found if len(found := readings(bare, probes)) == len(bare.live_nodes()) else None, 60, "all answer"
    )


def named_probes() -> set[str]:
    return set(names(PREFIX))


@ray.remote(num_cpus=1, max_retries=0)
def fork_and_hold_until(path: str, size: int, copies: int) -> None:
    held = b"x" * size
    children = []
    for _ in range(copies):
        if (child := os.fork()) == 0:
            while held and not Path(path).exists():
                time.sleep(0.02)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def test_what_is_done_on_nodes_for_offloads_is_done_in_their_probes(bare: LiveGrid, probes: Probes) -> None:
    all_read(bare, probes)
    pids = probes.pids(timeout_s=60.0)
    assert len(pids) == len(bare.live_nodes())
    ran_in: dict[str, int] = {}

    def on_node(node_id: str, function: Callable[..., object], *args: object) -> ray.ObjectRef:
        def with_pid() -> tuple[int, object]:
            return os.getpid(), function(*args)

        ran_in[node_id], answer = ray.get(probes.on(node_id, with_pid), timeout=60)
        return ray.put(answer)

    until(lambda: (found := ray_workers()) == (time.sleep(2.0) or ray_workers()) and found, 60, "no worker on its way")
    before = ray_workers()
    processes = RayProcesses(on_node)
    assert processes.scan(dict.fromkeys(pids, True)).keys() == pids.keys()
    assert ran_in == pids
    assert processes.look_at([*pids], os.getpid()).keys() == pids.keys()
    assert processes.find_on([*pids], ["/bin/sh"]).keys() == pids.keys()
    assert ran_in == pids

    assert ray_workers() <= before, "no worker was started for it"


def ray_workers() -> set[str]:
    """Those that are alive, as Ray itself lists them."""
    return set(ray_state.workers())


def test_pages_that_processes_share_count_once(bare: LiveGrid, probes: Probes, tmp_path: Path) -> None:
    before = all_read(bare, probes)["one"].own
    end = tmp_path / "end"
    holding = fork_and_hold_until.options(**on("one")).remote(str(end), 200 * MB, copies=4)

    def grown() -> int:
        own = all_read(bare, probes)["one"].own
        return own.memory_used - before.memory_used if own.processes >= before.processes + 4 else 0

    used = until(lambda: found if (found := grown()) > 190 * MB else None, 60, "held")
    end.touch()
    ray.get(holding, timeout=30)

    assert used < 500 * MB  # five processes see 200 MB each


def test_the_object_store_counts_once_though_workers_wrote_it(bare: LiveGrid, probes: Probes) -> None:
    before = all_read(bare, probes)["one"].own.memory_used

    @ray.remote(num_cpus=1)
    def put() -> list[ray.ObjectRef]:
        return [ray.put(b"x" * (60 * MB))]

    kept = ray.get(put.options(**on("one")).remote(), timeout=60)
    found = until(
        lambda: now if (now := all_read(bare, probes)["one"].own.memory_used - before) > 55 * MB else None, 60, "seen"
    )
    assert found < 220 * MB  # the object, and the worker itself with the copy that it made it from
    del kept


def test_a_node_without_a_driver_says_why_it_has_no_gpus(bare: LiveGrid, probes: Probes) -> None:
    for reading in all_read(bare, probes).values():
        assert bool(reading.gpus) != bool(reading.no_gpus_because)


def test_a_probe_that_hangs_is_replaced(bare: LiveGrid, probes: Probes, cluster: RayCluster) -> None:
    probes.hung_s = 0.5  # shorter than it is waited for below: the next look finds that it hangs
    all_read(bare, probes)
    hung = probes.pids(timeout_s=10)[bare.ids["one"]]

    os.kill(hung, signal.SIGSTOP)
    assert bare.ids["one"] in {node_id for node_id, said in probes.read_all(1.0).items() if isinstance(said, Unread)}

    def replaced() -> bool:
        probes.keep(cluster.raylets())
        probes.hung_s = 60.0  # the next one has time to start
        return "one" in readings(bare, probes)

    until(replaced, 60, "another probe answers")
    until(lambda: not psutil.pid_exists(hung), 60, "the one that hung is gone")


def test_a_probe_that_was_ended_for_good_is_started_again(bare: LiveGrid, cluster: RayCluster, probes: Probes) -> None:
    all_read(bare, probes)
    (name,) = [name for name in named_probes() if bare.ids["two"] in name]
    ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)
    until(lambda: "two" not in readings(bare, probes), 30, "it is missed")

    def again() -> bool:
        probes.keep(cluster.raylets())
        return "two" in readings(bare, probes)

    until(again, 60, "it is back")


def test_a_silent_probe_keeps_no_caller_waiting_and_is_not_asked_twice(bare: LiveGrid, probes: Probes) -> None:
    all_read(bare, probes)
    silent, two = psutil.Process(probes.pids(timeout_s=10)[bare.ids["one"]]), bare.ids["two"]
    silent.suspend()
    try:
        for _ in range(3):
            found = until(lambda: answer if isinstance((answer := probes.read_all(0.3))[two], Reading) else None)
            assert isinstance(found[bare.ids["one"]], Unread)
            assert "not answered" in found[bare.ids["one"]].because
    finally:
        silent.resume()
    all_read(bare, probes)


def test_another_controller_takes_probes_over_and_replaces_those_of_another_version(
    bare: LiveGrid, cluster: RayCluster, probes: Probes
) -> None:
    all_read(bare, probes)
    before = probes.pids(timeout_s=10)
    old = f"{PREFIX}{bare.ids['one']}-older"

    @ray.remote(num_cpus=0)
    class OldProbe:
        pass

    OldProbe.options(name=old, namespace=NAMESPACE, lifetime="detached").remote()
    assert old in named_probes()

    later = Probes()
    later.keep(cluster.raylets())
    all_read(bare, later)

    assert later.pids(timeout_s=10) == before
    until(lambda: old not in named_probes(), 10, "the old one is gone")
    assert len(named_probes()) == 3


def test_a_full_node_with_a_gate_up_gets_its_probe_which_is_not_taken_for_work(
    bare: LiveGrid, cluster: RayCluster, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    work = [hold_until.options(**on("one", num_cpus=1)).remote(str(end)) for _ in range(2)]
    until(lambda: bare.free("one").get("CPU", 0.0) == 0.0, 60, "one is full")
    until(lambda: cluster.gate(bare.ids["one"], 2.0) or LATCH in bare.totals("one"), 30, "the gate is up")
    probes = Probes()
    try:
        probes.keep(cluster.raylets())
        all_read(bare, probes)
        assert LATCH in bare.totals("one")
        mine = set(probes.pids(timeout_s=10).values())

        (one,) = [raylet for raylet in cluster.raylets() if raylet.node_id == bare.ids["one"]]
        for kind in ("cpu", "memory", "gpu"):
            assert mine.isdisjoint(holder.pid for holder in cluster.holders_of(one, kind))
        until(lambda: len(cluster.holders_of(one, "cpu")) == 2, 20, "both at work")
    finally:
        cluster.lift_gate(bare.ids["one"])
        end.touch()
        ray.get(work, timeout=60)
        assert probes.stop() == 0


def test_nothing_is_left_after_stop(bare: LiveGrid, cluster: RayCluster) -> None:
    probes = Probes()
    probes.keep(cluster.raylets())
    all_read(bare, probes)
    pids = set(probes.pids(timeout_s=10).values())
    assert len(pids) == 3

    assert probes.stop() == 0

    assert named_probes() == set()
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), 20, "their processes have ended")
    assert probes.read_all(timeout_s=1.0) == {}


async def soon(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def test_without_a_controller_the_collector_has_probes_of_its_own(bare: LiveGrid) -> None:
    async def main() -> None:
        async with ResourceMetricsCollector(CONFIGURED, home=bare.home) as collector:
            await soon(lambda: {s.state for s in collector.get_all_latest_snapshots().values()} == {"ok"})
            assert collector.get_all_latest_snapshots().keys() == {"head", "one", "two"}
            assert collector.get_cluster_summary()["total"]["cpu"] == 6
            assert collector.get_resource_trend("one", "cpu").current is not None
            assert len(named_probes()) == 3

    asyncio.run(main())

    assert named_probes() == set()


def test_without_a_controller_the_orchestrator_does_all_that_one_does(
    bare: LiveGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It measures, shares, and shares by itself: a task that waits for a node makes that node borrow what it needs."""
    monkeypatch.setenv("GRID_HOME", str(tmp_path / "home"))
    sharing = {"enabled": True, "monitoring_interval_seconds": 1, "rebalance_interval_seconds": 1}
    lends_all = {"policy": "aggressive", "thresholds": {"excess_threshold": 0}}
    config = GridConfig.from_dict({"name": "probe-test", "embedded": True, "resource_sharing": sharing | lends_all})

    async def use() -> None:
        async with ResourceSharingOrchestrator(config) as orchestrator:
            request = await orchestrator.request_resources("one", "cpu", 1, "high", duration_minutes=5, source="two")
            await soon(lambda: bare.totals("one").get("CPU") == 3.0)
            assert [b["boost_id"] for b in (await orchestrator.get_cluster_status())["boosts"]["boosts"]] == [request]
            assert await orchestrator.release_resources(request)
            await soon(lambda: bare.totals("one").get("CPU") == 2.0)

            task = where_am_i.options(**on("one", num_cpus=3)).remote()
            assert await asyncio.to_thread(ray.get, task, timeout=120) == "one"
            (boost,) = (await orchestrator.get_cluster_status())["boosts"]["boosts"]
            assert (boost["cause"], boost["requester"]) == ("demand", "grid")
            assert await orchestrator.release_resources(boost["boost_id"])
            # On a busy machine the node's probe may start after the task.
            await soon(lambda: orchestrator.get_node_resource_snapshots()["one"].measured is not None)

    asyncio.run(use())
    until(bare.is_at_base, 20, "every node at base")
    assert not named_probes()
