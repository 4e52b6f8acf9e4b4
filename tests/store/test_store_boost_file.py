"""What is saved is loaded, stays private and readable, and ends when the file is removed."""

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.model.leases import LeaseState
from distributed_grid.store.boost_file import BoostFile, ClusterIdentity, Loaded

Lab = ClusterIdentity


def test_what_is_saved_is_loaded(boosts: BoostFile, a_lease: Any, lab: Lab) -> None:
    saved = (a_lease("b2"), a_lease("b1", warnings=("ü \u2028 'quoted' \n line",)))
    boosts.save(saved, lab)
    assert BoostFile(boosts.path).load() == Loaded(saved, lab, (), "file")


def test_a_missing_file_is_an_empty_store(boosts: BoostFile) -> None:
    assert boosts.load() == Loaded((), None, (), "nothing")
    assert not boosts.exists()


def test_an_empty_store_can_be_saved_too(boosts: BoostFile) -> None:
    boosts.save((), None)
    assert boosts.load() == Loaded((), None, (), "file")
    assert boosts.exists()


def test_the_file_is_json_that_a_person_can_read(boosts: BoostFile, a_lease: Any, lab: Lab) -> None:
    boosts.save((a_lease("b1"), a_lease("b2")), lab)
    text = boosts.path.read_text()
    content = json.loads(text)
    assert content["version"] == 1
    assert content["cluster"] == {"name": "lab", "nodes": ["gpu-master", "gpu1"]}
    assert [boost["id"] for boost in content["boosts"]] == ["b1", "b2"]
    assert content["checksum"].startswith("sha256:")
    assert max(map(len, text.splitlines())) < 110


def test_only_the_owner_can_read_it(boosts: BoostFile, a_lease: Any, lab: Lab) -> None:
    boosts.path.with_name(boosts.path.name + ".new").touch(0o644)  # as a crash may have left it
    boosts.save((a_lease(),), lab)
    boosts.save((), lab)
    assert {file.stat().st_mode & 0o777 for file in boosts.path.parent.iterdir()} == {0o600}


def test_the_version_before_is_kept_and_nothing_else_is_left(boosts: BoostFile, a_lease: Any, lab: Lab) -> None:
    boosts.save((a_lease("b1"),), lab)
    before = boosts.path.read_bytes()
    boosts.save((a_lease("b2"),), lab)
    assert boosts.previous.read_bytes() == before
    assert set(boosts.path.parent.iterdir()) == {boosts.path, boosts.previous}


def test_a_changed_lease_is_written_anew(boosts: BoostFile, a_lease: Any, lab: Lab) -> None:
    first, second = a_lease("b1"), a_lease("b2")
    boosts.save((first, second), lab)
    changed = replace(first, state=LeaseState.RELEASING, release_reason="asked")
    boosts.save((changed, second), lab)
    assert boosts.load().leases == (changed, second)


def test_what_would_not_load_again_is_not_saved(boosts: BoostFile, a_lease: Any, lab: Lab) -> None:
    boosts.save((a_lease("b1"),), lab)
    for bad in (a_lease(units=0), a_lease(duration_s=float("nan")), a_lease(expires_at=datetime(2025, 1, 1))):
        with pytest.raises(ValueError):
            boosts.save((bad,), lab)
    with pytest.raises(ValueError, match="same id"):
        boosts.save((a_lease("b1"), a_lease("b1")), lab)
    assert boosts.load().leases == (a_lease("b1"),)


def test_a_removed_file_is_noticed_until_the_next_save(boosts: BoostFile, a_lease: Any, lab: Lab) -> None:
    assert not boosts.was_removed()
    boosts.save((a_lease(),), lab)
    assert not boosts.was_removed()
    boosts.path.unlink()
    assert boosts.was_removed()
    assert boosts.was_removed()
    boosts.save((), lab)
    assert not boosts.was_removed()


def test_a_file_that_was_never_there_was_not_removed(boosts: BoostFile) -> None:
    boosts.load()
    assert not boosts.was_removed()


def test_a_removal_is_not_lost_when_a_save_puts_the_file_back(boosts: BoostFile, a_lease: Any, lab: Lab) -> None:
    boosts.save((a_lease(),), lab)
    boosts.path.unlink()
    boosts.save((a_lease(), a_lease("b2")), lab)
    assert boosts.exists()
    assert boosts.was_removed()
    boosts.save((), lab)
    assert not boosts.was_removed()


def test_removed_boosts_do_not_come_back_from_the_previous_file(boosts: BoostFile, a_lease: Any, lab: Lab) -> None:
    boosts.save((a_lease("b1"),), lab)
    boosts.save((a_lease("b1"), a_lease("b2")), lab)
    boosts.path.unlink()
    assert BoostFile(boosts.path).load().leases == ()
    boosts.save((), lab)
    boosts.path.write_bytes(b"")
    assert BoostFile(boosts.path).load().leases == ()


def test_a_folder_that_cannot_be_looked_into_is_not_a_removal(
    boosts: BoostFile, a_lease: Any, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    boosts.save((a_lease(),), lab)

    def refuse(self: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)
    assert not boosts.was_removed()
