#!/usr/bin/env python3
"""Resource sharing from Python, on a real Ray cluster.

    python examples/intelligent_sharing_demo.py [CONFIG]

Uses the cluster that grid runs here. Where none runs, it starts the embedded one of CONFIG (default:
config/my-cluster-enhanced.yaml) in a folder of its own, and ends it again. Each part also works alone:

    asyncio.run(ResourceSharingDemo("config/my-cluster-enhanced.yaml")._demo_cluster_status())
"""

import asyncio
import itertools
import os
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import click
import ray
from rich.console import Console

from distributed_grid.cli.canvas import Canvas
from distributed_grid.cli.cluster_view import cluster_view
from distributed_grid.cli.output import explain
from distributed_grid.cli.tables import boost_card, boost_table
from distributed_grid.client import GridClient
from distributed_grid.demo.ray_view import driver_of
from distributed_grid.demo.stage import own_stage, running_stage
from distributed_grid.errors import GridError
from distributed_grid.orchestration.resource_boost_manager import (
    ResourceBoost,
    ResourceBoostManager,
    ResourceBoostRequest,
)
from distributed_grid.store.home import GridHome

DEFAULT_CONFIG: Final = "config/my-cluster-enhanced.yaml"
BOOST_S: Final = 120.0  # none of these boosts outlives the demo for long, whatever happens to it
TASK_S: Final = 60.0
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
    """Five short demonstrations; `run` shows them all on one cluster."""

    def __init__(self, config_path: str = DEFAULT_CONFIG) -> None:
        self.config_path = config_path
        self.console = Console(highlight=False, soft_wrap=True)
        self._client: GridClient | None = None

    async def run(self) -> None:
        async with self._cluster():
            await self._demo_cluster_status()
            await self._demo_resource_monitoring()
            await self._demo_resource_request()
            await self._demo_scheduling()
            await self._demo_load_balancing()

    async def _demo_cluster_status(self) -> None:
        """Every node: what it started with, offers and has free, and what it has lent and borrowed."""
        async with self._cluster():
            self._title("Cluster status")
            click.echo(cluster_view(await self._status(), Canvas.here()))

    async def _demo_resource_monitoring(self) -> None:
        """What Ray has given out on every node, while a small job comes and goes."""
        async with self._cluster():
            self._title("Resource monitoring: CPUs used + free = total, while six tasks come and go")
            first = (await self._status())["nodes"]
            self.console.print("".join(f"{node['name']:>16}" for node in first), style="bold")
            job = [work.options(scheduling_strategy="SPREAD").remote(1 + 0.5 * i) for i in range(6)]
            before, deadline = "", time.monotonic() + TASK_S
            while time.monotonic() < deadline:
                unfinished = ray.wait(job, num_returns=len(job), timeout=0)[1]
                sample = "".join(f"{cpus_of(node):>16}" for node in (await self._status())["nodes"])
                if sample != before:
                    self.console.print(sample)
                elif not unfinished:
                    break
                before = sample
                await asyncio.sleep(0.3)

    async def _demo_resource_request(self) -> None:
        """Ask for a boost, see it, give it back."""
        async with self._cluster(), ResourceBoostManager(self.config_path) as boosts:
            self._title("A request")
            async with self._boost(boosts, cpus=2) as boost:
                if boost is None:
                    return
                click.echo(boost_table(await boosts.get_boost_status()))
                released = await boosts.release_boost(boost.boost_id)
                self.console.print(f"Released: {released}; active boosts: {len(await boosts.get_active_boosts())}")

    async def _demo_scheduling(self) -> None:
        """Ray's own scheduler uses borrowed capacity: a task too big for its node waits, then starts by itself."""
        async with self._cluster(), ResourceBoostManager(self.config_path) as boosts:
            target = await self._target()
            has, name = target["total"]["cpu"], target["name"]
            self._title(f"Scheduling: a task for {has + 2:g} CPUs on {name}, which has {has:g}")
            task = work.options(num_cpus=has + 2, **pinned_to(target)).remote(0)
            started, _ = await asyncio.to_thread(ray.wait, [task], timeout=2)
            self.console.print(f"Before the boost, after 2 s: {'it ran' if started else 'it waits'}")
            async with self._boost(boosts, cpus=2, delivery="transfer") as boost:
                if boost is None:
                    return
                node_id, *_ = await asyncio.to_thread(ray.get, task, timeout=TASK_S)
                where = name if node_id == target["node_id"] else f"node {node_id}"
                self.console.print(f"With the boost: it started by itself, on {where}")

    async def _demo_load_balancing(self) -> None:
        """A node with more work than it can do at once; with a boost, more of its queue runs at the same time."""
        async with self._cluster(), ResourceBoostManager(self.config_path) as boosts:
            target = await self._target()
            slots = target["total"]["cpu"]
            self._title(f"Load balancing: {QUEUE} tasks wait for the {slots:g} CPUs of {target['name']}")
            here = pinned_to(target)
            self.console.print(f"Alone:          {await self._drain([here])}")
            async with self._boost(boosts, cpus=slots, delivery="auto") as boost:
                if boost is None:
                    return
                # A boost's options name the target for a transfer, and the reservation on the lender
                # otherwise: the same code uses the capacity wherever it is.
                self.console.print(f"With the boost: {await self._drain([here, boost.options()])}")

    # -- what the demonstrations are made of ------------------------------------------------------------------

    @asynccontextmanager
    async def _cluster(self) -> AsyncIterator[None]:
        """A cluster to work on and a connection to it; the one that is open already, inside of `run`."""
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
        """Have so many more CPUs meanwhile; None, after telling why, if nobody lends them."""
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
            listed = (await boosts.get_boost_status())["boosts"]
            click.echo(boost_card(next(boost for boost in listed if boost["boost_id"] == boost_id)))
            yield await boosts.get_boost(boost_id)
        finally:
            await boosts.release_boost(boost_id)

    async def _drain(self, places: list[Mapping[str, Any]]) -> str:
        """Put the queue onto these places in turn and let it run; how many tasks Ray ran at a time, and where."""
        turn = itertools.cycle(places)
        queue = [work.options(num_cpus=1, **next(turn)).remote(0.5) for _ in range(QUEUE)]
        done = await asyncio.to_thread(ray.get, queue, timeout=TASK_S)
        names = {node["node_id"]: node["name"] for node in (await self._status())["nodes"]}
        on = ", ".join(sorted({names[node_id] for node_id, *_ in done}))
        return f"{len(done)} tasks done, up to {most_at_once(done)} at a time, on {on}"

    def _title(self, text: str) -> None:
        self.console.print(f"\n{text}", style="bold cyan")


def cpus_of(node: Mapping[str, Any]) -> str:
    free, total = node["free"]["cpu"], node["total"]["cpu"]
    return f"{total - free:g} + {free:g} = {total:g}"


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
        asyncio.run(ResourceSharingDemo(*sys.argv[1:2]).run())
    except GridError as error:
        explain(error, as_json=False)
        return error.exit_code
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
