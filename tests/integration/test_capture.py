"""Unmodified programs in a lease: where their work went, by Ray's own account, whatever they said about it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from live_grid import BIG_AND_SMALL, LiveGrid, group_of, until
from placed_programs import PLACES

pytestmark = pytest.mark.cluster

CONFIG = BIG_AND_SMALL

# What every program below begins with. `told(name, reference)` prints where a task or actor ran: the node, and whether
# that was in the lease's group.
BEGINNING = (
    PLACES
    + """
import os, sys
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import (
    In, NodeAffinitySchedulingStrategy as OnNode, NodeLabelSchedulingStrategy as Labelled,
    PlacementGroupSchedulingStrategy as InGroup,
)

def told(name, reference):
    node, group = ray.get(reference, timeout=60) if isinstance(reference, ray.ObjectRef) else reference
    print(name + ":", node, "inside" if group == os.environ["GRID_PLACEMENT_GROUP"] else "outside", flush=True)
"""
)


class Runs:
    """Programs in one reserved boost of three CPUs on the lender."""

    def __init__(self, grid: LiveGrid, folder: Path) -> None:
        self.boost = grid.boost("head", "cpu", 3, delivery="reserve", source_node="lender")
        self.reports: list[dict[str, Any]] = []
        self._grid, self._folder = grid, folder

    def run(self, program: str, *, escapes: bool = False, **env: str) -> dict[str, str]:
        """What it printed, by what stands before the colon; `escapes`: with work that may leave the lease."""
        report = self._folder / "report"
        report.unlink(missing_ok=True)
        script = self._folder / "program.py"
        script.write_text(BEGINNING + program)
        done = self._grid.cli(
            *("boost", "shell", *["--allow-escapes"] * escapes, self.boost["boost_id"]),
            *("--", sys.executable, str(script)),
            env={"GRID_RUN_REPORT": str(report)} | env,
            cwd=self._folder,
        )
        assert done.returncode == 0, done.stderr
        self.stderr = done.stderr
        self.reports = [json.loads(line) for line in report.read_text().splitlines()]
        return dict(line.split(": ", 1) for line in done.stdout.splitlines())

    def said(self, event: str) -> list[str]:
        return [f"{report['what']}: {report['why']}" for report in self.reports if report["event"] == event]

    def jobs(self) -> list[str]:
        return [report["job_id"] for report in self.reports if report["event"] == "job"]


@pytest.fixture
def runs(grid: LiveGrid, tmp_path: Path) -> Iterator[Runs]:
    groups = live_groups()
    runs = Runs(grid, tmp_path)
    yield runs
    assert group_of(runs.boost)["state"] == "CREATED"  # whatever the program did
    grid.release(runs.boost, grace_seconds=0)
    until(lambda: live_groups() == groups, 10, "no group left over")
    grid.settled()


def live_groups() -> set[str]:
    return {key for key, group in ray.util.placement_group_table().items() if group["state"] != "REMOVED"}


INSIDE, ELSEWHERE = "lender inside", "small outside"


def test_labels_and_places_that_the_lease_can_meet_are_met_there_and_others_escape_where_they_may(runs: Runs) -> None:
    reported = runs.run(
        """
connect(num_cpus=64, num_gpus=8, resources={"widget": 2})
for name, options in {
    "nothing": {},
    "no group": dict(scheduling_strategy=InGroup(None)),
    "own label": dict(label_selector={"grid/name": "in(lender, other)"}),
    "other label": dict(label_selector={"grid/name": "small"}),
    "fallback label": dict(
        label_selector={"grid/name": "small"}, fallback_strategy=[{"label_selector": {"grid/name": "lender"}}]
    ),
    "own node label": dict(scheduling_strategy=Labelled({"grid/name": In("lender")}, soft={"zone": In("west")})),
    "other node label": dict(scheduling_strategy=Labelled({"grid/name": In("small")})),
    "memory": dict(memory=2**20),
    "own address": dict(resources={k: 0.001 for k in ray.nodes()[0]["Resources"] if k.startswith("node:1")}),
}.items():
    told(name, where.options(**options).remote())
    if name in ("nothing", "own label", "other label"):
        actor = Actor.options(**options).remote()
        told(name + " actor", actor.where.remote())
        ray.kill(actor)
""",
        escapes=True,
    )

    outside = {"other label", "other label actor", "other node label"}
    assert {name for name, place in reported.items() if place != INSIDE} == outside
    assert {reported[name] for name in outside} == {ELSEWHERE}
    assert len(reported) == 12
    assert sorted(runs.said("escaped")) == sorted(
        f"{what}: the lease is on node lender"
        for what in (
            "task __main__.where: on a node with grid/name=small",
            "actor __main__.Actor: on a node with grid/name=small",
        )
    )
    rewritten = runs.said("rewritten")
    assert rewritten[0].startswith("ray.init(num_cpus=64, num_gpus=8, resources={'widget': 2}): ")
    assert len(runs.jobs()) == 1
    assert runs.stderr == ""


def test_a_group_that_fits_is_a_part_of_the_lease_in_all_its_uses(runs: Runs) -> None:
    reported = runs.run("""
connect()
own = placement_group([{"CPU": 1}, {"CPU": 1}], name="trainers")
print("ready:", own.wait(10), ray.get(own.ready(), timeout=20) == own, own.bundle_count, own.bundle_specs[1])
print("found by name:", ray.util.get_placement_group("trainers") == own)
for index in (-1, 0, 1):
    told(f"bundle {index}", where.options(scheduling_strategy=InGroup(own, index)).remote())
for name, wrong in {"no such bundle": dict(index=2), "too large": dict(num_cpus=2)}.items():
    try:
        where.options(scheduling_strategy=InGroup(own, wrong.pop("index", -1)), **wrong).remote()
    except ValueError as error:
        print(name + ":", type(error).__name__)
too_much = {"larger than all": dict(num_cpus=4), "none of it": dict(num_cpus=0, resources={"widget": 1})}
for name, wrong in too_much.items():
    for kind in (where, Actor):
        try:
            kind.options(**wrong).remote()
        except ValueError as error:
            print(name, kind is where, ":", error)

@ray.remote
def elsewhere(group):
    '''A task uses the handle, makes it known again, and removes it.'''
    found = ray.get(where.options(scheduling_strategy=InGroup(group, 1)).remote())
    remove_placement_group(group)
    return found

told("passed to a task", elsewhere.remote(own))
actor = Actor.options(scheduling_strategy=InGroup(own, 0)).remote()
told("actor", actor.where.remote())
shown = placement_group_table(own)
print("shown:", shown["name"], shown["state"], len(shown["bundles"]))

large = [{"CPU": 2}]
beside, given_up = placement_group(large), placement_group(large)
waits = ray.remote(num_cpus=0)(lambda group: group.wait(60)).remote(beside)
ready = beside.ready()
print("beside:", beside.wait(1), ray.wait([ready, waits], timeout=1)[0], placement_group_table(beside)["state"])
small = placement_group([{"CPU": 1}])
print("small:", small.wait(10))
remove_placement_group(small)
remove_placement_group(given_up)

remove_placement_group(own)
print("now:", beside.wait(10), ray.get(ready, timeout=60) == beside, ray.get(waits, timeout=60))
told("in beside", where.options(scheduling_strategy=InGroup(beside)).remote())
remove_placement_group(beside)
print("removed:", placement_group_table(own)["state"])
try:
    ray.get(actor.where.remote(), timeout=60)
except ray.exceptions.RayActorError:
    print("its actor: gone")
told("in its place", where.options(scheduling_strategy=InGroup(placement_group(large))).remote())

def tried(name, make):
    try:
        make()
    except RuntimeError as error:
        print(name + ":", str(error).strip().splitlines()[-1])

ids = {n["Labels"]["grid/name"]: n["NodeID"] for n in ray.nodes()}
tried("never", lambda: placement_group([{"CPU": 2}, {"CPU": 2}]))
tried("apart", lambda: placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD"))
tried("elsewhere", lambda: where.options(scheduling_strategy=OnNode(ids["small"], soft=False)).remote())

@ray.remote(num_cpus=0)
def from_a_task():
    placement_group([{"CPU": 4}])

tried("from a task", lambda: ray.get(from_a_task.remote(), timeout=60))

remove_placement_group(ray.util.get_current_placement_group())
told("after all", where.remote())
""")

    assert reported.pop("ready") == "True True 2 {'CPU': 1.0}"
    assert reported.pop("found by name") == "True"
    assert (reported.pop("no such bundle"), reported.pop("too large")) == ("ValueError", "ValueError")
    for is_task in ("True", "False"):
        said = reported.pop(f"larger than all {is_task} ")
        assert "grid: it asks for 4 CPU, and the lease has 3. Ask for a larger lease (--cpus 4)." in said
        assert "it asks for 1 widget, and the lease has 0. Reserve" in reported.pop(f"none of it {is_task} ")
    assert reported.pop("shown") == "trainers CREATED 2"
    assert (reported.pop("beside"), reported.pop("small")) == ("False [] PENDING", "True")
    assert (reported.pop("now"), reported.pop("removed"), reported.pop("its actor")) == (
        "True True True",
        "REMOVED",
        "gone",
    )
    assert "it asks for 4 CPU, and the lease has 3. Ask for a larger lease (--cpus 4), or" in reported.pop("never")
    assert "must be on different nodes" in (apart := reported.pop("apart"))
    assert "(--nodes 2)" in apart and "--allow-escapes" in apart
    assert "the lease is on node lender" in reported.pop("elsewhere")
    assert "grid: placement group CPU=4 cannot run in this lease" in reported.pop("from a task")
    assert set(reported.values()) == {INSIDE}
    assert len(reported) == 8
    assert runs.said("escaped") == []
    assert len(runs.said("refused")) == 4
    assert any("tried to remove" in line for line in runs.said("note"))


def test_work_that_workers_start_is_rewritten_too_where_the_hook_travels_with_it(runs: Runs) -> None:
    reported = runs.run(
        """
ids = connect()

@ray.remote(num_cpus=0.5)
def outer():
    @ray.remote(num_cpus=0.5)
    def inner():
        return ray.get(where.options(scheduling_strategy="SPREAD").remote())

    own = placement_group([{"CPU": 1}])
    found = {
        "nested": where.remote(),
        "nested spread": where.options(scheduling_strategy="SPREAD").remote(),
        "nested twice": inner.options(scheduling_strategy="DEFAULT").remote(),
        "nested group": where.options(scheduling_strategy=InGroup(own, 0)).remote(),
    }
    found = {name: ray.get(reference) for name, reference in found.items()}
    remove_placement_group(own)
    remove_placement_group(ray.util.get_current_placement_group() or own)
    return found

for place, options in {"inside": {}, "outside": dict(scheduling_strategy=OnNode(ids["small"], soft=False))}.items():
    for name, found in ray.get(outer.options(**options).remote(), timeout=60).items():
        told(f"{name} from {place}", found)
""",
        escapes=True,
        GRID_CAPTURE_WORKERS="1",
    )

    assert len(reported) == 8
    assert set(reported.values()) == {INSIDE}


def test_another_cluster_than_the_lease_s_is_reported_and_its_work_is_left_alone(runs: Runs) -> None:
    """There is one cluster here, so it is the lease that is another's."""
    reported = runs.run("""
if len(sys.argv) == 1:
    another = {"GRID_PLACEMENT_GROUP": "ab" * 18, "RAY_ADDRESS": "192.0.2.1:6379"}
    os.execve(sys.executable, [sys.executable, __file__, os.environ["RAY_ADDRESS"]], os.environ | another)
connect(address=sys.argv[1])
print("task:", ray.get(where.remote())[1])
print("driver:", ray.util.get_current_placement_group())
""")

    assert reported == {"task": "None", "driver": "None"}
    (line,) = runs.said("escaped")
    assert line.endswith("the program connected to a cluster other than the lease's")
    assert runs.jobs() == []
