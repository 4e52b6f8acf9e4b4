"""Whatever happens to the store: the last good state survives, it is told, and the cluster agrees with it."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from builders import ask
from disks import filled, read_only, small_disk
from whole_grid import WholeGrid

from distributed_grid.errors import AlreadyRunning, StoreBroken
from distributed_grid.model.leases import Delivery, LeaseState
from distributed_grid.model.resources import ResourceVector, total
from distributed_grid.store.audit_log import AuditLog
from distributed_grid.store.boost_file import BoostFile
from distributed_grid.store.writer_lock import WriterLock

ACTIVE, RELEASED = LeaseState.ACTIVE, LeaseState.RELEASED
HOUR_S = 3600.0

pytestmark = pytest.mark.filterwarnings("ignore")


def agrees(lab: WholeGrid, *, file: bool = True) -> None:
    """The cluster has what the ledger says, to the last unit, and so does the file."""
    leases = tuple(lab.leases.values())
    for name, base in lab.cluster.bases().items():
        lent, borrowed = (
            total([x.resources for x in leases if x.delivery is Delivery.TRANSFER and getattr(x, end) == name])
            for end in ("source", "target")
        )
        assert lab.cluster.true_totals()[name] == base - lent + borrowed, f"{name}: {lab.cluster.differences()}"
    groups = {x.placement_group for x in leases if x.delivery is Delivery.RESERVE}
    assert {group.id for group in lab.cluster.groups()} == groups
    assert lab.on_disk() == lab.leases or not file
    assert not lab.cluster.violations, lab.cluster.violations[0]
    assert not lab.failures, repr(lab.failures[0])


def two_boosts(lab: WholeGrid) -> bytes:
    """A transfer and a reservation, both active in the file and, but for the last outcome, in `.previous`."""
    for kind in ("cpu", "gpu"):
        lab.run(lab.service.request(ask("b", kind, 1)))
        lab.wait(0.5)
    assert all(lease.state is ACTIVE for lease in lab.on_disk().values())
    return lab.home.boosts.read_bytes()


def restarted_with(lab: WholeGrid, data: bytes) -> None:
    """The controller dies, the file's bytes change, the controller starts."""
    lab.bury()
    lab.home.boosts.write_bytes(data)
    expected = {lease.id for lease in BoostFile(lab.home.boosts).load().leases}
    lab.start()
    lab.wait(0.1)  # outcomes are written a moment later
    assert set(lab.leases) == expected
    assert all(lease.state is ACTIVE for lease in lab.leases.values())
    agrees(lab)


# -- damage ------------------------------------------------------------------------------------------------


def test_a_file_cut_off_anywhere_loses_no_boost(lab: WholeGrid) -> None:
    """Intent and outcome are two writes, so `.previous` knows of every boost, even of the last one."""
    good = two_boosts(lab)
    for length in (*range(0, len(good) - 1, 7), len(good) - 2):
        restarted_with(lab, good[:length])
        assert len(lab.leases) == 2
        assert "is damaged" in lab.problems() and "used resource_boosts.json.previous" in lab.problems()
        assert lab.events("store_problem")
    lab.crash()
    assert not lab.problems()


def test_flipped_bytes_never_reach_the_cluster(lab: WholeGrid) -> None:
    good = two_boosts(lab)
    chance = random.Random(7)
    for _ in range(150):
        data = bytearray(good)
        where = chance.randrange(len(data) - 2)
        data[where] ^= chance.randrange(1, 256)
        if good[:where].endswith(b'"version": '):
            continue  # a later version: a test of its own
        restarted_with(lab, bytes(data))
        assert len(lab.leases) == 2
        assert "is damaged" in lab.problems()


def test_an_empty_file_gives_way_to_the_previous_one(lab: WholeGrid) -> None:
    two_boosts(lab)
    restarted_with(lab, b"")
    assert "it is empty" in lab.problems()
    assert len(lab.leases) == 2


def test_with_both_files_damaged_everything_is_returned_and_both_are_kept(lab: WholeGrid) -> None:
    two_boosts(lab)
    lab.bury()
    lab.home.boosts.write_bytes(b"{")
    BoostFile(lab.home.boosts).previous.write_bytes(b"[")
    lab.start()
    lab.wait(3.0)
    assert not lab.leases
    assert lab.cluster.is_at_base(), lab.cluster.differences()
    assert "no boosts are known" in lab.problems()
    assert sorted(file.read_bytes() for file in lab.home.path.glob("*.broken-*")) == [b"[", b"{"]
    agrees(lab)


def test_a_later_grids_file_keeps_this_one_out_and_nothing_changes(lab: WholeGrid) -> None:
    good = two_boosts(lab)
    lab.bury()
    later = json.dumps({"version": 99, "leases": {}}).encode()
    lab.home.boosts.write_bytes(later)
    totals, groups = lab.cluster.true_totals(), lab.cluster.groups()
    with pytest.raises(StoreBroken, match="written by a later version of grid") as caught:
        lab.start()
    assert "format 99" in caught.value.because[0]
    assert lab.home.boosts.read_bytes() == later
    assert (lab.cluster.true_totals(), lab.cluster.groups()) == (totals, groups)
    lab.home.boosts.write_bytes(good)
    lab.start()  # the lock was not kept by the start that failed
    assert len(lab.leases) == 2
    agrees(lab)


def test_a_file_that_is_deleted_while_grid_runs_ends_the_boosts_and_it_is_reported(lab: WholeGrid) -> None:
    two_boosts(lab)
    lab.home.boosts.unlink()
    lab.wait(3.0)
    assert not lab.leases
    assert lab.cluster.is_at_base()
    assert lab.events("state_file_removed") == ["resource_boosts.json was removed: 2 boosts end"]
    agrees(lab)
    lab.crash()
    assert not lab.leases


# -- disks that do not take it -----------------------------------------------------------------------------


@contextmanager
def handles_are_lost(folder: Path) -> Iterator[None]:
    """As over a file server that has lost the file's handle."""
    with pytest.MonkeyPatch.context() as patch:

        def fail(*_: object, **__: object) -> None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

        patch.setattr(os, "replace", fail)
        patch.setattr(os, "fdatasync", fail)
        yield


Trouble = Callable[[Path], AbstractContextManager[None]]
TROUBLES = [
    pytest.param(filled, "No space left on device", id="full"),
    pytest.param(read_only, "Read-only file system", id="read-only"),
    pytest.param(handles_are_lost, os.strerror(errno.ESTALE), id="stale"),
]


@pytest.fixture
def on_disk(tmp_path: Path, make_grid: Callable[..., WholeGrid]) -> Iterator[WholeGrid]:
    """A grid whose home is a small file system of its own."""
    with small_disk(tmp_path / "disk", "256k") as disk:
        yield make_grid(home=disk)


@pytest.mark.parametrize(("trouble", "why"), TROUBLES)
def test_what_cannot_be_written_is_refused_and_changes_nothing(on_disk: WholeGrid, trouble: Trouble, why: str) -> None:
    lab = on_disk
    boost = lab.run(lab.service.request(ask("b", amount=1, duration_s=HOUR_S)))
    lab.wait(1.0)
    before, totals, resizes = lab.leases, lab.cluster.true_totals(), lab.cluster.resizes
    with trouble(lab.home.path):
        for kind in ("cpu", "gpu"):
            with pytest.raises(StoreBroken, match=why) as caught:
                lab.run(lab.service.request(ask("b", kind, 1)))
            assert "as they were last saved are still there" in caught.value.because[0]
            assert str(lab.home.path) in str(caught.value.try_next)
        with pytest.raises(StoreBroken, match=why):
            lab.run(lab.service.renew(boost.id, 2 * HOUR_S))
        lab.wait(3.0)
        assert lab.leases == before
        assert (lab.cluster.true_totals(), lab.cluster.resizes) == (totals, resizes)
        assert not lab.cluster.groups()
        assert why in lab.problems() or trouble is handles_are_lost  # the file already shows what is to be written
        assert why in lab.events("store_unwritable")[0]
    lab.wait(2.0)
    assert not lab.problems()
    assert lab.events("store_written")
    assert lab.run(lab.service.request(ask("b", "gpu", 1))).state is ACTIVE
    lab.wait(0.5)
    agrees(lab)
    reported = [entry["event"] for entry in AuditLog(lab.home.audit_log).read()]
    assert "store_unwritable" in reported and "store_written" in reported


@pytest.mark.parametrize(("trouble", "why"), TROUBLES)
def test_capacity_returns_even_if_that_cannot_be_written(on_disk: WholeGrid, trouble: Trouble, why: str) -> None:
    """By a release, by expiry and because the source died: one of each."""
    lab = on_disk
    asked = lab.run(lab.service.request(ask("b", amount=1)))
    reserved = lab.run(lab.service.request(ask("b", "gpu", 1, source="a")))
    lab.run(lab.service.request(ask("b", amount=2, source="a", duration_s=40.0)))
    lab.run(lab.service.request(ask("b", amount=1, source="c")))
    lab.wait(35.0)
    with trouble(lab.home.path):
        for boost in (asked, reserved):
            released = lab.run(lab.service.release(boost.id))
            assert released.state is RELEASED
            assert why in released.warnings[0] and "this boost comes back" in released.warnings[0]
        lab.wait(7.0)  # the third expires
        lab.cluster.kill_node("c")
        lab.wait(4.0)
        assert not lab.leases
        assert not lab.cluster.groups()
        assert lab.cluster.is_at_base(), lab.cluster.differences()
        assert len(lab.on_disk()) == 4
        assert why in lab.problems()
    lab.wait(2.0)
    assert not lab.problems()
    agrees(lab)
    lab.crash()
    assert not lab.leases
    reported = [entry["event"] for entry in AuditLog(lab.home.audit_log).read()]
    assert reported.count("returned") == 4  # what the log did not take then, it has now


@pytest.mark.parametrize(("trouble", "why"), TROUBLES[:2])
def test_a_controller_that_dies_meanwhile_starts_from_the_last_good_state(
    on_disk: WholeGrid, trouble: Trouble, why: str
) -> None:
    lab = on_disk
    kept = lab.run(lab.service.request(ask("b", amount=1, duration_s=60.0)))
    gone = lab.run(lab.service.request(ask("b", "gpu", 1)))
    lab.wait(1.0)
    with trouble(lab.home.path):
        lab.run(lab.service.release(gone.id))
        lab.crash()
        lab.wait(1.0)
        assert set(lab.leases) == {kept.id, gone.id}  # as its warning said
        agrees(lab, file=False)
        with pytest.raises(StoreBroken, match=why):
            lab.run(lab.service.request(ask("b", amount=1)))
        lab.run(lab.service.release(gone.id))
        lab.wait(60.0)
        assert not lab.leases
        assert lab.cluster.is_at_base()
        with pytest.raises(StoreBroken, match=why):
            lab.run(lab.engine.give_all_back())  # it does not leave with boosts in the file that have ended
    lab.wait(2.0)
    agrees(lab)
    assert not lab.on_disk()
    assert lab.run(lab.engine.give_all_back()) == 0


def test_a_rename_that_was_done_though_it_says_it_failed_keeps_its_boost(
    lab: WholeGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.replace

    def done_but_failed(*args: str, **kwargs: int) -> None:
        really(*args, **kwargs)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(os, "replace", done_but_failed)
    boost = lab.run(lab.service.request(ask("b", amount=1)))
    lab.wait(0.5)
    assert not lab.problems()
    lab.crash()
    assert list(lab.leases) == [boost.id]
    agrees(lab)


def test_grid_works_without_hard_links(lab: WholeGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    good = two_boosts(lab)
    restarted_with(lab, good[:100])
    assert len(lab.leases) == 2


# -- one writer --------------------------------------------------------------------------------------------

CONTROLLER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from builders import LENDS_ALL, ask
from fake_cluster import FakeCluster
from whole_grid import WholeGrid
from distributed_grid.config import GridConfig
from distributed_grid.errors import AlreadyRunning
cluster = FakeCluster()
for name in "ab":
    cluster.add_node(name, cpus=4)
nodes = [{"name": name} for name in "ab"]
config = GridConfig.from_dict({"name": "lab", "resource_sharing": LENDS_ALL, "nodes": nodes})
print("ready", flush=True)
sys.stdin.readline()
try:
    grid = WholeGrid(cluster, config, Path(sys.argv[1]))
except AlreadyRunning as error:
    print("refused:", error.message, flush=True)
else:
    found = len(grid.leases)
    if not found:
        grid.run(grid.service.request(ask("a", amount=1)))
    grid.wait(1.0)
    print("found", found, "so its target has", cluster.true_totals()["a"]["cpu"] // 10000, flush=True)
sys.stdin.readline()
"""


def controllers(home: Path, count: int) -> "list[subprocess.Popen[str]]":
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-c", CONTROLLER, str(home), str(tests / "support")]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    for process in started:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return started


def go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def heard(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_of_controllers_that_race_for_the_lock_one_is_in_charge_and_the_next_takes_over_its_boosts(
    tmp_path: Path,
) -> None:
    first, second, third = racers = controllers(tmp_path / "home", 3)
    try:
        go(first)
        go(second)
        answers = {heard(first): first, heard(second): second}
        (winner,) = [process for answer, process in answers.items() if answer == "found 0 so its target has 5"]
        (refused,) = [answer for answer, process in answers.items() if process is not winner]
        who = (f"Process {winner.pid}", "Another process")  # the pid is written just after the lock is taken
        assert refused.startswith(tuple(f"refused: {name} already runs grid in " for name in who))
        os.kill(winner.pid, signal.SIGKILL)
        winner.wait()
        go(third)
        assert heard(third) == "found 1 so its target has 5"
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


def test_a_lock_whose_file_was_removed_is_taken_again(lab: WholeGrid) -> None:
    lab.home.lock.unlink()
    lab.wait(1.5)
    assert lab.parts.lock.held
    with pytest.raises(AlreadyRunning):
        WriterLock(lab.home.lock).acquire()


def test_a_writer_that_lost_the_lock_to_another_leaves_the_cluster_alone(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("b", amount=1, duration_s=5.0)))
    lab.wait(0.5)
    lab.home.lock.unlink()
    with WriterLock(lab.home.lock):
        resizes, file = lab.cluster.resizes, lab.home.boosts.read_bytes()
        with pytest.raises(AlreadyRunning):
            lab.run(lab.service.request(ask("b", amount=1)))
        with pytest.raises(AlreadyRunning):
            lab.run(lab.service.release(boost.id))
        lab.wait(10.0)
        assert (lab.cluster.resizes, lab.home.boosts.read_bytes()) == (resizes, file)
        assert "already runs grid" in lab.problems()
    lab.wait(2.0)
    assert lab.cluster.is_at_base()
    assert lab.cluster.true_totals()["b"] == ResourceVector.of(cpu=4)
