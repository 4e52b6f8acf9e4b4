"""What goes wrong in runs on a real cluster, and what callers, attached processes and launchers are told of it."""

import os
import signal
import threading
from typing import Any

import pytest
import ray
from live_grid import NOTICE_SOON, TWO_LENDERS, LiveGrid, until
from live_roles import grid_is_found  # noqa: F401 - a fixture for all tests here
from role_classes import Teller, small

from distributed_grid.client import GridClient
from distributed_grid.client.whereabouts import Whereabouts
from distributed_grid.errors import MemberFailed
from distributed_grid.roles import Workload, attach, launch

pytestmark = pytest.mark.cluster

CONFIG = TWO_LENDERS
ENV = NOTICE_SOON


class TwoNeeded(Exception):
    """It cannot be made again of what it says."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}, since {why}")


class Raiser:
    def __init__(self) -> None:
        self.four = threading.Barrier(4)

    def late(self) -> None:
        raise ray.exceptions.GetTimeoutError("another program did not answer")

    def odd(self, number: int) -> int:
        if number % 2:
            raise TwoNeeded(f"not {number}", "it is odd")
        return number

    def meet(self, number: int) -> int:
        self.four.wait(60)
        return number


class NoDisk:
    def __init__(self) -> None:
        raise OSError("no disk")

    def put(self, item: Any) -> None: ...


class Eager:
    """Uses the others as soon as it knows them."""

    def on_peers(self, peers: Any) -> None:
        peers.fetch(peers["pool"][0].put.remote(1))


def test_what_members_raise_stays_theirs_and_an_attached_process_calls_as_the_owner_does(grid: LiveGrid) -> None:
    with launch(Workload("raises", (small("raiser", Raiser, count=2, max_concurrency=4),)), leases=False) as run:
        with pytest.raises(MemberFailed, match=r"raiser 0 on .*GetTimeoutError: another program") as caught:
            run["raiser"][0].options(deadline_s=60).call("late")
        assert "in late" in caught.value.remote_traceback

        with attach("raises") as attached:
            for group in (run["raiser"], attached.group("raiser", Raiser)):
                values = group.options(errors="values")
                (failed, two), others = values.map("odd", [1, 2]), values.call("odd", 1)
                assert two == 2
                for one in (failed, *others):
                    assert isinstance(one, MemberFailed) and "in odd" in one.remote_traceback
                    assert one.message.endswith("TwoNeeded: not 1, since it is odd")
                # Each is back only when four of them are in there.
                assert group[:1].options(at_once=4).map("meet", range(4)) == [0, 1, 2, 3]


def test_a_member_that_died_comes_back_while_the_controller_is_away(grid: LiveGrid) -> None:
    with launch(Workload("alone", (small("teller", Teller, count=2),)), leases=False) as run:
        run.parts.surveyor.client = GridClient(at=Whereabouts("http://127.0.0.1:9", "none"), retry_s=0.0)
        (pid, other) = [one["pid"] for one in run["teller"].call("who")]
        os.kill(pid, signal.SIGKILL)

        until(lambda: run.status()["members"][0]["restarts"] == 1, what="it restarts")
        assert run["teller"][0].call("who")["pid"] != pid
        assert run["teller"][1].call("who")["pid"] == other
        until(lambda: run.status()["state"] == "running", what="all is well")


def test_one_that_did_not_start_is_reported_and_not_the_members_that_relied_on_it(grid: LiveGrid) -> None:
    workload = Workload("relies", (small("eager", Eager, count=2), small("pool", NoDisk)))

    with pytest.raises(MemberFailed, match=r"pool 0 on .* did not start: OSError: no disk") as caught:
        launch(workload, leases=False)

    assert "in __init__" in caught.value.remote_traceback
