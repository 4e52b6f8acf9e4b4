"""The auditor on a real cluster: changes behind grid's back, as a person with a Ray driver could make them."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from live_grid import GRID, NOTICE_SOON, TWO_LENDERS, LiveGrid, hold_until, on, until
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from distributed_grid.execution.groups import group_handle

pytestmark = pytest.mark.cluster

CONFIG = TWO_LENDERS
ENV = NOTICE_SOON


@pytest.fixture(autouse=True)
def _sound_at_the_end(grid: LiveGrid) -> Iterator[None]:
    yield
    until(lambda: grid.cli("audit").returncode == 0, 60, "a sound cluster")


def report(grid: LiveGrid, *options: str, code: int | None = 0) -> Any:
    done = grid.cli("audit", *options, "--json")
    assert code in (None, done.returncode), f"{done.returncode}: {done.stdout} {done.stderr}"
    return json.loads(done.stdout)


def kinds(findings: Any) -> set[str]:
    return {finding["code"] for finding in findings}


@ray.remote
class Sleeper:
    def is_there(self) -> bool:
        return True


def test_a_cluster_at_work_is_sound(grid: LiveGrid, tmp_path: Path) -> None:
    boost = grid.boost("head", "cpu", 2, source_node="one")
    grid.boost("head", "cpu", 1, delivery="reserve", source_node="two")
    grid.boost("head", "licence", 1)
    work = hold_until.options(**on("head", num_cpus=4)).remote(str(tmp_path / "go"))
    until(lambda: grid.free("head").get("CPU", 0.0) == 0.0)

    found = report(grid)

    assert found["sound"] is True
    assert (found["nodes"], found["boosts"], found["groups"]) == (3, 3, 1)
    assert "OK: checked 3 nodes, 3 boosts, 1 group" in grid.cli("audit").stdout
    (tmp_path / "go").touch()
    assert ray.get(work) == "head"
    grid.release(boost)


def test_a_node_that_was_resized_by_hand_is_found_and_put_back(grid: LiveGrid) -> None:
    grid.resize("two", CPU=1.0, surprise=3.0)

    found = report(grid, code=9)
    assert {(f["code"], f["node"], f["resource_type"], f["off_by"]) for f in found["findings"]} == {
        ("drifted_total", "two", "cpu", -3),
        ("drifted_total", "two", "surprise", 3),
    }
    reported = grid.cli("audit")
    assert reported.returncode == 9
    assert "no marker explains that: another program changed it" in reported.stdout
    assert "grid audit --repair" in reported.stdout
    assert grid.resize("two")["CPU"] == 1.0, "an audit changes nothing"

    done = report(grid, "--repair")
    assert done["sound"] is True
    assert kinds(done["repaired"]) == {"drifted_total"}
    until(grid.is_at_base, 10)


def test_a_lender_that_was_grown_by_hand_shrinks_again(grid: LiveGrid) -> None:
    grid.boost("head", "cpu", 2, source_node="one")
    grid.resize("one", CPU=4.0)

    done = report(grid, "--repair")

    assert done["sound"] is True
    grid.total_is("one", "CPU", 2.0)


def test_a_total_in_use_is_left_and_named_and_nothing_is_killed(grid: LiveGrid, tmp_path: Path) -> None:
    grid.settled()
    grid.resize("two", CPU=6.0)
    work = hold_until.options(**on("two", num_cpus=6), name="somebodys_work").remote(str(tmp_path / "go"))
    until(lambda: grid.free("two").get("CPU", 0.0) == 0.0)

    left = report(grid, "--repair", code=9)

    assert {"drifted_total", "work_outside_lease"} <= kinds(left["findings"])
    (outside,) = [f for f in left["findings"] if f["code"] == "work_outside_lease"]
    assert outside["off_by"] == 2
    assert all(f["left_because"] for f in left["findings"])
    if "somebodys_work" not in " ".join(outside["work"]):
        until(lambda: "somebodys_work" in grid.cli("audit").stdout, 20, "the work has a name")
    (tmp_path / "go").touch()
    assert ray.get(work, timeout=60) == "two"
    until(grid.is_at_base, 20, "back by itself, once it was asked for")


def test_a_group_that_belongs_to_no_boost_goes_within_a_second(grid: LiveGrid) -> None:
    group = placement_group([{"CPU": 1}], name="grid-boost-of-nobody", lifetime="detached")
    assert group.wait(60)

    done = report(grid, "--repair")

    assert done["sound"] is True
    assert placement_group_table(group)["state"] == "REMOVED"
    # Reconciler comes by once a second, so either of them may have been first.
    assert "unknown_group" in kinds(done["repaired"]) or grid.client.audit_log(event="unknown_group")


def test_a_second_group_with_a_boosts_name_is_found_and_removed_when_nothing_runs_in_it(grid: LiveGrid) -> None:
    boost = grid.boost("head", "cpu", 1, delivery="reserve", source_node="one")
    group = placement_group([{"CPU": 1}], name=f"grid-boost-{boost['boost_id']}", lifetime="detached")
    assert group.wait(60)
    pinned = PlacementGroupSchedulingStrategy(group)
    actor = Sleeper.options(num_cpus=1, scheduling_strategy=pinned).remote()
    ray.get(actor.is_there.remote(), timeout=60)

    left = report(grid, "--repair", code=9)
    assert ray.get(actor.is_there.remote(), timeout=60), "nothing is killed"
    assert kinds(left["findings"]) == {"unknown_group", "work_outside_lease"}
    assert all("actor" in line for finding in left["findings"] for line in finding["work"])

    ray.kill(actor)
    until(lambda: report(grid, "--repair", code=None)["sound"], 30)
    assert placement_group_table(group)["state"] == "REMOVED"
    assert grid.shown(boost)["placement_group"] == boost["placement_group"]


def test_a_reservation_that_was_removed_by_hand_is_made_again(grid: LiveGrid) -> None:
    boost = grid.boost("head", "cpu", 1, delivery="reserve", source_node="one")
    remove_placement_group(group_handle(boost["placement_group"]))

    done = report(grid, "--repair")

    assert done["sound"] is True
    assert grid.shown(boost)["placement_group"] != boost["placement_group"]


def test_a_file_that_was_edited_by_hand_is_found_and_written_again(grid: LiveGrid) -> None:
    boost = grid.boost("head", "cpu", 2, source_node="one")
    until(lambda: '"state": "active"' in grid.home.boosts.read_text())
    grid.home.boosts.write_text(grid.home.boosts.read_text().replace('"units": 20000', '"units": 90000'))

    found = report(grid, code=9)
    assert kinds(found["findings"]) == {"store_differs"}
    assert "checksum" in found["findings"][0]["detail"]

    done = report(grid, "--repair")
    assert done["sound"] is True
    stored = json.loads(grid.home.boosts.read_text())
    assert [(b["id"], b["units"]) for b in stored["boosts"]] == [(boost["boost_id"], 20000)]
    assert list(grid.home.path.glob("resource_boosts.json.broken-*"))


def test_work_past_its_grace_period_is_reported_and_ended_only_when_told(grid: LiveGrid, tmp_path: Path) -> None:
    grid.settled()
    boost = grid.boost("head", "cpu", 2, source_node="one", on_grace_end="hold")
    work = hold_until.options(**on("head", num_cpus=4), max_retries=0).remote(str(tmp_path / "never"))
    until(lambda: grid.free("head").get("CPU", 0.0) == 0.0)
    grid.release(boost, grace_seconds=0, wait_seconds=0)

    left = until(lambda: (r := report(grid, "--repair", code=None))["findings"] and r, 30, "it is found")
    assert [(f["boost_id"], f["code"]) for f in left["findings"]] == [(boost["boost_id"], "work_outside_lease")]
    assert "--kill" in left["findings"][0]["left_because"]
    assert not ray.wait([work], timeout=0)[0]

    until(lambda: grid.cli("audit", "--repair", "--kill").returncode == 0, 60)
    with pytest.raises(ray.exceptions.RayError):
        ray.get(work, timeout=60)
    until(grid.is_at_base, 10)


# -- the log -------------------------------------------------------------------------------------------------


def test_the_log_says_who_did_what_and_filters(grid: LiveGrid) -> None:
    boost = grid.boost("head", "cpu", 1, source_node="one")
    grid.release(boost)
    other = grid.boost("head", "cpu", 1, source_node="two")

    def events(*options: str) -> list[str]:
        return [entry["event"] for entry in grid.json("audit", "log", *options)["entries"]]

    assert events("--boost", boost["boost_id"][:8]) == ["granted", "release_asked", "returned"]
    assert events("--boost", boost["boost_id"][:8], "--event", "granted") == ["granted"]
    assert events("--boost", boost["boost_id"], "--limit", "1") == ["returned"]
    assert events("--node", "two", "--event", "granted", "--since", "1h")[-1] == "granted"
    assert events("--who", "nobody-of-that-name") == []
    assert events("--since", "2999-01-01") == []
    entries = grid.json("audit", "log", "--since", "10m")["entries"]
    assert [e["at"] for e in entries] == sorted(e["at"] for e in entries)
    line = grid.cli("audit", "log", "--boost", other["boost_id"][:8]).stdout
    assert "granted" in line
    assert other["boost_id"][:8] in line
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+ +granted", line)


@pytest.mark.parametrize("wrong", [("--since", "yesterday"), ("--limit", "0"), ("--limit", "many")])
def test_a_wrong_filter_is_said_to_be_wrong(grid: LiveGrid, wrong: tuple[str, str]) -> None:
    done = grid.cli("audit", "log", *wrong)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_the_log_can_be_followed(grid: LiveGrid) -> None:
    following = subprocess.Popen(
        [GRID, "audit", "log", "--event", "granted", "--since", "0s", "--follow", "--json"],
        env=grid.env | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert following.stdout is not None
        boosts: list[str] = []
        deadline = time.monotonic() + 30
        line = ""
        # It begins a moment after it was started: what is granted before that is not told.
        while not line and time.monotonic() < deadline:
            boosts.append(grid.boost("head", "cpu", 1)["boost_id"])
            grid.release(boosts[-1])
            line = following.stdout.readline() if _is_ready(following.stdout) else ""
        assert json.loads(line)["boost_id"] in boosts
        following.send_signal(signal.SIGINT)
        assert following.wait(60) == 0
    finally:
        following.kill()
        following.communicate()


def _is_ready(stream: Any) -> bool:
    import select

    return bool(select.select([stream], [], [], 0.3)[0])


def test_options_in_the_wrong_place_are_refused(grid: LiveGrid) -> None:
    assert grid.cli("audit", "--kill").returncode == 2
    assert grid.cli("audit", "--repair", "log").returncode == 2
