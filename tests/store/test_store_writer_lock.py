"""There is never a second writer."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from distributed_grid.errors import AlreadyRunning, StoreBroken
from distributed_grid.store.writer_lock import WriterLock

HOLD = """
import sys
from pathlib import Path
from distributed_grid.errors import AlreadyRunning
from distributed_grid.store.writer_lock import WriterLock
sys.stdin.readline()
try:
    WriterLock(Path(sys.argv[1])).acquire()
except AlreadyRunning:
    print("refused", flush=True)
else:
    print("held", flush=True)
sys.stdin.readline()
"""


def contender(path: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def tell(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def answer(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture
def lock_path(tmp_path: Path) -> Path:
    return tmp_path / "writer.lock"


def test_of_processes_that_race_one_wins_and_its_death_frees_the_lock(lock_path: Path) -> None:
    racers = [contender(lock_path) for _ in range(3)]
    try:
        for racer in racers:
            tell(racer)
        answers = [answer(racer) for racer in racers]
        assert sorted(answers) == ["held", "refused", "refused"]

        winner = racers[answers.index("held")]
        with pytest.raises(AlreadyRunning) as caught:
            WriterLock(lock_path).acquire()
        assert f"Process {winner.pid} already runs grid" in caught.value.message
        assert "GRID_HOME" in str(caught.value.try_next)

        winner.send_signal(signal.SIGKILL)
        winner.wait()
        with WriterLock(lock_path):
            assert lock_path.read_text() == f"{os.getpid()}\n"
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


def test_it_can_be_taken_again_after_release(lock_path: Path) -> None:
    lock = WriterLock(lock_path)
    for _ in range(3):
        with lock:
            assert lock.held
        assert not lock.held
        assert lock_path.read_text() == ""
    lock.release()


def test_the_same_process_cannot_take_it_twice(lock_path: Path) -> None:
    with WriterLock(lock_path) as lock:
        before = open_files()
        for again in (lock, WriterLock(lock_path)):
            with pytest.raises(AlreadyRunning, match=f"Process {os.getpid()}"):
                again.acquire()
        assert lock.held
        assert open_files() == before


def test_a_holder_that_has_not_written_its_pid_yet_is_another_process(lock_path: Path) -> None:
    with WriterLock(lock_path):
        lock_path.write_text("")
        with pytest.raises(AlreadyRunning, match="Another process already runs grid"):
            WriterLock(lock_path).acquire()


def test_a_lock_whose_file_was_removed_is_no_longer_held(lock_path: Path) -> None:
    with WriterLock(lock_path) as lock:
        lock_path.unlink()
        assert not lock.held
        lock_path.touch()
        assert not lock.held


def test_a_lock_whose_file_is_removed_while_it_is_taken_is_taken_on_the_new_one(
    lock_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_lock, removals = fcntl.flock, [lock_path.unlink]

    def flock(fd: int, how: int) -> None:
        while removals:
            removals.pop()()
        really_lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    before = open_files()
    with WriterLock(lock_path) as lock:
        assert lock.held
        with pytest.raises(AlreadyRunning):
            WriterLock(lock_path).acquire()
    assert open_files() == before


def test_a_program_started_by_the_holder_does_not_keep_the_lock(lock_path: Path) -> None:
    with WriterLock(lock_path):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with WriterLock(lock_path) as lock:
            assert lock.held
    finally:
        child.kill()
        child.wait()


def test_release_frees_the_lock_even_where_a_forked_child_lives_on(lock_path: Path) -> None:
    reader, writer = os.pipe()
    with WriterLock(lock_path):
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)  # ends when the parent closes its side
            os._exit(0)
    try:
        with WriterLock(lock_path) as lock:
            assert lock.held
    finally:
        os.close(writer)
        os.waitpid(child, 0)
        os.close(reader)


def test_a_folder_that_is_none_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(StoreBroken, match="Not a directory"):
        WriterLock(tmp_path / "home" / "writer.lock").acquire()
