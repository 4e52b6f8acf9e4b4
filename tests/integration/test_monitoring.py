"""What nodes really do, as the controller of a real cluster tells it: measured, lent, gone, and what waits.

Of nodes that are silent: test_silent_nodes.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from live_grid import GB, NOTICE_SOON, TWO_LENDERS, LiveGrid, hold_until, on, until
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from watching import NAMES, PATIENCE_S, nodes, pressures, probe_pid, probes, samples, sought

from distributed_grid.model.times import parse_instant

pytestmark = pytest.mark.cluster

CONFIG = TWO_LENDERS
ENV = NOTICE_SOON
CHANGES_ITS_CLUSTER = True
CLOSELY = TWO_LENDERS.replace("monitoring_interval_seconds: 4", "monitoring_interval_seconds: 1")
FILLED = 1200 * 10**6


@pytest.fixture(scope="module", autouse=True)
def left_meanwhile(grid: LiveGrid) -> dict[str, str]:
    """grid again, with a look at all nodes each second: most of what is shown here waits for the next.

    The probes that were in the cluster while grid was not.
    """
    assert grid.config is not None
    pressures(grid, "cpu")
    until(lambda: probes().keys() == set(grid.ids.values()), what="each node has one")
    grid.json("stop")
    left = probes()
    grid.config.write_text(CLOSELY)
    started = grid.cli("start", "--address", grid.address, "--config", str(grid.config))
    assert started.returncode == 0, started.stderr
    return left


@pytest.fixture
def end(tmp_path: Path) -> Iterator[Path]:
    """The file for which tasks of this test wait."""
    path = tmp_path / "end"
    yield path
    path.touch()


@ray.remote(num_cpus=1, max_retries=0)
def burn_until(path: str) -> None:
    while not Path(path).exists():
        sum(range(100_000))


@ray.remote(num_cpus=1, max_retries=0)
def fill_until(path: str, size: int) -> int:
    held = b"x" * size
    while not Path(path).exists():
        time.sleep(0.02)
    return len(held)


# -- gone and back with grid ---------------------------------------------------------------------------------


def test_grid_takes_its_probes_along_when_it_goes(grid: LiveGrid, left_meanwhile: dict[str, str]) -> None:
    assert left_meanwhile == {}
    assert pressures(grid, "cpu").keys() == set(NAMES)
    until(lambda: probes().keys() == set(grid.ids.values()), what="each node has one")


# -- measured ------------------------------------------------------------------------------------------------


def test_cpu_burned_on_one_node_is_pressure_on_that_node_and_on_no_other(grid: LiveGrid, end: Path) -> None:
    pressures(grid, "cpu")
    burning = [burn_until.options(**on("one")).remote(str(end)) for _ in range(2)]

    # On a busy machine tasks get less than a core each; but theirs is many times what the other nodes use.
    pressed = sought(
        lambda: pressures(grid, "cpu"),
        lambda found: found["one"] > 0.1 and found["one"] > 3 * max(found["head"], found["two"]),
        "one is pressed, and no other",
    )
    until(lambda: max(value or 0.0 for value in remembered(grid)) > 0.1, PATIENCE_S, "it is remembered")
    shown = nodes(grid)
    end.touch()
    ray.get(burning, timeout=PATIENCE_S)

    assert all(shown[name]["shares_its_host"] for name in NAMES)  # so what counts is each node's own use
    sought(lambda: pressures(grid, "cpu"), lambda found: found["one"] < pressed["one"] / 2, "relieved")


def remembered(grid: LiveGrid) -> list[float | None]:
    series: list[float | None] = grid.client.node("one")["history"]["series"]["cpu"]
    return series


def test_memory_filled_on_one_node_is_pressure_on_that_node_and_on_no_other(grid: LiveGrid, end: Path) -> None:
    before = pressures(grid, "memory")
    more = FILLED / (2 * GB)
    filling = fill_until.options(**on("two")).remote(str(end), FILLED)

    pressed = sought(
        lambda: pressures(grid, "memory"), lambda found: found["two"] - before["two"] > more * 0.95, "two is pressed"
    )
    until(lambda: [e for e in grid.events("pressure_high") if e["node"] == "two"], PATIENCE_S, "told that it is")
    own = samples(grid, "grid_node_measured_memory_used_bytes")
    end.touch()
    assert ray.get(filling, timeout=PATIENCE_S) == FILLED

    assert own[("two", "own")] > FILLED
    for other in ("head", "one"):
        assert abs(pressed[other] - before[other]) < more / 4
        assert own[(other, "own")] < FILLED
    sought(lambda: pressures(grid, "memory"), lambda found: found["two"] - before["two"] < more / 2, "relieved")
    reported = until(
        lambda: [e for e in grid.events("pressure_low") if e["node"] == "two"], PATIENCE_S, "told that it is"
    )
    assert "two is no longer under pressure: memory" in reported[-1]["message"]
    assert {e["node"] for e in grid.events("pressure_high") if "memory" in e["message"]} == {"two"}


def test_other_programs_load_shows_on_every_node_of_the_machine_and_stops_no_boost(grid: LiveGrid) -> None:
    spin = ["nice", "-n", "19", sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin) for _ in range(os.cpu_count() or 1)]
    try:
        shown = sought(
            lambda: nodes(grid),
            lambda found: all(found[n]["pressure"] and found[n]["pressure"]["cpu"] >= 0.8 for n in NAMES),
            "all nodes are as busy as their machine",
        )
        status = " ".join(grid.cli("cluster", "status").stdout.split())
        boost = grid.boost("head", "cpu", 1, source_node="one", delivery="auto", wait_seconds=PATIENCE_S)
    finally:
        for other in others:
            other.kill()
            other.wait()

    assert all(shown[n]["pressure"]["own_cpu"] <= shown[n]["pressure"]["cpu"] for n in NAMES)
    assert "its machine is busy" in status
    assert "load" in status
    assert boost["state"] == "active"  # on one machine, nothing moves


# -- lent and borrowed ---------------------------------------------------------------------------------------


def test_lent_and_borrowed_amounts_are_the_difference_of_rays_own_totals_to_the_base(grid: LiveGrid) -> None:
    pressures(grid, "cpu")
    grid.boost("head", "cpu", 2, source_node="one", delivery="transfer", wait_seconds=PATIENCE_S)
    grid.boost("head", "memory", 1, source_node="two", delivery="transfer", wait_seconds=PATIENCE_S)
    grid.total_is("head", "CPU", 4.0)
    grid.total_is("head", "memory", 3.0 * GB)

    for name, node in nodes(grid).items():
        base, total = grid.base[name], grid.totals(name)
        for kind, ray_name, scale in (("cpu", "CPU", 1), ("memory", "memory", GB)):
            moved = node["borrowed"].get(kind, 0) - node["lent"].get(kind, 0)
            assert moved * scale == total[ray_name] - base[ray_name], (name, kind)
            assert (node["base"][kind] * scale, node["total"][kind] * scale) == (base[ray_name], total[ray_name])

    # Totals are those of the last look at Ray.
    reported = sought(lambda: samples(grid, "grid_node_cpu_cores"), lambda s: s[("total", "one")] == 2, "in metrics")
    assert (reported[("lent", "one")], reported[("borrowed", "head")], reported[("base", "one")]) == (2.0, 2.0, 4.0)
    reported = sought(
        lambda: samples(grid, "grid_node_memory_bytes"), lambda s: s[("total", "head")] > 2 * GB, "metrics"
    )
    assert (reported[("lent", "two")], reported[("total", "head")], reported[("base", "head")]) == (GB, 3 * GB, 2 * GB)


def test_what_is_reserved_is_lent_too_and_stays_with_the_lender(grid: LiveGrid) -> None:
    pressures(grid, "cpu")
    grid.boost("head", "cpu", 1, source_node="two", delivery="reserve", wait_seconds=PATIENCE_S)

    found = sought(lambda: nodes(grid)["two"], lambda node: node["free"]["cpu"] == 3, "reserved")

    assert (found["lent"]["cpu"], nodes(grid)["head"]["borrowed"]["cpu"]) == (1, 1)
    assert (grid.totals("two")["CPU"], grid.free("two")["CPU"]) == (4.0, 3.0)


# -- gone, back, under another controller --------------------------------------------------------------------


def test_a_node_that_dies_disappears_and_is_measured_anew_when_it_is_back(grid: LiveGrid) -> None:
    pressures(grid, "cpu")
    old = grid.ids["two"]

    grid.kill_node("two")
    until(lambda: "two" not in grid.live_nodes(), PATIENCE_S, "Ray knows that it is dead")
    gone = sought(lambda: nodes(grid)["two"], lambda node: node["state"] == "down", "down")
    until(lambda: ("two",) not in samples(grid, "grid_node_up"), PATIENCE_S, "no series")
    left = [*samples(grid, "grid_node_cpu_cores"), *samples(grid, "grid_node_pressure_ratio")]

    # It is configured, so its name stays; nothing is told of it as if it were there.
    assert (gone["alive"], gone["pressure"], gone["measured"], gone["age_seconds"]) == (False, None, None, None)
    assert gone["total"].get("cpu", 0) == 0
    assert not [labels for labels in left if "two" in labels]
    until(lambda: old not in probes(), PATIENCE_S, "its probe is forgotten")

    grid.start_node("two")
    assert 0 <= pressures(grid, "cpu")["two"] <= 1
    back = nodes(grid)["two"]
    assert back["node_id"] == grid.ids["two"] != old
    until(lambda: probes().keys() == set(grid.ids.values()), PATIENCE_S, "one probe for each node")
    history = grid.client.node("two")["history"]
    before = [at for at in history["times"] if parse_instant(at) < parse_instant(back["seen_since"])]
    assert not [value for value in history["series"]["cpu"][: len(before)] if value is not None]


def test_a_new_controller_goes_on_with_the_same_probes(grid: LiveGrid) -> None:
    pressures(grid, "cpu")
    killed, before = grid.controller_pid(), {name: probe_pid(grid.ids[name]) for name in NAMES}

    os.kill(killed, signal.SIGKILL)
    until(lambda: grid.controller_pid() != killed, PATIENCE_S, "another controller")

    pressures(grid, "cpu")
    assert {name: probe_pid(grid.ids[name]) for name in NAMES} == before


# -- what waits ----------------------------------------------------------------------------------------------


def waiting(grid: LiveGrid, **like: Any) -> dict[str, Any] | None:
    """The demand that has these values."""
    found = [one for one in grid.client.demand()["demand"] if all(one[key] == value for key, value in like.items())]
    return found[0] if found else None


def await_demand(grid: LiveGrid, **like: Any) -> dict[str, Any]:
    return until(lambda: waiting(grid, **like), PATIENCE_S, f"demand {like}")


def no_demand(grid: LiveGrid) -> None:
    until(lambda: not grid.client.demand()["demand"], PATIENCE_S, "nothing waits")


def test_a_task_for_a_busy_node_waits_for_capacity_there(grid: LiveGrid, end: Path) -> None:
    grid.settled()
    holding = hold_until.options(**on("one", num_cpus=4)).remote(str(end))
    until(lambda: grid.free("one").get("CPU", 0.0) == 0.0, PATIENCE_S, "one is full")
    pinned = [hold_until.options(**on("one", num_cpus=2)).remote(str(end)) for _ in range(2)]

    detail = "one has 0 CPUs of 2 CPUs free"
    found = await_demand(grid, labels=["grid/name=one"], count=2, queued_on={"one": 2}, detail=detail)

    assert [bundle["cpu"] for bundle in found["resources"]] == [2]
    assert (found["reason"], found["wanted_on"], found["could_run_on"]) == ("waiting_for_capacity", ["one"], ["one"])
    again = until(lambda: waiting(grid, labels=["grid/name=one"]), PATIENCE_S, "still there")
    assert again["since"] == found["since"]
    assert again["waited_seconds"] >= found["waited_seconds"]
    assert [one["shape"] for one in grid.client.node("one")["demand"]] == [found["shape"]]
    assert grid.client.node("two")["demand"] == []
    counted = samples(grid, "grid_pending_requests")
    assert counted == {("waiting_for_capacity",): 2.0, ("infeasible",): 0.0}

    end.touch()
    assert set(ray.get([holding, *pinned], timeout=PATIENCE_S)) == {"one"}
    no_demand(grid)


def test_what_no_node_can_carry_is_infeasible_until_one_was_lent_enough(grid: LiveGrid, end: Path) -> None:
    grid.settled()
    end.touch()
    large = hold_until.options(**on("one", num_cpus=6)).remote(str(end))
    elsewhere = hold_until.options(**on("nowhere", num_cpus=1)).remote(str(end))

    found = await_demand(grid, labels=["grid/name=one"], reason="infeasible")
    lost = await_demand(grid, labels=["grid/name=nowhere"], reason="infeasible")

    assert found["detail"] == "its labels match only one, which has 4 CPUs"
    assert (lost["detail"], lost["wanted_on"]) == ("no node has these labels", [])
    ray.cancel(elsewhere, force=True)
    grid.boost("one", "cpu", 2, source_node="two", delivery="transfer", wait_seconds=PATIENCE_S)
    assert ray.get(large, timeout=PATIENCE_S) == "one"
    no_demand(grid)


def test_what_only_the_hardware_of_a_node_can_serve_waits_for_that_hardware(grid: LiveGrid, end: Path) -> None:
    end.touch()
    wanted = hold_until.options(num_cpus=1, accelerator_type="H200").remote(str(end))

    found = await_demand(grid, shape="1 CPU pinned by accelerator_type:H200", reason="infeasible")

    assert (found["detail"], found["could_run_on"]) == ("no node has accelerator_type:H200", [])
    ray.cancel(wanted, force=True)
    no_demand(grid)


def test_placement_groups_wait_for_capacity_or_for_ever(grid: LiveGrid, end: Path) -> None:
    grid.settled()
    holding = hold_until.options(**on("one", num_cpus=4)).remote(str(end))
    until(lambda: grid.free("one").get("CPU", 0.0) == 0.0, PATIENCE_S, "one is full")
    groups = [
        placement_group([{"CPU": 4}] * 2, strategy="STRICT_SPREAD"),
        placement_group([{"CPU": 4}] * 3, strategy="STRICT_SPREAD"),
    ]

    late = await_demand(grid, strategy="STRICT_SPREAD", reason="waiting_for_capacity")
    never = await_demand(grid, strategy="STRICT_SPREAD", reason="infeasible")

    assert late["shape"] == "placement group, STRICT_SPREAD: 2 x (4 CPUs)"
    assert sorted(late["could_run_on"]) == ["one", "two"]
    assert never["detail"] == "it needs 3 nodes, and 2 are large enough"
    end.touch()
    ray.get(holding, timeout=PATIENCE_S)
    ray.get(groups[0].ready(), timeout=PATIENCE_S)
    for group in groups:
        remove_placement_group(group)
    no_demand(grid)


def test_a_task_waits_for_its_placement_group_though_nodes_are_idle(grid: LiveGrid, end: Path) -> None:
    grid.settled()
    group = placement_group([{"CPU": 1}])
    ray.get(group.ready(), timeout=PATIENCE_S)
    inside = hold_until.options(num_cpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(group))
    tasks = [inside.remote(str(end)) for _ in range(2)]

    in_use = {"reason": "waiting_for_capacity", "detail": "its placement group is in use"}
    found = await_demand(grid, placement_group=group.id.hex(), count=1, **in_use)

    assert [bundle["cpu"] for bundle in found["resources"]] == [1]
    end.touch()
    ray.get(tasks, timeout=PATIENCE_S)
    remove_placement_group(group)
    no_demand(grid)
