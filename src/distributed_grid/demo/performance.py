"""The demo from beginning to end: a cluster to run on, the story, the verdict, and a clean end at any moment."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from distributed_grid.client import GridClient
from distributed_grid.cluster.embedded import start_embedded, stop_embedded
from distributed_grid.config.finding import packaged_config
from distributed_grid.demo.commands import Grid
from distributed_grid.demo.ray_view import driver_of
from distributed_grid.demo.show import Checked, Show
from distributed_grid.demo.story import EXTRA_CPUS, TARGET, Story
from distributed_grid.errors import CheckFailed, ClusterStartFailed, NoCluster, Refused
from distributed_grid.store.home import GridHome

if TYPE_CHECKING:
    from distributed_grid.wire.nodes import ClusterSeen
    from distributed_grid.wire.sharing import SharingNode, SharingStatus

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Stage:
    """A running cluster with grid in it."""

    home: GridHome
    ray_address: str
    is_own: bool = False
    """Started for this demo alone; otherwise others use it."""
    is_embedded: bool = True


def running_stage(home: GridHome) -> Stage | None:
    """The cluster whose controller answers in this installation; a mere login to another cluster does not count."""
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
    """Start the configuration's embedded cluster in a separate home; end and remove both with the block.

    The program's signals must raise (`EndSignals`), so that they end the block as any error does.
    """
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


def why_unsuitable(cluster: "ClusterSeen", sharing: "SharingStatus", *, target: str, cpus: float) -> list[str]:
    """Why the demo cannot run on a cluster in use; empty if it can. Both arguments are the API's answers."""
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


def _may_lend(node: "SharingNode", kind: str, amount: float) -> bool:
    limit = node["limits"].get(kind)
    return bool(node["free"].get(kind, 0) >= amount and (limit is None or limit >= amount))


@contextmanager
def _client(home: GridHome) -> Iterator[GridClient]:
    client = GridClient(home)
    try:
        yield client
    finally:
        client.close()


_TITLE: Final = (
    "Distributed Grid: boosts at work on a live Ray cluster",
    "Every claim is checked against Ray itself; the line below it is what Ray showed.",
)


def play(show: Show) -> None:
    """Raise `CheckFailed` if a claim is false, and `Refused` if the demo would disturb a cluster in use."""
    began = time.monotonic()
    with the_stage(show) as stage, driver_of(stage.ray_address) as view:
        checks = Story(view, Grid(stage.home), show).play()
    verdict(checks)
    start = "grid cluster start, then " if stage.is_own else ""
    show.end(
        f"All {len(checks)} claims hold, in {time.monotonic() - began:.0f} s.",
        f"To try it yourself: {start}grid boost request --help",
    )


def verdict(checks: Sequence[Checked]) -> None:
    if wrong := [checked for checked in checks if not checked.holds]:
        raise CheckFailed(
            f"{len(wrong)} of {len(checks)} claims failed",
            because=[f"{checked.claim}: expected {checked.expected}, saw {checked.seen}" for checked in wrong],
            try_next="To find the cause: grid doctor",
        )


@contextmanager
def the_stage(show: Show) -> Iterator[Stage]:
    """The embedded cluster that runs here, if it is idle; if none runs, one for the demo alone."""
    stage = running_stage(GridHome.find())
    if stage is not None and stage.is_embedded:
        refuse_if_unsuitable(stage)
        show.title(*_TITLE)
        show.aside(f"Using the cluster that is running at {stage.ray_address}.")
        yield stage
        return
    show.title(*_TITLE)
    show.aside("Starting an embedded cluster for this demo alone; it ends with it:")
    with own_stage(str(packaged_config().path), progress=show.aside) as stage:
        yield stage


def refuse_if_unsuitable(stage: Stage) -> None:
    client = GridClient(stage.home)
    try:
        reasons = why_unsuitable(client.cluster_status(), client.sharing_status(), target=TARGET, cpus=EXTRA_CPUS)
    finally:
        client.close()
    if reasons:
        raise Refused(
            f"The demo cannot run on the cluster at {stage.ray_address}",
            because=reasons,
            try_next="Let it start a cluster of its own: GRID_HOME=$(mktemp -d) grid demo",
        )
