"""A run tells its user and program once that the lease is idle, and ends no program that may still keep its lease."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import FOR_ANA, NOON, reservation

from distributed_grid.leases.view import boost_dict
from distributed_grid.model.endings import EndCause
from distributed_grid.model.leases import Idle, Lease, Notice
from distributed_grid.run.held_lease import HeldLease, Reclaim
from distributed_grid.run.monitor import LeaseMessages, MessageFiles

IDLE = Idle(NOON, yields=True)
FOR_IDLE = replace(FOR_ANA, cause=EndCause.IDLE)


class Held:
    """The lease of a run, as the controller shows it."""

    id, ended, ending = "b1", None, None

    def __init__(self, lease: Lease) -> None:
        self.reclaim: Reclaim | None = None
        self.shows(lease)

    def shows(self, lease: Lease) -> None:
        self.boost = boost_dict(lease)


@pytest.fixture
def files(tmp_path: Path) -> MessageFiles:
    return MessageFiles(tmp_path)


def test_an_idle_lease_is_reported_once_until_it_is_used_again(files: MessageFiles) -> None:
    held: Any = Held(reservation())
    said: list[str] = []
    messages = LeaseMessages(held, said.append, files)

    messages.look()
    assert not said
    held.shows(reservation(idle=IDLE))
    messages.look()
    messages.look()
    assert len(said) == 1
    assert said[0].startswith("grid: boost b1 is idle: its work has not used it since ")
    report = json.loads(files.idle.read_text())
    assert (report["cause"], report["boost_id"], report["amount"], report["deadline"]) == ("idle", "b1", 1, None)

    held.shows(reservation())
    messages.look()
    assert not files.idle.exists()
    held.shows(reservation(idle=IDLE))
    messages.look()
    assert len(said) == 2
    assert files.idle.exists()


class Controller:
    """A client whose controller shows a lease that is being reclaimed, and whose grace period is over."""

    home = None

    def __init__(self, lease: Lease) -> None:
        self.lease = lease

    def report_program(self, *_: object, **__: object) -> Any:
        return {"boost": boost_dict(self.lease), "ends_in_seconds": -1.0}

    def leave(self, *_: object) -> None: ...
    def release_boost(self, *_: object) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("changes", "is_over"),
    [
        ({"notice": Notice(1, "", NOON, NOON + timedelta(seconds=30)), "ending": FOR_IDLE}, False),
        ({"notice": Notice(1, "", NOON, NOON + timedelta(seconds=30)), "ending": FOR_ANA}, True),
        ({"ending": FOR_IDLE}, True),
    ],
)
def test_only_the_controller_says_when_the_time_of_an_idle_lease_is_over(
    monkeypatch: pytest.MonkeyPatch, files: MessageFiles, changes: dict[str, Any], is_over: bool
) -> None:
    controller: Any = Controller(reservation(allocated_at=NOON, expires_at=NOON + timedelta(days=99999), **changes))
    monkeypatch.setattr("distributed_grid.run.held_lease.GridClient", lambda _: controller)
    held = HeldLease(controller, boost_dict(controller.lease), "p1", "train.py", is_ours=False)
    said: list[str] = []
    reclaim = LeaseMessages(held, said.append, files).look()
    held.give_back()
    assert reclaim is not None
    assert reclaim.left_s == 0
    assert reclaim.is_over is is_over
    assert ("for longer if it uses it again" in said[0]) is not is_over
    assert files.reclaim.exists()
