"""The demo from beginning to end: a stage, the story on it, and the verdict."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from distributed_grid.client import GridClient
from distributed_grid.config.finding import packaged_config
from distributed_grid.demo.commands import Grid
from distributed_grid.demo.findings import Finding
from distributed_grid.demo.ray_view import driver_of
from distributed_grid.demo.show import Show
from distributed_grid.demo.stage import Stage, own_stage, running_stage, why_unsuitable
from distributed_grid.demo.story import EXTRA_CPUS, TARGET, Story
from distributed_grid.errors import CheckFailed, Refused
from distributed_grid.store.home import GridHome

_TITLE: Final = (
    "Distributed Grid: boosts at work on a live Ray cluster",
    "Every claim is checked against Ray itself; the line below it is what Ray showed.",
)


def play(show: Show) -> None:
    """Raise `CheckFailed` if a claim is false, and `Refused` where the demo would be in somebody's way."""
    began = time.monotonic()
    with the_stage(show) as stage, driver_of(stage.ray_address) as view:
        findings = Story(view, Grid(stage.home), show).play()
    verdict(findings)
    start = "grid cluster start, then " if stage.is_own else ""
    show.end(
        f"All {len(findings)} claims hold, in {time.monotonic() - began:.0f} s.",
        f"To go on by yourself: {start}grid boost request --help",
    )


def verdict(findings: Sequence[Finding]) -> None:
    if wrong := [finding for finding in findings if not finding.holds]:
        raise CheckFailed(
            f"{len(wrong)} of {len(findings)} claims failed",
            because=[f"{finding.claim}: expected {finding.expected}, saw {finding.seen}" for finding in wrong],
            try_next="grid doctor tells what is in the way.",
        )


@contextmanager
def the_stage(show: Show) -> Iterator[Stage]:
    """The embedded cluster that runs here, if it is idle; where none runs, one for the demo alone."""
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
