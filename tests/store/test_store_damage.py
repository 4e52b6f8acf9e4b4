"""Whatever happens to the bytes on disk, load gives good boosts or says what is wrong; nothing is deleted."""

import json
import os
import random
import re
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.errors import StoreBroken
from distributed_grid.store.boost_file import BoostFile, ClusterIdentity

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
    for length in range(len(good)):
        boosts.path.write_bytes(good[:length])
        loaded = boosts.load()
        if good[:length] == good.rstrip():  # only the line break at its end is missing
            assert ids(boosts) == ["b1", "b2"]
            continue
        assert loaded.came_from == "previous"
        assert [lease.id for lease in loaded.leases] == ["b1"]
        assert loaded.cluster is not None
        assert "is damaged" in loaded.problems[0]
        assert "used resource_boosts.json.previous" in loaded.problems[0]


def test_bytes_flipped_in_ten_thousand_ways_never_change_a_boost(saved: BoostFile, good: bytes) -> None:
    chance = random.Random(20250601)
    boosts = damaged(saved, good)
    previous, now = BoostFile(saved.previous).load().leases, BoostFile(saved.path).load().leases
    refused = 0
    for case in range(10_000):
        data = bytearray(good)
        for _ in range(1 + case % 4):
            data[chance.randrange(len(data))] ^= chance.randrange(1, 256)
        with boosts.path.open("r+b") as file:  # in place, as a disk does it
            file.write(data)
        try:
            loaded = boosts.load()
        except StoreBroken:
            # It looks like a later grid's: left alone, and nothing is lost.
            assert re.search(rb'"version": *[0-9]*[2-9]', data)
            refused += 1
            continue
        if loaded.came_from == "file":
            assert loaded.leases == now
            assert data.rstrip()[:-1].rstrip() == good.rstrip()[:-1].rstrip()  # only white space at the end differs
        else:
            assert loaded.leases == previous
            assert "is damaged" in loaded.problems[0]
    assert refused < 100


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
    assert not aside(boosts)  # a reader changes nothing
    assert not boosts.was_removed()
    boosts.save((a_lease(),), lab)
    assert ids(boosts) == ["b1"]
    assert str(aside(boosts)[0]) in loaded.problems[0]
    assert [file.read_bytes() for file in aside(boosts)] == [b"{", b"["]
    assert not boosts.previous.exists()


def test_no_broken_file_replaces_another(saved: BoostFile, a_lease: Any, lab: Lab) -> None:
    boosts = damaged(saved, b"{", previous=b"")
    boosts.save((), lab)
    boosts.path.write_bytes(b"[")
    for file in boosts.path, *aside(boosts):
        os.utime(file, (1e9, 1e9))
        boosts.path.with_name(f"{boosts.path.name}.broken-20010909T014640Z").write_bytes(b"earlier")
    loaded = boosts.load()
    assert "there is no resource_boosts.json.previous" in loaded.problems[0]
    assert "broken-20010909T014640Z-2" in loaded.problems[0]
    boosts.save((a_lease(),), lab)
    assert sorted(file.read_bytes() for file in aside(boosts)) == [b"", b"[", b"earlier", b"{"]


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
