"""A real controller whose disk is full: it refuses what it could not keep, and what is lent still returns."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from disks import filled, small_disk
from live_grid import LiveGrid, until

from distributed_grid.errors import AccessDenied, StoreBroken
from distributed_grid.store.home import GridHome

pytestmark = pytest.mark.cluster

CONFIG = """
name: full-disk-test
embedded: true
resource_sharing: {enabled: true}
nodes:
- {name: head, role: master, cpu_count: 2, memory_gb: 2, resource_sharing: {can_share: false}}
- {name: lender, cpu_count: 6, memory_gb: 4}
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGrid]:
    folder = tmp_path_factory.mktemp("small")
    with small_disk(folder / "home", "1m"):
        grid = LiveGrid(folder, CONFIG)
        try:
            grid.start()
            yield grid
        finally:
            grid.stop()


def test_a_token_that_was_revoked_while_the_disk_was_full_stays_revoked(small: LiveGrid, tmp_path: Path) -> None:
    token = small.json("token", "create", "eve", "--scope", "view")["token"]
    home = GridHome(tmp_path / "eve")

    def eve(*command: str, **options: str) -> int:
        return small.cli(*command, env={"GRID_HOME": str(home.path)}, **options).returncode

    assert eve("login", small.client.url(), stdin=token) == 0
    assert eve("boost", "status") == 0

    tokens = small.home.path / "tokens.json"
    before = tokens.read_bytes()
    with filled(small.home.path):
        revoked = small.cli("token", "revoke", "eve")
        assert (revoked.returncode, "No space left on device" in revoked.stderr) == (0, True), revoked.stderr
        assert eve("boost", "status") == AccessDenied.exit_code
        assert tokens.read_bytes() == before

    until(lambda: tokens.read_bytes() != before, 30, "it is written, now that there is room")
    os.kill(pid := small.controller_pid(), signal.SIGKILL)
    until(lambda: small.controller_pid() != pid, 60, "another controller")
    assert small.cli("boost", "status").returncode == 0
    assert eve("boost", "status") == AccessDenied.exit_code


def test_a_full_disk_refuses_boosts_and_keeps_none(small: LiveGrid) -> None:
    kept = small.boost("head", "cpu", 1, duration_seconds=600)
    ended = small.boost("head", "cpu", 2, delivery="reserve", duration_seconds=600)
    until(lambda: all(boost["active"] for boost in json.loads(small.home.boosts.read_text())["boosts"]), 5)

    with filled(small.home.path):
        with pytest.raises(StoreBroken, match="No space left on device"):
            small.boost("head", "cpu", 1)
        small.total_is("head", "CPU", 3.0)

        released = small.cli("boost", "release", ended["boost_id"])
        assert released.returncode == 0, released.stderr
        assert "No space left on device; if the controller restarts" in released.stderr
        until(lambda: small.free("lender")["CPU"] == 5.0, 10, "the reservation gone")
        assert any("No space left on device" in reported for reported in small.json("cluster", "status")["problems"])

        # It comes back although it cannot write, knows what the file knows, and goes on bringing capacity home.
        os.kill(small.controller_pid(), signal.SIGKILL)
        status = until(lambda: (s := small.cli("boost", "status", "--json")).returncode == 0 and s, 60, "it is back")
        back = {boost["boost_id"] for boost in json.loads(status.stdout)["boosts"]}
        assert back == {kept["boost_id"], ended["boost_id"]}
        for boost in back:
            small.release(boost)
        until(small.is_at_base, 10, "all capacity home")

    until(lambda: not json.loads(small.home.boosts.read_text())["boosts"], 10, "the file caught up")
    until(lambda: not small.json("cluster", "status")["problems"], 10)
    assert small.boost("head", "cpu", 1)["state"] == "active"
