"""Whatever happens to the bytes on disk, load gives good boosts or says what is wrong; nothing is deleted."""

import json
import os
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_grid.errors import StoreBroken
from distributed_grid.store.boost_file import BoostFile
from distributed_grid.store.identity import ClusterIdentity

Lab = ClusterIdentity


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, a_lease: Any, lab: Lab) -> BoostFile:
    """Two versions: the previous one with b1, the present one with b1 and b2."""
    boosts = BoostFile(tmp_path_factory.mktemp("saved") / "resource_boosts.json")
    boosts.save((a_lease("b1"),), lab)
    boosts.save((a_lease("b1"), a_lease("b2")), lab)
    return boosts


@pytest.fixture(scope="module")
def good(saved: BoostFile) -> bytes:
    return saved.path.read_bytes()


_folders = count()


def damaged(saved: BoostFile, data: bytes, *, previous: bytes | None = None) -> BoostFile:
    """A store of its own, with this for its file."""
    folder = saved.path.parent / str(next(_folders))
    folder.mkdir()
    boosts = BoostFile(folder / saved.path.name)
    boosts.path.write_bytes(data)
    boosts.previous.write_bytes(saved.previous.read_bytes() if previous is None else previous)
    return boosts


def ids(boosts: BoostFile) -> list[str]:
    return [lease.id for lease in boosts.load().leases]


def aside(boosts: BoostFile) -> list[Path]:
    return sorted(boosts.path.parent.glob("*.broken-*"))


def test_a_file_cut_off_anywhere_gives_way_to_the_previous_one(saved: BoostFile, good: bytes) -> None:
    boosts = damaged(saved, b"")
    for length in range(len(good.rstrip())):
        boosts.path.write_bytes(good[:length])
        loaded = boosts.load()
        assert loaded.came_from == "previous"
        assert [lease.id for lease in loaded.leases] == ["b1"]
        assert loaded.cluster is not None
        assert "is damaged" in loaded.problems[0]
        assert "took resource_boosts.json.previous" in loaded.problems[0]


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_changed_byte_never_changes_a_boost(saved: BoostFile, good: bytes, data: st.DataObject) -> None:
    where = data.draw(st.integers(0, len(good) - 1))
    flip = data.draw(st.integers(1, 255))
    boosts = BoostFile(saved.path.parent / "flipped.json")
    boosts.path.write_bytes(good[:where] + bytes([good[where] ^ flip]) + good[where + 1 :])
    boosts.previous.write_bytes(saved.previous.read_bytes())
    try:
        loaded = boosts.load()
    except StoreBroken:
        assert good[:where].endswith(b'"version": ')  # it looks like a later grid's: left alone, nothing is lost
        return
    if loaded.came_from == "file":
        assert [lease.id for lease in loaded.leases] == ["b1", "b2"]
        assert good[where : where + 1].isspace()  # between or after the last tokens, where it means nothing
    else:
        assert [lease.id for lease in loaded.leases] == ["b1"]
        assert loaded.problems


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b"\n", "it is empty"),
        (b"\0" * 500, "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "unknown version None"),
        (b'{"version": true}', "unknown version True"),
        (b'{"version": 0}', "unknown version 0"),
        (b'{"version": 1, "boosts": []}', "its checksum does not match"),
    ],
)
def test_it_is_said_what_the_damage_is(saved: BoostFile, content: bytes, why: str) -> None:
    loaded = damaged(saved, content).load()
    assert why in loaded.problems[0]
    assert loaded.came_from == "previous"


def test_an_edit_by_hand_is_noticed(saved: BoostFile, good: bytes) -> None:
    edited = good.replace(b'"priority": "normal"', b'"priority": "high"')
    assert "its checksum does not match" in damaged(saved, edited).load().problems[0]


def test_loading_the_previous_file_again_gives_the_same(saved: BoostFile) -> None:
    boosts = damaged(saved, b"{")
    assert boosts.load() == boosts.load()
    assert boosts.path.read_bytes() == b"{"


def test_a_damaged_file_never_takes_the_place_of_the_good_previous_one(
    saved: BoostFile, a_lease: Any, lab: Lab
) -> None:
    boosts = damaged(saved, b"{")  # not loaded by hand: save looks for itself
    boosts.save((a_lease("b3"),), lab)
    assert ids(boosts) == ["b3"]
    assert boosts.previous.read_bytes() == saved.previous.read_bytes()
    assert [file.read_bytes() for file in aside(boosts)] == [b"{"]


def test_removing_a_damaged_file_ends_the_boosts_of_the_previous_one_too(saved: BoostFile, lab: Lab) -> None:
    boosts = damaged(saved, b"{")
    assert ids(boosts) == ["b1"]
    boosts.path.unlink()
    assert boosts.was_removed()
    boosts.save((), lab)
    assert not boosts.previous.exists()


def test_with_both_damaged_the_store_is_empty_and_both_are_kept(saved: BoostFile, a_lease: Any, lab: Lab) -> None:
    boosts = damaged(saved, b"{", previous=b"[")
    loaded = boosts.load()
    assert (loaded.leases, loaded.cluster, loaded.came_from) == ((), None, "nothing")
    assert "is damaged too" in loaded.problems[0]
    assert str(aside(boosts)[0]) in loaded.problems[0]
    assert [file.read_bytes() for file in aside(boosts)] == [b"{", b"["]
    assert not boosts.was_removed()
    boosts.save((a_lease(),), lab)
    assert ids(boosts) == ["b1"]
    assert len(aside(boosts)) == 2


def test_no_broken_file_replaces_another(saved: BoostFile) -> None:
    boosts = damaged(saved, b"{", previous=b"")
    boosts.load()
    boosts.path.write_bytes(b"[")
    for file in boosts.path, *aside(boosts):
        os.utime(file, (1e9, 1e9))
    loaded = boosts.load()
    assert "there is no resource_boosts.json.previous" in loaded.problems[0]
    assert sorted(file.read_bytes() for file in aside(boosts)) == [b"", b"[", b"{"]


@pytest.mark.parametrize("which", ["file", "previous"])
def test_a_later_grids_file_is_refused_and_left_alone(
    saved: BoostFile, good: bytes, a_lease: Any, lab: Lab, which: str
) -> None:
    later = json.dumps({"version": 2, "leases": {}}).encode()
    boosts = damaged(saved, later) if which == "file" else damaged(saved, b"{", previous=later)
    before = {file: file.read_bytes() for file in boosts.path.parent.iterdir()}
    with pytest.raises(StoreBroken, match="later version of grid") as caught:
        boosts.load()
    assert "Upgrade grid" in str(caught.value.try_next)
    with pytest.raises(StoreBroken):
        boosts.save((a_lease(),), lab)
    assert {file: file.read_bytes() for file in boosts.path.parent.iterdir()} == before


def test_a_file_that_cannot_be_opened_is_not_taken_for_a_damaged_one(saved: BoostFile) -> None:
    boosts = damaged(saved, b"")
    boosts.path.unlink()
    boosts.path.mkdir()
    with pytest.raises(StoreBroken, match="Is a directory"):
        boosts.load()
