"""Every file that the controller reads or writes at its start, with everything that can be wrong with it.

The controller starts all the same, ends its loans on time, tells what is wrong as long as it is, and then no longer.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from builders import ask
from whole_grid import WholeGrid

from distributed_grid.errors import AlreadyRunning, StoreBroken
from distributed_grid.model.leases import LeaseState
from distributed_grid.orchestration.recovery import HOLD
from distributed_grid.store.boost_file import BoostFile
from distributed_grid.store.durable import LARGEST
from distributed_grid.store.writer_lock import WriterLock

ACTIVE = LeaseState.ACTIVE
LOAN_S = 30.0

Fault = Callable[[Path, WholeGrid], "contextmanager[None]"]


@contextmanager
def replaced(path: Path, make: Callable[[Path], None]) -> Iterator[None]:
    """Something else is in the file's place meanwhile; the file itself comes back."""
    kept = path.with_name(f"kept-{path.name}")
    there = path.exists()
    if there:
        path.rename(kept)
    make(path)
    try:
        yield
    finally:
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        if there:
            kept.rename(path)


@contextmanager
def opening(path: Path, act: Callable[[], None]) -> Iterator[None]:
    """Something happens whenever the file is opened."""
    really = os.open

    def watched(opened: object, *args: object, **options: object) -> int:
        if str(opened) == str(path):
            act()
        return really(opened, *args, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", watched)
        yield


def failing(number: int) -> Callable[[], None]:
    def fail() -> None:
        raise OSError(number, os.strerror(number))

    return fail


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, LARGEST + 1)


FAULTS: dict[str, Callable[[Path, WholeGrid], object]] = {
    "missing": lambda path, _: replaced(path, lambda _: None),
    "folder": lambda path, _: replaced(path, Path.mkdir),
    "deep": lambda path, _: replaced(path, lambda at: at.write_bytes(b"[" * 100_000) and None),
    "huge": lambda path, _: replaced(path, sparse),
    "encoding": lambda path, _: replaced(path, lambda at: at.write_bytes("{\u00e4}".encode("utf-16")) and None),
    "pipe": lambda path, _: replaced(path, os.mkfifo),
    "unreadable": lambda path, _: opening(path, failing(errno.EACCES)),
    "failing": lambda path, _: opening(path, failing(errno.EIO)),
    "slow": lambda path, lab: opening(path, lambda: lab.clock.sleep(3.0)),
}
FILES = {
    "boosts": lambda lab: lab.home.boosts,
    "previous": lambda lab: BoostFile(lab.home.boosts).previous,
    "sharing": lambda lab: lab.home.sharing,
    "audit": lambda lab: lab.home.audit_log,
    "lock": lambda lab: lab.home.lock,
    "kept aside": lambda lab: lab.home.boosts.with_name("resource_boosts.json.of-other"),
}
UNNOTICED = {
    *((name, fault) for name in FILES for fault in ("missing", "slow")),
    *(("previous", fault) for fault in FAULTS),  # is not needed while the file itself is good
    *(("audit", fault) for fault in ("deep", "huge", "encoding")),  # only added to, line by line
    *(("lock", fault) for fault in ("deep", "huge", "encoding")),  # what is in it does not matter
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", FILES)
def test_whatever_is_wrong_with_a_file_the_controller_is_back_and_loans_end_on_time(
    lab: WholeGrid, name: str, fault: str
) -> None:
    if (name, fault) in {("lock", "pipe"), ("audit", "pipe")}:
        pytest.skip("opening a pipe to write to it works")
    loan = lab.run(lab.service.request(ask("b", amount=2, duration_s=LOAN_S)))
    lab.run(lab._engine.parts.commit_sharing())
    lab.wait(1.0)
    path = FILES[name](lab)
    if name == "kept aside":
        path.write_bytes(lab.home.boosts.read_bytes())
    lab.bury()
    with FAULTS[fault](path, lab):  # type: ignore[attr-defined]
        lab.start(strict=False)
        lab.wait(0.5)
        if (name, fault) not in UNNOTICED:
            assert path.name in lab.problems()
        if (name, fault) == ("boosts", "missing"):
            lab.wait(5.0)  # as whoever removes the file wants it
        else:
            assert list(lab.leases) == [loan.id]
            lab.wait(LOAN_S + 10.0)
        assert not lab.leases
        assert lab.cluster.is_at_base(), lab.cluster.differences()
    lab.wait(15.0)
    assert not lab.problems()
    assert not lab.leases  # what ended meanwhile does not come back with the file
    assert lab.run(lab.service.request(ask("b", amount=1))).state is ACTIVE
    lab.wait(1.0)
    lab.crash()
    assert len(lab.leases) == 1


def test_while_the_file_cannot_be_read_nothing_new_is_granted_and_the_file_is_left_alone(lab: WholeGrid) -> None:
    lab.run(lab.service.request(ask("b", amount=1, duration_s=3600.0)))
    lab.wait(1.0)
    good = lab.home.boosts.read_bytes()
    lab.bury()
    with opening(lab.home.boosts, failing(errno.EIO)):
        lab.start(strict=False)
        with pytest.raises(StoreBroken, match="Input/output error"):
            lab.run(lab.service.request(ask("b", amount=1)))
        lab.wait(5.0)
    assert lab.home.boosts.read_bytes() == good
    lab.wait(5.0)
    assert lab.events("store_read")
    assert len(lab.leases) == 1
    assert lab.run(lab.service.request(ask("b", amount=1))).state is ACTIVE


def test_where_no_version_can_be_read_loans_stay_for_a_minute_and_then_go_home(lab: WholeGrid) -> None:
    lab.run(lab.service.request(ask("b", amount=2, duration_s=3600.0)))
    lab.wait(1.0)
    lent = lab.cluster.true_totals()
    lab.bury()
    with replaced(lab.home.boosts, Path.mkdir), replaced(BoostFile(lab.home.boosts).previous, Path.mkdir):
        lab.start(strict=False)
        lab.wait(HOLD.total_seconds() - 10.0)
        assert lab.cluster.true_totals() == lent
        assert "takes all capacity home" in lab.problems()
        lab.wait(20.0)
        assert lab.cluster.is_at_base()
    lab.wait(15.0)
    assert len(lab.leases) == 1  # the file is back, and the loan in it has not expired
    assert lab.cluster.true_totals() == lent
    assert not lab.problems()


def test_a_renewal_that_only_the_file_knew_is_in_force_once_it_can_be_read(lab: WholeGrid) -> None:
    loan = lab.run(lab.service.request(ask("b", amount=2, duration_s=20.0)))
    lab.wait(1.0)
    renewed = lab.run(lab.service.renew(loan.id, 3600.0))
    lab.bury()
    with opening(lab.home.boosts, failing(errno.EIO)):
        lab.start(strict=False)
        lab.wait(2.0)
    lab.wait(40.0)
    assert lab.leases[loan.id].expires_at == renewed.expires_at


def test_while_another_process_has_the_lock_nothing_is_touched_and_then_the_start_succeeds(lab: WholeGrid) -> None:
    lab.run(lab.service.request(ask("b", amount=2, duration_s=LOAN_S)))
    lab.wait(1.0)
    lent = lab.cluster.true_totals()
    lab.bury()
    with WriterLock(lab.home.lock):
        for _ in range(3):
            with pytest.raises(AlreadyRunning):
                lab.start(strict=False)
        assert lab.cluster.true_totals() == lent
    lab.start(strict=False)
    assert len(lab.leases) == 1
    lab.wait(LOAN_S + 5.0)
    assert lab.cluster.is_at_base()
