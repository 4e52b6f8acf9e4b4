"""Where it plays: the cluster that this installation runs, or one of its own that ends with the play."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed_grid.client import GridClient
from distributed_grid.cluster.embedded import start_embedded, stop_embedded
from distributed_grid.demo.interrupts import ended_by_the_first_signal
from distributed_grid.errors import ClusterStartFailed, NoCluster
from distributed_grid.store.home import GridHome

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Stage:
    """A running cluster with grid in it."""

    home: GridHome
    ray_address: str
    is_own: bool = False
    """Started for this play alone; else somebody uses it."""
    is_embedded: bool = True


def running_stage(home: GridHome) -> Stage | None:
    """The cluster whose controller answers in this installation; one that it is only logged in to is not to play on."""
    if not home.controller.exists():
        return None
    try:
        with _client(home) as client:
            config = client.config()["config"]
            return Stage(home, client.ray_address(), is_embedded=bool(config.get("embedded")))
    except NoCluster:
        return None


@contextmanager
def own_stage(config_path: str | None, *, progress: Progress) -> Iterator[Stage]:
    """Start the configuration's embedded cluster in a home of its own; end and remove both with the block.

    Ctrl-C and its like end the block as any error does.
    """
    with ended_by_the_first_signal():
        home = GridHome(Path(tempfile.mkdtemp(prefix="grid-demo-")))
        logs_are_needed = False
        try:
            started = start_embedded(home, config_path, progress=progress)
            yield Stage(home, started["ray_address"], is_own=True)
        except ClusterStartFailed:  # its message names a log in that folder
            logs_are_needed = True
            raise
        finally:
            stop_embedded(home, progress=lambda _: None)
            if not logs_are_needed:
                shutil.rmtree(home.path, ignore_errors=True)


def why_unsuitable(cluster: Mapping[str, Any], sharing: Mapping[str, Any], *, target: str, cpus: float) -> list[str]:
    """What is in the way of the demo on a cluster in use; both are the API's answers. Empty: nothing."""
    nodes = {node["name"]: node for node in cluster["nodes"] if node["alive"]}
    lenders = [node for node in sharing["nodes"] if node["alive"] and node["can_share"] and node["name"] != target]
    reasons = []
    if not sharing["enabled"]:
        reasons.append("resource sharing is not enabled")
    if target not in nodes:
        reasons.append(f"it has no node {target}")
    if len(nodes) < 2:
        reasons.append(f"it has {len(nodes)} running node; lending takes two")
    if boosts := len(cluster["boosts"]["boosts"]):
        reasons.append(f"boosts are active there ({boosts}), and the demo must not be mixed up with them")
    elif changed := [name for name, node in nodes.items() if node["total"] != node["base"]]:
        reasons.append(f"{', '.join(changed)} does not offer what it started with")
    if busy := [name for name, node in nodes.items() if node["free"] != node["total"]]:
        reasons.append(f"work is running on {', '.join(busy)}")
    if not any(_may_lend(node, "cpu", cpus) for node in lenders):
        reasons.append(f"no node may lend {cpus:g} CPUs")
    if not any(_may_lend(node, "gpu", 1) for node in lenders):
        reasons.append("no node may lend a GPU")
    return reasons


def _may_lend(node: Mapping[str, Any], kind: str, amount: float) -> bool:
    limit = node["limits"].get(kind)
    return bool(node["free"].get(kind, 0) >= amount and (limit is None or limit >= amount))


@contextmanager
def _client(home: GridHome) -> Iterator[GridClient]:
    client = GridClient(home)
    try:
        yield client
    finally:
        client.close()
