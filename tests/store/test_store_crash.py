"""A save that dies, or that the disk refuses, leaves the old boosts or the new ones, never neither."""

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.errors import StoreBroken
from distributed_grid.store.boost_file import BoostFile, ClusterIdentity

Lab = ClusterIdentity
STEPS = ("open", "write", "fsync", "close", "unlink", "link", "replace")
SURVIVED, DIED = 0, 9


def dies_at(step: int, work: Callable[[], None]) -> bool:
    """Run `work` in a child that is gone, without any cleaning up, before its `step`-th system call."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == DIED
    left = step

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left == 0:
                os._exit(DIED)
            left -= 1
            return real(*args, **kwargs)

        return call

    try:
        for name in STEPS:
            setattr(os, name, counted(getattr(os, name)))
        work()
    finally:
        os._exit(SURVIVED)


@pytest.mark.parametrize("start", ["first save", "later save", "damaged file", "no hard links"])
def test_a_crash_at_any_step_leaves_a_good_file(
    tmp_path: Path, a_lease: Any, lab: Lab, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (a_lease("b1"),), (a_lease("b1"), a_lease("b2"))
    if start == "no hard links":

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(os, "link", refuse)
    steps = 0
    while True:
        folder = tmp_path / str(steps)
        folder.mkdir()
        boosts = BoostFile(folder / "resource_boosts.json")
        before = () if start == "first save" else old
        if start != "first save":
            boosts.save((), lab)
            boosts.save(old, lab)
        if start == "damaged file":
            boosts.previous.write_bytes(boosts.path.read_bytes())
            boosts.path.write_bytes(boosts.path.read_bytes()[:-20])
        boosts = BoostFile(boosts.path)
        boosts.load()

        died = dies_at(steps, lambda boosts=boosts: boosts.save(new, lab))  # type: ignore[misc]

        after = BoostFile(boosts.path)
        loaded = after.load()
        assert loaded.leases in (before, new)
        if start != "damaged file":
            assert not loaded.problems
        after.save((a_lease("b3"),), lab)
        assert BoostFile(boosts.path).load().leases == (a_lease("b3"),)
        assert not list(folder.glob("*.new"))
        if not died:
            assert loaded.leases == new
            break
        steps += 1
    assert steps >= 8


def test_a_full_disk_changes_nothing_and_says_so(
    boosts: BoostFile, a_lease: Any, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    boosts.save((a_lease("b1"),), lab)
    before = boosts.path.read_bytes()
    really_write = os.write
    room = 100

    def write(fd: int, data: memoryview) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = really_write(fd, data[:room])
        room -= written
        return written

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(StoreBroken, match="No space left on device") as caught:
        boosts.save((a_lease("b2"),), lab)
    assert str(boosts.path) in caught.value.message
    assert "Free some space" in str(caught.value.try_next)
    assert list(boosts.path.parent.iterdir()) == [boosts.path]
    assert boosts.path.read_bytes() == before

    monkeypatch.undo()
    boosts.save((a_lease("b2"),), lab)
    assert boosts.load().leases == (a_lease("b2"),)


def test_a_file_that_the_system_stops_halfway_changes_nothing(boosts: BoostFile, a_lease: Any, lab: Lab) -> None:
    boosts.save((a_lease("b1"),), lab)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises(StoreBroken, match="File too large"):
            boosts.save((a_lease("b2"),), lab)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(boosts.path.parent.iterdir()) == [boosts.path]
    assert BoostFile(boosts.path).load().leases == (a_lease("b1"),)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_step_that_fails_leaves_the_old_boosts(
    boosts: BoostFile, a_lease: Any, lab: Lab, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    boosts.save((a_lease("b1"),), lab)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, step, refuse)
    with pytest.raises(StoreBroken, match="Input/output error"):
        boosts.save((a_lease("b2"),), lab)
    monkeypatch.undo()
    assert not list(boosts.path.parent.glob("*.new"))
    assert BoostFile(boosts.path).load().leases == (a_lease("b1"),)


def test_a_folder_that_is_none_is_said_to_be(tmp_path: Path, a_lease: Any, lab: Lab) -> None:
    (tmp_path / "home").write_text("a file")
    boosts = BoostFile(tmp_path / "home" / "resource_boosts.json")
    with pytest.raises(StoreBroken, match="Not a directory"):
        boosts.load()
    with pytest.raises(StoreBroken, match="Not a directory"):
        boosts.save((a_lease(),), lab)


def test_a_folder_that_is_missing_is_said_to_be(tmp_path: Path, a_lease: Any, lab: Lab) -> None:
    boosts = BoostFile(tmp_path / "home" / "resource_boosts.json")
    with pytest.raises(StoreBroken, match="No such file or directory") as caught:
        boosts.save((a_lease(),), lab)
    assert "GRID_HOME" in str(caught.value.try_next)
