"""Every file that the controller reads or writes at its start, with everything that can be wrong with it.

The controller starts all the same, ends its loans on time, tells what is wrong as long as it is, and then no longer.
"""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import FOR_ANA, ask
from fake_telemetry import FakeTelemetry
from faulty_files import FAULTS, failing, opening, replaced, writing
from whole_grid import WholeGrid

from distributed_grid.errors import AlreadyRunning, StoreBroken
from distributed_grid.leases.reclaim import reclaim
from distributed_grid.leases.recovery import HOLD
from distributed_grid.model.endings import why_it_ends
from distributed_grid.model.leases import WATCHED, LeaseState
from distributed_grid.store.boost_file import BoostFile
from distributed_grid.store.writer_lock import WriterLock

ACTIVE = LeaseState.ACTIVE
LOAN_S = 60.0

FILES: dict[str, Callable[[WholeGrid], Path]] = {
    "boosts": lambda lab: lab.home.boosts,
    "previous": lambda lab: BoostFile(lab.home.boosts).previous,
    "changes": lambda lab: lab.home.boosts.with_name("resource_boosts.json.changes"),
    "sharing": lambda lab: lab.home.sharing,
    "history": lambda lab: lab.home.history,
    "audit": lambda lab: lab.home.audit_log,
    "security": lambda lab: lab.parts.audit_log.security,
    "refused": lambda lab: lab.parts.audit_log.refused,
    "stopped": lambda lab: lab.home.stopped,
    "reclaim": lambda lab: lab.home.reclaim,
    "home": lambda lab: lab.home.path,
    "lock": lambda lab: lab.home.lock,
    "kept aside": lambda lab: lab.home.boosts.with_name("resource_boosts.json.of-other"),
}
UNNOTICED = {
    *((name, fault) for name in FILES for fault in ("missing", "slow", "locked")),
    *((name, "unwritable") for name in ("boosts", "sharing", "kept aside")),  # nothing new is to be written then
    *((name, "nowhere") for name in ("boosts", "sharing", "kept aside", "lock")),  # as if it were missing
    *(
        (name, fault) for name in ("previous", "stopped", "reclaim", "history") for fault in FAULTS
    ),  # is not needed then
    *(
        (name, fault) for name in ("audit", "security", "refused") for fault in ("deep", "huge", "encoding")
    ),  # only added to
    *(("lock", fault) for fault in ("deep", "huge", "encoding")),  # what is in it does not matter
    *(("changes", fault) for fault in ("deep", "encoding", "nowhere", "unwritable")),  # as if a crash cut its last line
    ("home", "folder"),
}
ENDS_ALL = {("boosts", "missing"), ("boosts", "nowhere"), ("home", "missing"), ("home", "folder")}
"""As the person who removes the file wants it."""
KNOWS_NOTHING = (
    {("home", fault) for fault in FAULTS} - ENDS_ALL - {("home", fault) for fault in ("unwritable", "slow", "locked")}
)
"""Then no boost is known, and all capacity returns after a while."""


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", FILES)
def test_whatever_is_wrong_with_a_file_the_controller_is_back_and_loans_end_on_time(
    make_grid: Callable[..., WholeGrid], name: str, fault: str
) -> None:
    lab = make_grid(telemetry=FakeTelemetry(), policy="conservative")
    if (name, fault) in {(each, "pipe") for each in ("lock", "audit", "security", "refused")}:
        pytest.skip("opening a pipe to write to it works")
    if (name, fault) == ("lock", "locked"):
        pytest.skip("then there is another controller: see below")
    asked = ask("b", amount=2, duration_s=LOAN_S, grace_s=LOAN_S, reclaim_hook=WATCHED)
    loan = lab.run(lab.service.request(asked))
    lab.run(lab.engine.parts.commit_sharing())
    lab.wait(1.0)
    lab.run(lab.engine.watching.stop())  # type: ignore[union-attr]
    path = FILES[name](lab)
    match name:
        case "kept aside":
            path.write_bytes(lab.home.boosts.read_bytes())
        case "stopped":
            path.write_text("{}")
        case "reclaim":
            path.mkdir()
    lab.bury()
    with FAULTS[fault](path, lambda: lab.clock.sleep(3.0)):
        lab.start(strict=False)
        if name in ("security", "refused"):
            lab.parts.journal.note("token_revoked" if name == "security" else "access_refused", "a token")
        if name == "reclaim" and lab.leases:
            reclaim(lab.parts, lab.leases[loan.id], "ana needs it", FOR_ANA)
        lab.wait(0.5)
        if (name, fault) not in UNNOTICED:
            assert path.name in lab.problems()
        if (name, fault) in ENDS_ALL:
            lab.wait(5.0)
        elif (name, fault) in KNOWS_NOTHING:
            assert not lab.leases and not lab.cluster.is_at_base()
            lab.wait(HOLD.total_seconds() + 5.0)
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


def test_where_no_version_can_be_read_loans_stay_for_a_minute_and_then_are_returned(lab: WholeGrid) -> None:
    lab.run(lab.service.request(ask("b", amount=2, duration_s=3600.0)))
    lab.wait(1.0)
    lent = lab.cluster.true_totals()
    lab.bury()
    with replaced(lab.home.boosts, Path.mkdir), replaced(BoostFile(lab.home.boosts).previous, Path.mkdir):
        lab.start(strict=False)
        lab.wait(HOLD.total_seconds() - 10.0)
        assert lab.cluster.true_totals() == lent
        assert "returns all capacity" in lab.problems()
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


def test_a_loan_whose_end_only_the_file_knew_is_returned_and_says_why(lab: WholeGrid) -> None:
    loan = lab.run(lab.service.request(ask("b", amount=2, duration_s=3600.0)))
    lab.wait(1.0)
    lab.run(lab.service.request(ask("b", amount=1, duration_s=3600.0)))
    older = lab.home.boosts.read_bytes()
    lab.run(lab.service.release(loan.id))
    lab.wait(5.0)
    assert loan.id not in lab.leases
    BoostFile(lab.home.boosts).previous.write_bytes(older)
    lab.bury()
    with opening(lab.home.boosts, failing(errno.EIO)):
        lab.start(strict=False)
        lab.wait(1.0)
        assert loan.id in lab.leases  # as the older file has it
    lab.wait(10.0)

    assert loan.id not in lab.leases
    assert len(lab.leases) == 1
    asked = [event for event in lab.parts.journal.since(0) if event.event == "release_asked"]
    assert [event.details["ending"]["cause"] for event in asked] == ["ended_before"]
    assert why_it_ends(asked[0].details["ending"]).startswith("it had ended before the controller started again")


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


def test_a_file_that_is_whole_again_is_not_called_damaged_because_another_one_is(lab: WholeGrid) -> None:
    lab.run(lab.service.request(ask("b", amount=1, duration_s=3600.0)))
    lab.run(lab.parts.commit_sharing())
    lab.wait(1.0)
    lab.bury()
    lab.home.boosts.write_bytes(b"{")
    with opening(lab.home.sharing, failing(errno.EIO)):
        lab.start(strict=False)
        assert "resource_boosts.json is damaged" in lab.problems()
        lab.wait(15.0)
        assert "sharing.json" in lab.problems()
        assert "resource_boosts.json" not in lab.problems()


def test_a_damaged_file_is_reported_until_a_good_one_could_be_written(lab: WholeGrid) -> None:
    lab.bury()
    lab.home.sharing.write_bytes(b"{")
    with writing(lab.home.sharing, failing(errno.EIO)):
        lab.start(strict=False)
        lab.wait(60.0)
        assert "sharing.json cannot be understood" in lab.problems()
        assert len(lab.events("store_unwritable")) == 1
        assert lab.home.sharing.read_bytes() == b"{"
    lab.wait(15.0)
    assert not lab.problems()
    lab.crash()
    assert not lab.problems()
