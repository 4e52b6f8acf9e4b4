"""Quick saves: a line for each change continues the boost file, and counts as a whole or not at all."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.errors import StoreBroken
from distributed_grid.store.boost_file import BoostFile, ClusterIdentity, Loaded

Lab = ClusterIdentity


@pytest.fixture
def quick(tmp_path: Path, a_lease: Any, lab: Lab) -> BoostFile:
    """A store with b1, to which changes can be appended."""
    boosts = BoostFile(tmp_path / "resource_boosts.json", appends=True)
    boosts.save((a_lease("b1"),), lab)
    return boosts


def changes(boosts: BoostFile) -> Path:
    return boosts.path.with_name(f"{boosts.path.name}.changes")


def loaded(boosts: BoostFile) -> Loaded:
    """What the next writer finds."""
    return BoostFile(boosts.path).load()


def ids(boosts: BoostFile) -> list[str]:
    return [lease.id for lease in loaded(boosts).leases]


def test_what_is_saved_quickly_is_loaded_and_the_file_itself_stays(quick: BoostFile, a_lease: Any, lab: Lab) -> None:
    before = quick.path.read_bytes()
    renewed, added = a_lease("b1", duration_s=60.0), a_lease("b2", warnings=("ü \u2028 'quoted' \n line",))
    quick.save((renewed, added), lab, quickly=True)
    assert quick.path.read_bytes() == before
    assert loaded(quick) == Loaded((renewed, added), lab, (), "file") == BoostFile(quick.path).look()
    quick.save((added,), lab, quickly=True)
    assert loaded(quick).leases == (added,)
    assert len(changes(quick).read_text().splitlines()) == 2
    assert changes(quick).stat().st_mode & 0o777 == 0o600


def test_a_save_that_is_not_quick_writes_everything_into_the_file(quick: BoostFile, a_lease: Any, lab: Lab) -> None:
    quick.save((a_lease("b1"), a_lease("b2")), lab, quickly=True)
    assert quick.is_behind
    quick.save((a_lease("b1"), a_lease("b2")), lab)
    assert not quick.is_behind
    changes(quick).unlink()
    assert ids(quick) == ["b1", "b2"]


def test_a_change_never_counts_for_another_version_of_the_file(quick: BoostFile, a_lease: Any, lab: Lab) -> None:
    """Also for one with the same boosts."""
    quick.save((a_lease("b1"), a_lease("b2")), lab, quickly=True)
    lines = changes(quick).read_bytes()
    quick.save((a_lease("b1"),), lab)
    changes(quick).write_bytes(lines)
    assert loaded(quick) == Loaded((a_lease("b1"),), lab, (), "file")


def test_a_removed_file_ends_the_boosts_in_its_changes_too(quick: BoostFile, a_lease: Any, lab: Lab) -> None:
    quick.save((a_lease("b1"), a_lease("b2")), lab, quickly=True)
    quick.path.unlink()
    assert loaded(quick) == Loaded((), None, (), "nothing")
    quick.save((a_lease("b1"), a_lease("b2"), a_lease("b3")), lab, quickly=True)
    assert quick.was_removed(), "a save that puts the file back does not hide the removal"


def test_a_changes_file_that_was_removed_is_not_written_to(quick: BoostFile, a_lease: Any, lab: Lab) -> None:
    changes(quick).unlink()
    quick.save((a_lease("b1"), a_lease("b2")), lab, quickly=True)
    assert ids(quick) == ["b1", "b2"]


def test_a_line_that_a_crash_cut_off_anywhere_changes_nothing(quick: BoostFile, a_lease: Any, lab: Lab) -> None:
    quick.save((a_lease("b1"), a_lease("b2")), lab, quickly=True)
    first = len(changes(quick).read_bytes())
    quick.save((a_lease("b2"), a_lease("b3")), lab, quickly=True)
    whole = changes(quick).read_bytes()
    for length in range(len(whole)):
        changes(quick).write_bytes(whole[:length])
        found = loaded(quick)
        assert not found.problems
        assert [lease.id for lease in found.leases] == (["b1"] if length < first else ["b1", "b2"])
    changes(quick).write_bytes(whole)
    assert ids(quick) == ["b2", "b3"]


def test_a_damaged_line_is_reported_and_kept_and_no_later_one_counts(quick: BoostFile, a_lease: Any, lab: Lab) -> None:
    quick.save((a_lease("b1"), a_lease("b2")), lab, quickly=True)
    quick.save((a_lease("b1"), a_lease("b2"), a_lease("b3")), lab, quickly=True)
    whole = changes(quick).read_bytes()
    damaged = whole.replace(b'"b2"', b'"b9"', 1)
    changes(quick).write_bytes(damaged)
    again = BoostFile(quick.path, appends=True)
    found = again.load()
    assert [lease.id for lease in found.leases] == ["b1"]
    assert "a line of resource_boosts.json.changes is damaged" in found.problems[0]
    again.save(found.leases, lab)
    assert [file.read_bytes() for file in quick.path.parent.glob("*.broken-*")] == [damaged]


def test_a_damaged_file_gives_way_to_the_previous_one_and_its_changes(quick: BoostFile, a_lease: Any, lab: Lab) -> None:
    """So nothing of what was saved before the last whole save is lost."""
    quick.save((a_lease("b1"), a_lease("b2")), lab, quickly=True)
    quick.save((a_lease("b2"),), lab, quickly=True)
    quick.save((a_lease("b2"),), lab)
    quick.path.write_bytes(b"{")
    found = loaded(quick)
    assert (found.came_from, found.leases) == ("previous", (a_lease("b2"),))


@pytest.mark.parametrize("damage", ["damaged", "a folder"])
def test_changes_to_a_file_that_is_lost_continue_the_previous_one(
    quick: BoostFile, a_lease: Any, lab: Lab, damage: str
) -> None:
    """So a boost outlives the file also in the moment before the file has caught up with its changes."""
    quick = BoostFile(quick.path, appends=True)  # also if the writer has just started
    quick.save((a_lease("b1"), a_lease("b2")), lab)
    quick.save((a_lease("b2"), a_lease("b3")), lab, quickly=True)
    quick.path.unlink()
    quick.path.mkdir() if damage == "a folder" else quick.path.write_bytes(b"{")
    found = BoostFile(quick.path).load_previous()
    assert (found.came_from, found.leases) == ("previous", (a_lease("b2"), a_lease("b3")))


@pytest.mark.parametrize("step", ["write", "fdatasync"])
def test_a_disk_that_refuses_a_line_gets_the_file_instead(
    quick: BoostFile, a_lease: Any, lab: Lab, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    really: Callable[..., Any] = getattr(os, step)
    refused = []

    def refuse(*given: Any) -> Any:
        if refused:
            return really(*given)
        refused.append(step)
        if step == "write":
            really(given[0], given[1][:20])
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, step, refuse)
    quick.save((a_lease("b1"), a_lease("b2")), lab, quickly=True)
    assert refused
    assert ids(quick) == ["b1", "b2"]
    quick.save((a_lease("b2"),), lab, quickly=True)
    assert loaded(quick) == Loaded((a_lease("b2"),), lab, (), "file")


def test_a_disk_that_refuses_both_leaves_the_boosts_as_they_were(
    quick: BoostFile, a_lease: Any, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    quick.save((a_lease("b1"), a_lease("b2")), lab, quickly=True)
    monkeypatch.setattr(os, "write", refuse)
    for _ in range(2):
        with pytest.raises(StoreBroken, match="No space left"):
            quick.save((), lab, quickly=True)
    monkeypatch.undo()
    assert ids(quick) == ["b1", "b2"]
    quick.save((), lab, quickly=True)
    assert ids(quick) == []


def test_a_file_that_another_program_wrote_is_replaced_and_not_continued(
    quick: BoostFile, a_lease: Any, lab: Lab
) -> None:
    theirs = BoostFile(quick.path)
    theirs.save((a_lease("b9"),), lab)
    quick.save((a_lease("b1"), a_lease("b2")), lab, quickly=True)
    assert ids(quick) == ["b1", "b2"]


def test_the_changes_file_stays_small(quick: BoostFile, a_lease: Any, lab: Lab) -> None:
    for number in range(30):
        quick.save((a_lease("b1", warnings=("w" * 100_000, str(number))),), lab, quickly=True)
        assert changes(quick).stat().st_size <= 2**20
        assert loaded(quick).leases[0].warnings[1] == str(number)


def test_a_quick_save_without_a_change_tries_the_disk(quick: BoostFile, a_lease: Any, lab: Lab) -> None:
    leases = (a_lease("b1"),)
    quick.save(leases, lab)
    before = quick.path.stat().st_ino
    quick.save(leases, lab, quickly=True)
    assert quick.path.stat().st_ino != before
