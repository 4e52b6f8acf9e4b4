"""Boosts end by themselves, last when renewed, and survive everything around them."""

import json
import os
import signal
import subprocess
import time
from datetime import datetime
from typing import Any

import pytest
from live_grid import GRID, ONE_LENDER, LiveGrid, until

from distributed_grid.errors import BoostNotFound, NotRenewable

pytestmark = pytest.mark.cluster

CONFIG = ONE_LENDER
CHANGES_ITS_CLUSTER = True


def expiry(boost: dict) -> datetime:
    return datetime.fromisoformat(boost["expires_at"])


def test_a_boost_expires_with_no_client_around(grid: LiveGrid) -> None:
    boosts = [grid.boost("head", "cpu", 2, duration_seconds=60, delivery=way) for way in ("reserve", "transfer")]
    grid.total_is("head", "CPU", 4.0)
    for boost in boosts:
        grid.client.renew_boost(boost["boost_id"], 1)
    grid.client.close()

    # Only Ray is asked from here on.
    until(grid.is_at_base, 15, "every node back at base")
    grid.settled()

    assert grid.client.boost_status()["boosts"] == []
    assert any("expired" in event["message"] for event in grid.events("returned"))


def test_a_boost_warns_before_it_expires(grid: LiveGrid) -> None:
    boost = grid.boost("head", "cpu", 1, duration_seconds=6)  # it warns when half of that is over

    warning = until(lambda: [w for w in grid.shown(boost)["warnings"] if "expires in" in w], 10)

    assert f"grid boost renew {boost['boost_id'][:8]}" in warning[0]
    assert any(event["boost_id"] == boost["boost_id"] for event in grid.events("expiring"))


def test_a_renewed_boost_lasts_longer(grid: LiveGrid) -> None:
    boost = grid.boost("head", "cpu", 1, duration_seconds=60)

    renewed = grid.json("boost", "renew", boost["boost_id"][:10], "--duration", "3000")

    assert renewed["boost_id"] == boost["boost_id"]
    assert (expiry(renewed) - expiry(boost)).total_seconds() > 2000
    again = grid.json("boost", "renew", boost["boost_id"])
    assert expiry(again) > expiry(renewed)
    grid.release(boost)
    with pytest.raises(BoostNotFound):
        grid.client.renew_boost(boost["boost_id"])


def test_a_boost_that_is_going_home_is_not_renewed(grid: LiveGrid, tmp_path) -> None:
    from live_grid import hold_until, on

    boost = grid.boost("head", "cpu", 2)
    stop = tmp_path / "stop"
    work = hold_until.options(**on("head", num_cpus=4)).remote(str(stop))
    until(lambda: grid.free("head").get("CPU", 0.0) == 0.0, 15)
    grid.release(boost, wait_seconds=0)

    with pytest.raises(NotRenewable):
        grid.client.renew_boost(boost["boost_id"])

    stop.touch()
    until(lambda: grid.state(boost) == "released", 15)
    del work


def test_auto_renew_ends_with_its_process(grid: LiveGrid) -> None:
    keeper = subprocess.Popen(
        [GRID, "boost", "request", "head", "cpu", "1", "--duration", "4", "--auto-renew", "--json"],
        env=grid.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        first = until(lambda: grid.client.boost_status()["boosts"], 15)[0]
        until(lambda: expiry(grid.shown(first)) > expiry(first), 10, "renewed")
    finally:
        os.kill(keeper.pid, signal.SIGKILL)
        keeper.wait()

    until(lambda: grid.state(first) == "released", 15, "expired without its process")
    until(grid.is_at_base, 5)


def test_boosts_survive_a_controller_that_is_killed(grid: LiveGrid) -> None:
    moved = grid.boost("head", "cpu", 2, duration_seconds=600)
    reserved = grid.boost("head", "cpu", 1, delivery="reserve", duration_seconds=600)
    url = json.loads(grid.home.controller.read_text())["url"]
    old = grid.controller_pid()

    os.kill(old, signal.SIGKILL)
    # It retries over the restart; a busy machine may need longer for one than it does.
    status = until(lambda: (s := grid.cli("boost", "status", "--json")).returncode == 0 and s, 15, "it is back")

    assert {b["boost_id"]: b["state"] for b in json.loads(status.stdout)["boosts"]} == {
        moved["boost_id"]: "active",
        reserved["boost_id"]: "active",
    }
    until(lambda: grid.controller_pid() != old, 10, "the new controller's record")  # it answers a moment before
    assert json.loads(grid.home.controller.read_text())["url"] == url
    grid.total_is("head", "CPU", 4.0)
    grid.total_is("lender", "CPU", 4.0)
    assert grid.release(moved, wait_seconds=20)["state"] == "released"
    assert grid.release(reserved, wait_seconds=20)["state"] == "released"


def test_a_retried_request_is_answered_with_the_same_boost(grid: LiveGrid) -> None:
    body = {"target_node": "head", "resource_type": "cpu", "amount": "1"}

    first = grid.client.request_boost(body, idempotency_key="the-same")
    os.kill(grid.controller_pid(), signal.SIGKILL)
    second = grid.client.request_boost(body, idempotency_key="the-same")

    assert first["boost_id"] == second["boost_id"]
    assert len(grid.client.boost_status()["boosts"]) == 1


def test_deleting_the_state_file_ends_all_boosts_and_the_capacity_is_returned(grid: LiveGrid) -> None:
    grid.boost("head", "cpu", 2)
    grid.boost("head", "cpu", 1, delivery="reserve")
    until(lambda: [one["active"] for one in json.loads(grid.home.boosts.read_text())["boosts"]] == [True, True], 5)

    grid.home.boosts.unlink()

    until(lambda: not grid.client.boost_status()["boosts"], 15, "all boosts ended")
    until(grid.is_at_base, 5)
    assert grid.events("state_file_removed")
    assert grid.boost("head", "cpu", 1)["state"] == "active"  # and the system goes on


def test_deleting_the_state_file_while_the_controller_is_down_ends_them_too(grid: LiveGrid) -> None:
    grid.boost("head", "cpu", 2)
    grid.boost("head", "cpu", 1, delivery="reserve")
    time.sleep(0.1)  # the outcome is written a moment after the answer
    pid = grid.controller_pid()

    os.kill(pid, signal.SIGSTOP)
    grid.home.boosts.unlink()
    os.kill(pid, signal.SIGKILL)

    until(lambda: grid.controller_pid() != pid, 20)
    until(lambda: not grid.client.boost_status()["boosts"], 15)
    until(grid.is_at_base, 15, "the capacity went home without a record of the loan")
    grid.settled()


def test_the_state_file_can_be_read_by_a_person(grid: LiveGrid) -> None:
    boost = grid.boost("head", "cpu", 1.5, duration_seconds=100)

    def stored() -> dict:
        """It is there a moment later than its intent, which is a line in the file of changes."""
        boosts = json.loads(grid.home.boosts.read_text())["boosts"]
        return boosts[0] if boosts else {"active": False}

    until(lambda: stored()["active"], 5)
    assert stored()["id"] == boost["boost_id"]
    assert (stored()["source_node"], stored()["target_node"], stored()["resource_type"]) == ("lender", "head", "cpu")
    assert stored()["amount"] == 1.5
    assert stored()["expires_at"] > stored()["allocated_at"]
    assert grid.home.boosts.stat().st_mode & 0o777 == 0o600


def test_every_request_is_audited(grid: LiveGrid) -> None:
    boost = grid.boost("head", "cpu", 1)
    grid.release(boost)
    refused = grid.cli("boost", "request", "head", "cpu", "99")

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in grid.home.audit_log.read_text().splitlines()]

    def is_refusal(line: dict[str, Any]) -> bool:
        return line["event"] == "refused" and "99 cpu for head: No nodes have" in line["message"]

    assert refused.returncode == 4
    until(lambda: any(is_refusal(line) for line in lines()), 5, "the refusal in the audit log")  # lines are queued
    reported = [line["event"] for line in lines() if line["boost_id"] == boost["boost_id"]]
    assert reported == ["granted", "release_asked", "returned"]
    assert all(line["who"] for line in lines())


def test_the_same_cluster_started_again_gets_its_unexpired_boosts_back(grid: LiveGrid) -> None:
    moved = grid.boost("head", "cpu", 2, duration_seconds=600)
    reserved = grid.boost("head", "cpu", 1, delivery="reserve", duration_seconds=600)
    brief = grid.boost("head", "cpu", 1, duration_seconds=2)

    grid.stop()
    until(lambda: expiry(brief).timestamp() < time.time())
    grid.start()

    grid.total_is("head", "CPU", 4.0)
    grid.total_is("lender", "CPU", 4.0)
    until(lambda: grid.free("lender").get("CPU", 0.0) == 3.0, 15, "the reservation made again")
    states = {b["boost_id"]: b["state"] for b in grid.client.boost_status()["boosts"]}
    assert states == {moved["boost_id"]: "active", reserved["boost_id"]: "active"}


def test_another_cluster_gets_none_of_the_boosts_unless_it_adopts_them(grid: LiveGrid) -> None:
    assert grid.config is not None
    moved = grid.boost("head", "cpu", 2, duration_seconds=600)
    reserved = grid.boost("head", "cpu", 1, delivery="reserve", duration_seconds=600)
    both = {moved["boost_id"], reserved["boost_id"]}

    grid.stop()
    grid.config.write_text(CONFIG.replace("one-lender", "another"))
    started = grid.cli("cluster", "start", "--config", str(grid.config))
    assert started.returncode == 0, started.stderr
    grid.connect()
    assert "The cluster 'one-lender' (nodes head, lender) has 2 boosts in this GRID_HOME" in started.stderr
    assert "start it with --adopt" in started.stderr
    assert grid.client.boost_status()["boosts"] == []
    assert grid.is_at_base()
    assert "resource_boosts.json.of-one-lender" in grid.json("cluster", "status")["problems"][0]

    grid.stop()
    started = grid.cli("cluster", "start", "--adopt", "--config", str(grid.config))
    assert started.returncode == 0, started.stderr
    grid.connect()
    assert "took over 2 boosts of the cluster 'one-lender'" in started.stderr
    assert {b["boost_id"]: b["state"] for b in grid.client.boost_status()["boosts"]} == dict.fromkeys(both, "active")
    grid.total_is("head", "CPU", 4.0)
    grid.total_is("lender", "CPU", 4.0)
    until(lambda: grid.free("lender").get("CPU", 0.0) == 3.0, 15, "the reservation made again")
    assert not grid.json("cluster", "status")["problems"]
    assert not list(grid.home.path.glob("*.of-*"))
