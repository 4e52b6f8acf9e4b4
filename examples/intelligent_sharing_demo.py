#!/usr/bin/env python3
"""Resource sharing from Python, on a real Ray cluster.

    python examples/intelligent_sharing_demo.py [CONFIG]

Uses the cluster that grid runs here. Where none runs, it starts the embedded one of CONFIG (default:
config/my-cluster-enhanced.yaml) in a folder of its own, and ends it again. Each part also works alone:

    asyncio.run(ResourceSharingDemo("config/my-cluster-enhanced.yaml").cluster_status())
"""

import asyncio
import itertools
import os
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import click
import ray
from rich.console import Console

from distributed_grid import (
    GridError,
    IntelligentScheduler,
    NodeSnapshot,
    ResourceBoost,
    ResourceBoostManager,
    ResourceBoostRequest,
    ResourceMetricsCollector,
    ResourceSharingManager,
    ResourceSharingOrchestrator,
    SchedulingDecision,
    SchedulingRequest,
    SchedulingStrategy,
    ray_options,
)
from distributed_grid.cli.cluster_view import cluster_view
from distributed_grid.cli.columns import Canvas
from distributed_grid.cli.output import explain
from distributed_grid.cli.tables import boost_table
from distributed_grid.client import GridClient
from distributed_grid.cluster.end_signals import EndRequested, EndSignals
from distributed_grid.demo.performance import own_stage, running_stage
from distributed_grid.demo.ray_view import driver_of
from distributed_grid.store.home import GridHome

DEFAULT_CONFIG: Final = "config/my-cluster-enhanced.yaml"
BOOST_S: Final = 120.0  # none of these boosts outlives the demo for long, whatever happens to it
TASK_S: Final = 60.0
SETTLES_S: Final = 3.0
QUEUE: Final = 24

# Tasks go to the nodes by value, so this works from any folder, and when imported.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


@ray.remote(max_retries=0)
def work(seconds: float) -> tuple[str, float, float]:
    """Where it ran, from when to when."""
    began = time.time()
    time.sleep(seconds)
    return ray.get_runtime_context().get_node_id(), began, time.time()


class ResourceSharingDemo:
    """Five short demonstrations, each callable alone; `run` shows them all on one cluster."""

    def __init__(self, config_path: str = DEFAULT_CONFIG) -> None:
        self.config_path = config_path
        self.console = Console(highlight=False, soft_wrap=True)
        self._client: GridClient | None = None

    async def run(self) -> None:
        async with self._cluster():
            await self.cluster_status()
            await self.resource_monitoring()
            await self.resource_request()
            await self.scheduling()
            await self.load_balancing()

    async def cluster_status(self) -> None:
        """Every node: what it started with, offers and has free, and what it has lent and borrowed."""
        async with self._cluster(as_driver=False):
            self._title("Cluster status")
            click.echo(cluster_view(await self._status(), Canvas.here()))

    async def resource_monitoring(self) -> None:
        """What Ray has given out on every node while a small job comes and goes; then what was measured."""
        async with self._cluster(), ResourceMetricsCollector(self.config_path) as metrics:
            self._title("Resource monitoring: CPUs used + free = total, while four tasks come and go")
            nodes = (await self._status())["nodes"]
            self.console.print("".join(f"{node['name']:>16}" for node in nodes), style="bold")
            before = sample = "".join(map(cpus_of, nodes))
            self.console.print(before)
            job = [work.options(scheduling_strategy="SPREAD").remote(0.5 + 0.25 * i) for i in range(4)]
            deadline = time.monotonic() + TASK_S
            while time.monotonic() < deadline and (job or sample != before):
                done, job = ray.wait(job, num_returns=len(job), timeout=0) if job else ([], job)
                if done and not job:  # what Ray shows may be a moment old
                    deadline = time.monotonic() + SETTLES_S
                last, sample = sample, "".join(map(cpus_of, (await self._status())["nodes"]))
                if sample != last:
                    self.console.print(sample)
                await asyncio.sleep(0.2)
            latest = await asyncio.to_thread(metrics.get_all_latest_snapshots)
            for node in nodes:
                self.console.print(f"{node['name']}: {pressure_of(latest.get(node['name']))}")

    async def resource_request(self) -> None:
        """Ask for a boost, see it, give it back; then for more than any node has, which waits for its turn."""
        async with (
            self._cluster(),
            ResourceBoostManager(self.config_path) as boosts,
            ResourceSharingManager(self.config_path) as sharing,
        ):
            self._title("A request, and its allocation")
            async with self._boost(boosts, cpus=2) as boost:
                if boost is not None:
                    click.echo(boost_table(await boosts.get_boost_status()))
                    released = await boosts.release_boost(boost.boost_id)
                    self.console.print(f"Released: {released}; active boosts: {len(await boosts.get_active_boosts())}")

            target = await self._target()
            most = sum(node["base"]["cpu"] for node in (await self._status())["nodes"])
            asked = await sharing.request_resource(target["name"], "cpu", most, "low")
            found = await sharing.get_allocation(asked)
            self.console.print(f"{most:g} CPUs, as many as the whole cluster has: {found['state']}")
            if waiting := found["waiting"]:
                self.console.print(f"  place {waiting['position']} in the queue: {waiting['reason']}")
            self.console.print(f"Taken back: {await sharing.release_resource(asked)}")

    async def scheduling(self) -> None:
        """Where should a task run, and how sure is that? Then one that only a boost makes room for."""
        async with (
            self._cluster(),
            ResourceBoostManager(self.config_path) as boosts,
            IntelligentScheduler(self.config_path, boosts) as scheduler,
        ):
            target = await self._target()
            self._title(f"Scheduling: three tasks of {target['name']} with 2 CPUs each, all or none, by every strategy")
            for strategy in SchedulingStrategy:
                request = SchedulingRequest(cpu=2, count=3, target=target["name"], strategy=strategy)
                async with self._place(scheduler, request) as decision:
                    self.console.print(f"{strategy:>22}: {briefly(decision)}")

            big = target["total"]["cpu"] + 2
            self.console.print(f"\nA task for {big:g} CPUs on {target['name']}, which has {target['total']['cpu']:g}:")
            request = SchedulingRequest(cpu=big, node=target["name"], target=target["name"])
            async with self._place(scheduler, request) as decision:
                self.console.print(f"Before the boost: {briefly(decision)}")
            request = replace(request, wait=True, deadline_seconds=TASK_S)
            async with self._boost(boosts, cpus=2, delivery="transfer") as boost:
                if boost is None:
                    return
                async with self._place(scheduler, request) as decision:
                    self.console.print(f"With the boost: {briefly(decision)}")
                    if decision:
                        task = work.options(**ray_options(decision, num_cpus=big)).remote(0)
                        node_id, *_ = await asyncio.to_thread(ray.get, task, timeout=TASK_S)
                        where = target["name"] if node_id == target["node_id"] else f"node {node_id}"
                        self.console.print(f"It ran with {big:g} CPUs on {where}")

    async def load_balancing(self) -> None:
        """A node with more work than it can do at once; with what others lend, more of its queue runs at a time."""
        async with self._cluster(), ResourceSharingOrchestrator(self.config_path) as orchestrator:
            target = await self._target()
            slots = target["total"]["cpu"]
            self._title(f"Load balancing: {QUEUE} tasks wait for the {slots:g} CPUs of {target['name']}")
            self.console.print(f"Alone:          {await self._drain(target)}")
            allocation = await orchestrator.request_resources(
                target["name"], "cpu", slots, priority="high", duration=BOOST_S, delivery="transfer"
            )
            try:
                status = await orchestrator.get_cluster_status()
                lent = {node["name"]: node["lent"]["cpu"] for node in status["nodes"] if node["lent"]["cpu"]}
                lenders = ", ".join(f"{name} lends {amount:g}" for name, amount in lent.items())
                self.console.print(f"It asks for {slots:g} more: {lenders or 'no node has them now'}")
                self.console.print(f"With the boost: {await self._drain(target)}")
            finally:
                await orchestrator.release_resources(allocation)

    # The names that they had first.
    _demo_cluster_status = cluster_status
    _demo_resource_monitoring = resource_monitoring
    _demo_resource_request = resource_request
    _demo_scheduling = scheduling
    _demo_load_balancing = load_balancing

    # -- what the demonstrations are made of ------------------------------------------------------------------

    @asynccontextmanager
    async def _cluster(self, *, as_driver: bool = True) -> AsyncIterator[None]:
        """A cluster, and this program as a Ray driver in it if it is to run tasks; inside of `run`, what is there."""
        if self._client is not None:
            yield
            return
        async with AsyncExitStack() as cleanup:
            stage = running_stage(GridHome.find())
            if stage is None:
                self.console.print(f"Starting the embedded cluster of {self.config_path}; it ends with this demo:")
                stage = cleanup.enter_context(own_stage(self.config_path, progress=self.console.print))
                cleanup.callback(restore, "GRID_HOME", os.environ.get("GRID_HOME"))
                os.environ["GRID_HOME"] = str(stage.home.path)
            else:
                self.console.print(f"Using the cluster that runs at {stage.ray_address}")
            if as_driver:
                cleanup.enter_context(driver_of(stage.ray_address))
            self._client = GridClient(stage.home)
            try:
                yield
            finally:
                self._client.close()
                self._client = None

    async def _status(self) -> dict[str, Any]:
        assert self._client is not None
        return await asyncio.to_thread(self._client.cluster_status)

    async def _target(self) -> dict[str, Any]:
        """The node that needs help: gpu-master, or the head where no node is called so."""
        alive = [node for node in (await self._status())["nodes"] if node["alive"]]
        target: dict[str, Any] = max(alive, key=lambda node: (node["name"] == "gpu-master", node["is_head"]))
        return target

    @asynccontextmanager
    async def _boost(
        self, boosts: ResourceBoostManager, *, cpus: float, delivery: str | None = None
    ) -> AsyncIterator[ResourceBoost | None]:
        """Have so many more CPUs meanwhile; None, after telling why, if no node lends them."""
        target = (await self._target())["name"]
        asked = ResourceBoostRequest(target, "cpu", cpus, duration_seconds=BOOST_S, delivery=delivery)
        boost_id = await boosts.request_boost(asked)
        if boost_id is None:
            assert boosts.last_refusal is not None
            for line in (f"Refused: {boosts.last_refusal.message}", *boosts.last_refusal.because):
                self.console.print(line, style="yellow")
            yield None
            return
        try:
            boost = await boosts.get_boost(boost_id)
            self.console.print(f"{boost.source_node} lends {boost.amount:g} CPUs to {target}")
            yield boost
        finally:
            await boosts.release_boost(boost_id)

    @asynccontextmanager
    async def _place(
        self, scheduler: IntelligentScheduler, request: SchedulingRequest
    ) -> AsyncIterator[SchedulingDecision]:
        """Hold what the scheduler decides for a task, if there is a place, until the block ends."""
        decision = await scheduler.schedule_task(request)
        try:
            yield await scheduler.wait_for_place(decision.task_id) if decision.queued else decision
        finally:
            await scheduler.complete_task(decision.task_id)

    async def _drain(self, node: Mapping[str, Any]) -> str:
        """Let the node work through a queue; how many tasks Ray ran at a time."""
        queue = [work.options(num_cpus=1, **pinned_to(node)).remote(0.5) for _ in range(QUEUE)]
        done = await asyncio.to_thread(ray.get, queue, timeout=TASK_S)
        return f"{len(done)} tasks done, up to {most_at_once(done)} at a time"

    def _title(self, text: str) -> None:
        self.console.print(f"\n{text}", style="bold cyan")


def cpus_of(node: Mapping[str, Any]) -> str:
    free, total = node["free"]["cpu"], node["total"]["cpu"]
    return f"{f'{total - free:g} + {free:g} = {total:g}':>16}"


def pressure_of(node: NodeSnapshot | None) -> str:
    if node is None or node.pressure is None or node.measured is None:
        return "not measured yet"
    return f"pressure {node.pressure.overall:.0%}, its own work uses {node.measured.own.cpu_used:.1f} cores"


def briefly(decision: SchedulingDecision) -> str:
    """Where to, and how sure; or why not."""
    if not decision:
        return f"no place ({decision.reasons[0]})"
    return f"{', '.join(place.node for place in decision.members)} ({decision.confidence:.0%} sure)"


def pinned_to(node: Mapping[str, Any]) -> dict[str, Any]:
    """Ray options for just this node. By its name: pinned by id, a task too big for the node would fail at once."""
    return {"label_selector": {"grid/name": node["name"]}}


def most_at_once(spans: Iterable[tuple[str, float, float]]) -> int:
    """The largest number of tasks that ran at the same moment."""
    steps = sorted(step for _, began, ended in spans for step in ((began, 1), (ended, -1)))
    return max(itertools.accumulate(change for _, change in steps))


def restore(variable: str, value: str | None) -> None:
    os.environ.pop(variable, None)
    if value is not None:
        os.environ[variable] = value


def main() -> int:
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    try:
        with EndSignals(may_insist=False):  # a second Ctrl-C would leave half a cluster behind
            asyncio.run(ResourceSharingDemo(*sys.argv[1:2]).run())
    except GridError as error:
        explain(error, as_json=False)
        return error.exit_code
    except EndRequested as request:
        print("Stopped.", file=sys.stderr)
        return 128 + request.number
    return 0


if __name__ == "__main__":
    sys.exit(main())
