"""`kill -9` of the controller, again and again, and once at every place between two steps.

Whatever was acknowledged is kept, nothing is there twice, nothing half, and the nodes agree with the ledger.
"""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
import ray
from live_grid import LiveGrid, hold_until, until
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from test_conservation import CONFIG, WITH_FAULTS, random_request

from bench.storm import Storm
from distributed_grid.faults import Point
from distributed_grid.store.boost_file import BoostFile

__all__ = ["CONFIG", "WITH_FAULTS"]

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

# `make storm` has a hundred.
KILLS = int(os.environ.get("GRID_TEST_KILLS", "3"))
# A notice is given when another request needs a boost; tests/leases has its crashes.
POINTS = [point for point in Point if point is not Point.NOTICE_GIVEN]
CALLS = ("granted", "granted to expire", "renewed", "released")
_RAY_NAMES = {"cpu": "CPU", "memory": "memory", "license": "license"}


@pytest.fixture
def orders(grid: LiveGrid) -> Path:
    return grid.orders


def kill(grid: LiveGrid) -> None:
    os.kill(grid.controller_pid(), signal.SIGKILL)


def expected_totals(grid: LiveGrid, boosts: list[dict]) -> dict[str, dict[str, float]]:
    """base - lent + borrowed, of every node and kind."""
    totals: dict[str, dict[str, float]] = {name: dict(base) for name, base in grid.base.items()}
    for boost in boosts:
        if boost["delivery"] == "transfer" and boost["state"] == "active":
            ray_name = _RAY_NAMES[boost["resource_type"]]
            scale = 2**30 if ray_name == "memory" else 1
            parts = boost["parts"] or [boost]
            assert sum(part["amount"] for part in parts) == boost["amount"], "no part is missing"
            for part in parts:
                of_source, amount = totals[part["source_node"]], part["amount"] * scale
                of_source[ray_name] = of_source.get(ray_name, 0.0) - amount
                totals[boost["target_node"]][ray_name] = totals[boost["target_node"]].get(ray_name, 0.0) + amount
    return totals


def disagreement(grid: LiveGrid) -> str:
    """How Ray's totals, the groups and the file differ from what the controller says; empty if they agree."""
    boosts = grid.client.boost_status()["boosts"]
    if half := [boost for boost in boosts if boost["state"] not in ("active", "releasing")]:
        return f"half done: {half}"
    stored = {lease.id for lease in BoostFile(grid.home.boosts).load().leases}
    if stored != {boost["boost_id"] for boost in boosts}:
        return f"in the file: {stored}, known: {boosts}"
    for name, expected in expected_totals(grid, boosts).items():
        shown = grid.totals(name)
        off = {kind: (shown.get(kind, 0.0), e) for kind, e in expected.items() if abs(shown.get(kind, 0.0) - e) > 1e-3}
        if off:
            return f"{name} shows and should have: {off}"
    names = Counter(
        group["name"]
        for group in ray.util.placement_group_table().values()
        if group["state"] != "REMOVED" and group["name"].startswith("grid-boost-")
    )
    reserved = Counter(f"grid-boost-{boost['boost_id']}" for boost in boosts if boost["delivery"] == "reserve")
    return "" if names == reserved else f"groups: {names}, reservations: {reserved}"


def agrees(grid: LiveGrid) -> None:
    """Soon; what is there may go on changing meanwhile, as boosts expire."""
    reported = [""]

    def agreed() -> bool:
        reported[0] = disagreement(grid)
        return not reported[0]

    try:
        until(agreed, 5)
    except AssertionError:
        raise AssertionError(reported[0]) from None


def nothing_twice(grid: LiveGrid) -> None:
    keys = Counter(lease.idempotency_key for lease in BoostFile(grid.home.boosts).load().leases)
    assert not [key for key, count in keys.items() if count > 1]


def test_random_kills_under_load(grid: LiveGrid) -> None:
    chance = random.Random(7)
    storm = Storm(grid.home, random_request, calls=10**9)
    storm.start()
    try:
        for _ in range(KILLS):
            before = grid.controller_pid()
            time.sleep(chance.random())  # a random moment
            kill(grid)
            until(lambda: grid.controller_pid() != before, 30, "another controller")  # noqa: B023
            with storm.paused():
                agrees(grid)
                nothing_twice(grid)
                known = {boost["boost_id"] for boost in grid.client.boost_status()["boosts"]}
                assert storm.held.keys() <= known
        until(lambda: min(storm.counts[what] for what in CALLS) > 10, 30, "enough of each")
    finally:
        storm.stop()

    assert storm.trouble == []
    grid.release_everything()


def test_a_boost_from_three_lenders_stays_whole_in_a_storm_of_kills(grid: LiveGrid) -> None:
    """Three nodes lend all of their CPUs, while the controller is killed and eight clients want the rest."""
    boost = grid.boost("head", "cpu", 20)
    parts = {part["source_node"]: part["amount"] for part in boost["parts"]}
    assert parts == {"one": 8, "two": 8, "three": 4}
    storm = Storm(grid.home, random_request, calls=10**9)
    storm.start()
    try:
        for _ in range(KILLS):
            before = grid.controller_pid()
            kill(grid)
            until(lambda: grid.controller_pid() != before, 30, "another controller")  # noqa: B023
            assert grid.shown(boost)["parts"] == boost["parts"]
            grid.total_is("head", "CPU", 22.0)
    finally:
        storm.stop()
    agrees(grid)
    released = grid.release(boost, wait_seconds=30)
    assert released["state"] == "released"
    assert storm.trouble == []
    grid.release_everything()


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_between_any_two_steps(grid: LiveGrid, orders: Path, point: Point, tmp_path: Path) -> None:
    done = orders.with_name("orders.done")
    done.unlink(missing_ok=True)
    before = grid.controller_pid()
    orders.write_text(f"{point} kill")

    lent = grid.boost("head", "cpu", 2, duration_seconds=600)
    reserved = grid.boost("head", "gpu", 1, duration_seconds=600)
    assert grid.client.renew_boost(lent["boost_id"], 900)["state"] == "active"
    for boost in (lent, reserved):
        shown = grid.shown(boost)
        assert (shown["state"], shown["source_node"]) == ("active", boost["source_node"])
    agrees(grid)
    nothing_twice(grid)
    assert grid.client.release_boost(lent["boost_id"], {"amount": 1, "wait_seconds": 10})["state"] == "released"
    assert grid.shown(lent)["amount"] == 1
    agrees(grid)
    group = PlacementGroup(ray.PlacementGroupID(bytes.fromhex(grid.shown(reserved)["placement_group"])))
    inside = PlacementGroupSchedulingStrategy(group)
    work = hold_until.options(num_cpus=0, num_gpus=1, scheduling_strategy=inside).remote(str(tmp_path / "never"))
    until(lambda: grid.client.boost(reserved["boost_id"]) and ray_uses(grid, reserved), 20, "the work runs")
    assert grid.release(lent, wait_seconds=20)["state"] == "released"
    assert grid.release(reserved, grace_seconds=0, wait_seconds=20)["state"] == "released"

    until(done.exists, 5, f"the kill at {point}")
    until(lambda: grid.controller_pid() != before, 30, "another controller")
    until(grid.is_at_base, 10, "every node at base")
    assert grid.client.boost_status()["boosts"] == []
    with pytest.raises(ray.exceptions.RayError):
        ray.get(work, timeout=60)
    agrees(grid)


def ray_uses(grid: LiveGrid, boost: dict) -> bool:
    """Whether something holds the group's GPU."""
    group = grid.shown(boost)["placement_group"]
    return grid.free(boost["source_node"]).get(f"GPU_group_{group}", 0.0) == 0.0


def test_every_point_is_passed_by_the_life_of_a_boost(orders: Path) -> None:
    passed = Counter(orders.with_name("orders.passed").read_text().split())

    assert passed.keys() == {str(point) for point in POINTS}
