"""What `stop` and `running` make of the record alone; the processes here are stand-ins for Ray's."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from faulty_files import FAULTS

from distributed_grid.cluster import ClusterRecord, NodeProcess, NodeSpec, running, start, stop
from distributed_grid.cluster.local import is_over
from distributed_grid.cluster.processes import alive, child_environment
from distributed_grid.cluster.record import load, only_one, save
from distributed_grid.errors import AlreadyRunning, StoreBroken
from distributed_grid.store.home import GridHome

HEAD = NodeSpec("m", cpus=0, gpus=0, memory_bytes=2**30, resources={}, is_head=True)
Sleeper = Callable[..., "psutil.Process"]


def silent(_: str) -> None:
    pass


@pytest.fixture
def home(tmp_path: Path) -> GridHome:
    return GridHome(tmp_path)


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    """Starts processes that do nothing, each in its own session, with a cluster's marker if one is given."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(marker: str | None = None, script: str = "import time; time.sleep(600)") -> psutil.Process:
        env = child_environment(os.environ, marker) if marker else None
        started.append(subprocess.Popen([sys.executable, "-c", script], env=env, start_new_session=True))
        return psutil.Process(started[-1].pid)

    yield begin
    for process in started:
        process.kill()
        process.wait()


def record_of(*processes: psutil.Process, age: float = 0.0) -> ClusterRecord:
    nodes = tuple(NodeProcess(f"n{p.pid}", p.pid, p.create_time() - age, "log") for p in processes)
    return ClusterRecord("test", "10.0.0.1:20001", "2030-01-01T00:00:00+00:00", nodes, "digest")


def test_a_record_comes_back_as_it_was_saved_for_its_owner_only(home: GridHome) -> None:
    record = record_of(psutil.Process())
    save(home, record)

    assert load(home) == record
    assert home.cluster.stat().st_mode & 0o777 == 0o600
    assert list(home.path.iterdir()) == [home.cluster]


def test_without_a_record_nothing_runs_and_nothing_is_stopped(home: GridHome) -> None:
    assert running(home) is None
    assert stop(home, progress=silent) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"nodes": [{"name": 1}]}'])
def test_a_damaged_record_is_said_to_be_one(home: GridHome, text: str) -> None:
    home.cluster.write_text(text)

    with pytest.raises(StoreBroken, match="not a cluster record"):
        running(home)


@pytest.mark.parametrize("name", ["cluster.json", "cluster.lock"])
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_is_wrong_with_the_record_the_cluster_is_watched_on_and_found_again(
    home: GridHome, sleeper: Sleeper, name: str, fault: str
) -> None:
    """The supervisor of the controller goes on; a command says what is wrong; and then all is as before."""
    head = sleeper()
    save(home, record := record_of(head))
    with only_one(home, wait=False):
        pass
    with FAULTS[fault](home.path / name, lambda: time.sleep(0.2)):
        assert not is_over(home, record)
        try:
            found = running(home)
            with only_one(home, wait=False):
                pass
        except StoreBroken as error:
            assert name in error.message
        except AlreadyRunning:
            assert (name, fault) == ("cluster.lock", "locked")
        else:
            is_gone = name == "cluster.json" and fault in ("missing", "nowhere")
            assert found == (None if is_gone else record)
        assert alive(head)

    assert running(home) == record
    assert not is_over(home, record)
    with pytest.raises(AlreadyRunning):
        start(home, "test", [HEAD], progress=silent)
    assert stop(home, progress=silent) == record
    assert is_over(home, record)


def test_a_cluster_whose_place_another_one_has_taken_is_over(home: GridHome, sleeper: Sleeper) -> None:
    head = sleeper()
    record = record_of(head)
    save(home, replace(record, started_at="2031-01-01T00:00:00+00:00"))

    assert is_over(home, record)


def test_the_cluster_runs_as_long_as_its_head_lives(home: GridHome, sleeper: Sleeper) -> None:
    head, worker = sleeper(), sleeper()
    save(home, record := record_of(head, worker))
    assert running(home) == record

    head.kill()
    head.wait()
    assert running(home) is None


def test_a_cluster_with_one_process_left_is_not_started_again(home: GridHome, sleeper: Sleeper) -> None:
    head, worker = sleeper(), sleeper()
    save(home, record_of(head, worker))
    head.kill()
    head.wait()

    with pytest.raises(AlreadyRunning, match=r"test is already running at 10\.0\.0\.1:20001"):
        start(home, "test", [HEAD], progress=silent)
    assert alive(worker)


def test_a_pid_that_was_given_away_again_is_left_alone(home: GridHome, sleeper: Sleeper) -> None:
    stranger = sleeper()
    save(home, record_of(stranger, age=3600))

    assert running(home) is None
    assert stop(home, progress=silent) is None
    assert alive(stranger)
    assert load(home) is None


def test_a_process_is_known_by_its_marker_when_the_clock_was_set(home: GridHome, sleeper: Sleeper) -> None:
    process = sleeper(record_of().marker)
    save(home, record_of(process, age=3600))

    assert running(home) is not None


def test_what_a_dying_starter_had_no_time_to_record_is_ended_too(home: GridHome, sleeper: Sleeper) -> None:
    save(home, record := record_of())
    unrecorded, stranger = sleeper(record.marker), sleeper("another cluster's marker")

    assert stop(home, progress=silent) == record
    assert not alive(unrecorded)
    assert alive(stranger)


def test_what_will_not_end_is_killed_with_all_its_children(home: GridHome, sleeper: Sleeper) -> None:
    stubborn = (
        "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)"
    )
    root = sleeper(script=stubborn)
    while not (children := root.children()):
        assert alive(root)
    save(home, record := record_of(root))

    assert stop(home, progress=silent) == record
    assert not any(alive(p) for p in (root, *children))
    assert stop(home, progress=silent) is None


def test_two_commands_never_start_the_same_cluster_together(home: GridHome) -> None:
    with only_one(home, wait=False), pytest.raises(AlreadyRunning, match="Another command"):
        start(home, "test", [HEAD], progress=silent)
