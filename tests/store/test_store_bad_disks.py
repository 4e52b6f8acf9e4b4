"""Full, read-only and remote disks: the last good boosts survive, and the message says what happened."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from disks import filled, read_only, small_disk

from distributed_grid.errors import StoreBroken
from distributed_grid.store.boost_file import BoostFile, ClusterIdentity
from distributed_grid.store.writer_lock import WriterLock

Lab = ClusterIdentity


def failing(error: int) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error))

    return fail


def done_though_it_says(error: int, really: Callable[..., Any]) -> Callable[..., None]:
    """The server did it, its answer was lost, and the question was sent again."""

    def call(*args: Any, **kwargs: Any) -> None:
        really(*args, **kwargs)
        raise OSError(error, os.strerror(error))

    return call


def names(boosts: BoostFile) -> set[str]:
    return {file.name for file in boosts.path.parent.iterdir()}


# -- full, or not to be written ------------------------------------------------------------------------------


def test_a_full_disk_keeps_the_last_boosts_and_takes_new_ones_when_there_is_space(
    tmp_path: Path, a_lease: Any, lab: Lab
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        boosts = BoostFile(disk / "resource_boosts.json")
        boosts.save((a_lease("b1"),), lab)
        boosts.save((a_lease("b1"), a_lease("b2")), lab)
        before = boosts.path.read_bytes(), boosts.previous.read_bytes()
        with filled(disk):
            with pytest.raises(StoreBroken, match="No space left on device") as caught:
                boosts.save((), lab)
            assert "as they were last saved are still there" in caught.value.because[0]
            assert f"Free some space for {disk}" in str(caught.value.try_next)
            assert (boosts.path.read_bytes(), boosts.previous.read_bytes()) == before
            assert not boosts.was_removed()
        boosts.save((), lab)
        assert BoostFile(boosts.path).load().leases == ()


def test_a_full_disk_cannot_keep_a_controller_from_taking_the_lock(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        lock = WriterLock(disk / "writer.lock")
        lock.acquire()
        lock.release()
        with filled(disk), lock:
            assert lock.held
        assert not lock.held


def test_a_read_only_disk_can_be_read_and_locked_and_says_what_it_is(tmp_path: Path, a_lease: Any, lab: Lab) -> None:
    with small_disk(tmp_path / "disk") as disk:
        boosts, lock = BoostFile(disk / "resource_boosts.json"), WriterLock(disk / "writer.lock")
        boosts.save((a_lease("b1"),), lab)
        with lock:
            pass
        with read_only(disk):
            with lock:
                assert lock.held
            again = BoostFile(boosts.path)
            assert [lease.id for lease in again.load().leases] == ["b1"]
            with pytest.raises(StoreBroken, match="Read-only file system") as caught:
                again.save((), lab)
            assert "writable for your user" in str(caught.value.try_next) and "GRID_HOME" in str(caught.value.try_next)
        again.save((), lab)


def test_what_is_damaged_on_a_read_only_disk_is_reported_and_kept_once_it_can_be(
    tmp_path: Path, a_lease: Any, lab: Lab
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        boosts = BoostFile(disk / "resource_boosts.json")
        boosts.path.write_bytes(b"{")
        boosts.previous.write_bytes(b"[")
        with read_only(disk):
            loaded = boosts.load()
            assert "is damaged too" in loaded.problems[0]
        boosts.save((a_lease("b1"),), lab)
        assert sorted(file.read_bytes() for file in disk.glob("*.broken-*")) == [b"[", b"{"]


@pytest.mark.skipif(os.getuid() != 0, reason="needs to be root, to become a user who may not write")
def test_a_folder_of_another_user_is_said_to_be(tmp_path: Path, a_lease: Any, lab: Lab) -> None:
    boosts = BoostFile(tmp_path / "resource_boosts.json")
    boosts.save((a_lease("b1"),), lab)
    for path in (tmp_path, *tmp_path.parents[:-2]):
        path.chmod(0o755)
    boosts.path.chmod(0o644)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            theirs = BoostFile(boosts.path)
            read = [lease.id for lease in theirs.load().leases]
            try:
                theirs.save((), lab)
            except StoreBroken as error:
                os.write(writer, f"{read} {error.message} {error.try_next}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    reported = os.read(reader, 10_000).decode()
    os.close(reader)
    os.waitpid(child, 0)
    assert reported.startswith("['b1']")
    assert "Permission denied" in reported and "writable for your user" in reported
    assert BoostFile(boosts.path).load().leases == (a_lease("b1"),)


# -- file servers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.EBUSY])
def test_a_rename_that_fails_leaves_the_old_boosts(
    boosts: BoostFile, a_lease: Any, lab: Lab, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    boosts.save((a_lease("b1"),), lab)
    monkeypatch.setattr(os, "replace", failing(error))
    with pytest.raises(StoreBroken, match=os.strerror(error)) as caught:
        boosts.save((a_lease("b2"),), lab)
    monkeypatch.undo()
    assert "last saved are still there" in caught.value.because[0]
    assert "the file server behind" in str(caught.value.try_next)
    assert BoostFile(boosts.path).load().leases == (a_lease("b1"),)
    boosts.save((a_lease("b2"),), lab)
    assert BoostFile(boosts.path).load().leases == (a_lease("b2"),)
    assert names(boosts) == {boosts.path.name, boosts.previous.name}


@pytest.mark.parametrize("error", [errno.ENOENT, errno.EIO, errno.ESTALE])
def test_a_rename_that_was_done_though_it_says_it_failed_is_done(
    boosts: BoostFile, a_lease: Any, lab: Lab, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    boosts.save((a_lease("b1"),), lab)
    monkeypatch.setattr(os, "replace", done_though_it_says(error, os.replace))
    boosts.save((a_lease("b2"),), lab)
    monkeypatch.undo()
    assert BoostFile(boosts.path).load().leases == (a_lease("b2"),)
    assert BoostFile(boosts.previous).load().leases == (a_lease("b1"),)
    assert not boosts.was_removed()


@pytest.mark.parametrize("error", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EIO, errno.ESTALE])
def test_without_hard_links_the_previous_version_is_a_copy(
    boosts: BoostFile, a_lease: Any, lab: Lab, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    monkeypatch.setattr(os, "link", failing(error))
    for number in range(3):
        boosts.save((a_lease(f"b{number}"),), lab)
    assert BoostFile(boosts.path).load().leases == (a_lease("b2"),)
    assert BoostFile(boosts.previous).load().leases == (a_lease("b1"),)
    assert names(boosts) == {boosts.path.name, boosts.previous.name}
    boosts.path.write_bytes(b"{")
    again = BoostFile(boosts.path)
    again.save(again.load().leases, lab)
    assert [file.read_bytes() for file in boosts.path.parent.glob("*.broken-*")] == [b"{"]
    assert {file.stat().st_mode & 0o777 for file in boosts.path.parent.iterdir()} == {0o600}


def test_a_link_that_was_made_though_it_says_it_failed_is_made(
    boosts: BoostFile, a_lease: Any, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    boosts.save((a_lease("b1"),), lab)
    monkeypatch.setattr(os, "link", done_though_it_says(errno.EEXIST, os.link))
    boosts.save((a_lease("b2"),), lab)
    assert BoostFile(boosts.previous).load().leases == (a_lease("b1"),)


def test_a_removal_is_noticed_without_hard_links_too(
    boosts: BoostFile, a_lease: Any, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    boosts.save((a_lease("b1"),), lab)
    boosts.save((a_lease("b1"),), lab)
    boosts.path.unlink()
    boosts.save((a_lease("b1"), a_lease("b2")), lab)
    assert boosts.was_removed()
    assert not boosts.previous.exists()


def test_a_write_that_the_disk_does_not_confirm_is_reported_as_what_it_is(
    boosts: BoostFile, a_lease: Any, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    boosts.save((a_lease("b1"),), lab)
    really_sync, calls = os.fsync, 0

    def fsync(fd: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:  # the folder, after the rename
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        really_sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StoreBroken, match="Input/output error") as caught:
        boosts.save((a_lease("b2"),), lab)
    assert "the disk has not confirmed it" in caught.value.because[0]
    assert BoostFile(boosts.path).load().leases == (a_lease("b2"),)


def test_folders_that_cannot_be_synced_by_themselves_are_no_problem(
    boosts: BoostFile, a_lease: Any, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_sync = os.fsync

    def fsync(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").resolve().is_dir():
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        really_sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    boosts.save((a_lease("b1"),), lab)
    assert BoostFile(boosts.path).load().leases == (a_lease("b1"),)
