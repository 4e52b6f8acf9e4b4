"""A real cluster for tests. It asks Ray, not grid, whether things are true."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import ray
import ray._private.state as ray_state
from answer_checks import checked

from bench.raylets import Raylets
from distributed_grid.client import GridClient
from distributed_grid.config import load_config
from distributed_grid.store.home import GridHome

GRID = str(Path(sys.executable).with_name("grid"))
GB = 2**30

# What several modules can share. The one that comes with the package:
PACKAGED = None
ONE_LENDER = """
name: one-lender
embedded: true
resource_sharing:
  enabled: true
  mode: share_and_offload
  grace_seconds: 1
  expiry_warning_seconds: 60
  thresholds: {excess_threshold: 0}
  teams: [{name: vision}, {name: audio}]
nodes:
- {name: head, role: master, cpu_count: 2, memory_gb: 2, resource_sharing: {can_share: false}}
- {name: lender, cpu_count: 6, gpu_count: 1, memory_gb: 4}
"""

# A lender with all kinds and with limits, and one that is too small for most.
BIG_AND_SMALL = """
name: big-and-small
embedded: true
resource_sharing: {enabled: true, mode: share_and_offload, thresholds: {excess_threshold: 0}}
nodes:
- {name: head, role: master, cpu_count: 2, memory_gb: 4, resource_sharing: {can_share: false}}
- name: lender
  cpu_count: 8
  gpu_count: 1
  memory_gb: 16
  resources: {widget: 6}
  resource_sharing: {max_share_cpu: 6, max_share_gpu: 1, max_share_memory_gb: 12}
- {name: small, cpu_count: 1, memory_gb: 2}
"""
# Two lenders that may die, watched and audited.
TWO_LENDERS = """
name: two-lenders
embedded: true
resource_sharing:
  enabled: true
  mode: share_and_offload  # what waits is to go on waiting
  monitoring_interval_seconds: 4
  grace_seconds: 1
  thresholds: {memory_pressure_high: 0.6, memory_pressure_low: 0.5, excess_threshold: 0}
nodes:
- {name: head, role: master, cpu_count: 2, memory_gb: 2, resource_sharing: {can_share: false}}
- {name: one, cpu_count: 4, memory_gb: 2, gpu_count: 1, resources: {licence: 2}}
- {name: two, cpu_count: 4, memory_gb: 2, gpu_count: 1}
"""
# So that Ray notices a dead node within a few seconds rather than half a minute.
NOTICE_SOON = {
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


# Most limits are there to end a test that hangs, and were written on a machine with nothing else to do.
_PATIENCE = 4.0


def until(condition: Callable[[], Any], within_s: float = 20.0, what: str = "the condition") -> Any:
    """Wait for something to become true; return it. Asking costs the controller something, so it becomes rarer."""
    within_s *= _PATIENCE
    deadline, pause_s = time.monotonic() + within_s, 0.02
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not become true within {within_s} s (last: {found!r})")
        time.sleep(pause_s)
        pause_s = min(0.25, pause_s * 1.2)


class LiveGrid:
    def __init__(self, folder: Path, config: str | None = None) -> None:
        self.folder = folder
        self.home = GridHome(folder / "home")
        self.env = os.environ | {"GRID_HOME": str(self.home.path), "COLUMNS": "200"}
        self.env.pop("RAY_ADDRESS", None)
        self.env.pop("GRID_CONFIG", None)
        self.config = folder / "cluster.yaml" if config else None
        if config:
            self.config.write_text(config)
        self.client = checked(
            GridClient(self.home, retry_s=60.0)
        )  # a controller needs a while to start on a busy machine
        self.orders = folder / "orders"
        """For the fault points of a cluster that was started with them."""

    # -- life ----------------------------------------------------------------------------------------------

    def start(self, *options: str) -> None:
        args = ["--config", str(self.config)] if self.config else []
        self.json("cluster", "start", *args, *options)
        self.connect()

    @cached_property
    def raylets(self) -> Raylets:
        assert self.config is not None
        return Raylets(self.home, load_config(self.config).config, self.env)

    def connect(self) -> None:
        self.connect_to(json.loads(self.home.controller.read_text())["ray_address"])

    def connect_to(self, address: str) -> None:
        self.address = address
        ray.init(address=self.address, namespace="test", log_to_driver=False, logging_level="ERROR")
        self.ids = self.live_nodes()
        self.base = {name: self.ray_base(name) for name in self.ids}

    def kill_node(self, name: str) -> None:
        """A node dies without a word; Ray notices after a while."""
        self.raylets.kill(name)

    def start_node(self, name: str) -> None:
        """A node that died comes back: the same name, another raylet."""
        self.raylets.start(name)
        until(lambda: len(self.live_nodes()) == len(self.base), 60, "the old raylet known as dead")
        self.ids = self.live_nodes()

    def live_nodes(self) -> dict[str, str]:
        return {n["Labels"]["grid/name"]: n["NodeID"] for n in ray.nodes() if n["Alive"]}

    def stop(self) -> None:
        self.client.close()
        ray.shutdown()
        self.cli("cluster", "stop")

    def controller_pid(self) -> int:
        return int(json.loads(self.home.controller.read_text())["pid"])

    def supervisors(self) -> list[psutil.Process]:
        """The processes that put this installation's controller back if Ray gives it up."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            with contextlib.suppress(psutil.Error):
                if (process.info["cmdline"] or [])[-2:] == ["distributed_grid.cluster.supervise", str(self.home.path)]:
                    found.append(process)
        return found

    # -- commands ------------------------------------------------------------------------------------------

    def cli(
        self,
        *args: str,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        timeout: float = 120,
        stdin: str | None = None,
    ):
        """Run `grid` as a user does."""
        return subprocess.run(
            [GRID, *args],
            env=self.env | (env or {}),
            cwd=cwd or self.folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def json(self, *args: str) -> Any:
        done = self.cli(*args, "--json")
        assert done.returncode == 0, f"grid {' '.join(args)} exited {done.returncode}: {done.stderr}"
        return json.loads(done.stdout)

    def boost(self, target: str, kind: str, amount: float | str, **options: Any) -> dict[str, Any]:
        body = {"target_node": target, "resource_type": kind, "amount": str(amount)} | options
        return self.client.request_boost(body)

    def release(self, boost: dict[str, Any] | str, **options: Any) -> dict[str, Any]:
        return self.client.release_boost(boost if isinstance(boost, str) else boost["boost_id"], options)

    def state(self, boost: dict[str, Any]) -> str:
        """The boost's state, `released` once it is gone."""
        found = [b for b in self.client.boost_status()["boosts"] if b["boost_id"] == boost["boost_id"]]
        return found[0]["state"] if found else "released"

    def shown(self, boost: dict[str, Any]) -> dict[str, Any]:
        return self.client.boost(boost["boost_id"])

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.client.events() if event["event"] == name]

    def release_everything(self) -> None:
        """Release what is there, and what a waiting request gets once that is back."""
        released: set[tuple[str, str]] = set()

        def nothing_is_left() -> bool:
            found = {(boost["boost_id"], boost["state"]) for boost in self.client.boost_status()["boosts"]}
            for boost_id, _ in found - released:
                with contextlib.suppress(Exception):
                    self.release(boost_id, grace_seconds=0, wait_seconds=0)
            released.update(found)
            return not found

        until(nothing_is_left, 30, "all boosts released")
        until(self.is_at_base, 10, "every node at base")

    def resize(self, name: str, **resources: float) -> dict[str, float]:
        """Behind grid's back, as any program can that reaches Ray; what the node has then."""
        gcs = ray._raylet.GcsClient(address=self.address)
        return gcs.resize_raylet_resource_instances(self.ids[name], resources)

    # -- what Ray says -------------------------------------------------------------------------------------

    def ray_base(self, name: str) -> dict[str, float]:
        node = next(n for n in ray.nodes() if n["Alive"] and n["Labels"].get("grid/name") == name)
        return {k: v for k, v in node["Resources"].items() if not k.startswith("node:")}

    def totals(self, name: str) -> dict[str, float]:
        """Nothing of a node that has just died."""
        found = ray_state.total_resources_per_node().get(self.ids[name], {})
        return {k: v for k, v in found.items() if not k.startswith("node:") and "_group_" not in k}

    def free(self, name: str) -> dict[str, float]:
        return ray_state.available_resources_per_node().get(self.ids[name], {})

    def is_at_base(self) -> bool:
        return all(self.totals(name) == self.base[name] for name in self.ids)

    def total_is(self, name: str, resource: str, amount: float) -> None:
        """Ray's own total becomes this; its view needs a moment to show a change."""
        until(lambda: self.totals(name).get(resource, 0.0) == amount, 5, f"{name}'s {resource} == {amount}")

    def settled(self) -> None:
        """Nothing runs and everything is free: what a test may start from."""
        until(
            lambda: all(self.free(n).get("CPU", 0.0) == self.base[n].get("CPU", 0.0) for n in self.ids),
            20,
            "all CPUs free",
        )


@contextlib.contextmanager
def held_still(pid: int) -> Iterator[None]:
    """A process that is there and does nothing."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def group_of(boost: dict[str, Any]) -> dict[str, Any]:
    """A reservation's placement group, as Ray tells it."""
    return ray.util.placement_group_table()[boost["placement_group"]]


def on(name: str, **options: Any) -> dict[str, Any]:
    """Ray options for a task that must run on a named node."""
    return {"label_selector": {"grid/name": name}} | options


@ray.remote
def where_am_i() -> str:
    """The name of the node it runs on."""
    me = ray.get_runtime_context().get_node_id()
    return next(n["Labels"]["grid/name"] for n in ray.nodes() if n["NodeID"] == me)


@ray.remote
def hold_until(path: str) -> str:
    """Keep what it holds until the file appears; the node it ran on."""
    while not Path(path).exists():
        time.sleep(0.02)
    me = ray.get_runtime_context().get_node_id()
    return next(n["Labels"]["grid/name"] for n in ray.nodes() if n["NodeID"] == me)


def is_pending(reference: Any, for_s: float = 1.0) -> bool:
    return not ray.wait([reference], timeout=for_s)[0]
