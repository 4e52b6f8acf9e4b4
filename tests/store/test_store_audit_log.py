"""What was logged stays, whole and in order."""

import asyncio
import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from faulty_files import failing, locked, opening

from distributed_grid.errors import StoreBroken
from distributed_grid.store.audit_log import AuditLog, QueuedAuditLog, Wanted

NOON = datetime(2025, 6, 1, 12, tzinfo=UTC)

APPEND_MANY = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from distributed_grid.store.audit_log import AuditLog
log = AuditLog(Path(sys.argv[1]), rotate_above=100_000)
for n in range(200):
    log.append("counted", datetime.now(UTC), who=sys.argv[2], n=n, padding="x" * (n % 50 * 10))
"""


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    return AuditLog(tmp_path / "audit.jsonl")


def events(log: AuditLog, limit: int | None = None) -> list[str]:
    return [entry["event"] for entry in log.read(limit)]


def test_an_entry_says_when_what_who_and_on_what(log: AuditLog) -> None:
    log.append("boost_granted", NOON, who="alice", boost_id="b1", node="gpu1", amount=2)
    assert log.read() == [
        {
            "at": "2025-06-01T12:00:00Z",
            "event": "boost_granted",
            "who": "alice",
            "boost_id": "b1",
            "node": "gpu1",
            "amount": 2,
        }
    ]
    assert len(log.path.read_bytes().splitlines()) == 1


def test_only_the_owner_can_read_it(log: AuditLog) -> None:
    log.append("started", NOON)
    assert log.path.stat().st_mode & 0o777 == 0o600


def test_a_log_that_is_not_there_is_empty(log: AuditLog) -> None:
    assert log.read() == []


def test_the_last_entries_are_given_oldest_first(log: AuditLog) -> None:
    for n in range(3000):
        log.append(f"e{n}", NOON, padding="ü" * 20)
    assert events(log, 3) == ["e2997", "e2998", "e2999"]
    assert events(log, 0) == []
    assert events(log) == [f"e{n}" for n in range(3000)]


def test_a_value_that_json_does_not_know_is_written_as_text(log: AuditLog) -> None:
    log.append("e", NOON, path=Path("/x"), line="two\nlines")
    assert log.read()[0]["path"] == "/x"
    assert len(log.path.read_bytes().splitlines()) == 1


def test_a_line_torn_anywhere_is_left_out_and_swallows_nothing(log: AuditLog) -> None:
    log.append("first", NOON)
    log.append("torn", NOON)
    whole = log.path.read_bytes()
    start = whole.index(b"\n") + 1
    for end in range(start, len(whole) - 1):
        log.path.write_bytes(whole[:end])
        assert events(log) == ["first"]
        log.append("after", NOON)
        assert events(log) == ["first", "after"]
    log.path.write_bytes(whole[:-1])
    log.append("after", NOON)
    assert events(log) == ["first", "torn", "after"]


def test_a_large_log_is_rotated_and_the_oldest_goes(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", rotate_above=1000)
    for n in range(200):
        log.append(f"e{n}", NOON)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "audit.jsonl",
        "audit.jsonl.1",
        "audit.jsonl.2",
        "audit.jsonl.3",
    ]
    kept = events(log)
    assert kept == [f"e{n}" for n in range(200 - len(kept), 200)]
    assert 30 < len(kept) < 60
    assert events(log, 20) == kept[-20:]


def test_lines_of_several_processes_never_mix_even_while_rotating(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", APPEND_MANY, str(path), f"w{n}"]) for n in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    lines = [line for file in tmp_path.iterdir() for line in file.read_bytes().splitlines() if line]
    entries = [json.loads(line) for line in lines]
    for who in ("w0", "w1", "w2"):
        assert sorted(entry["n"] for entry in entries if entry["who"] == who) == list(range(200))
    assert len(list(tmp_path.iterdir())) > 1


def test_a_log_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    log = AuditLog(tmp_path / "home" / "audit.jsonl")
    with pytest.raises(StoreBroken, match="Not a directory"):
        log.append("e", NOON)
    with pytest.raises(StoreBroken, match="Not a directory"):
        log.read()


def test_a_disk_that_takes_only_part_of_a_line_is_full(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append("first", NOON)
    really_write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: really_write(fd, data[:10]))
    with pytest.raises(StoreBroken, match=os.strerror(errno.ENOSPC)):
        log.append("torn", NOON)
    monkeypatch.undo()
    log.append("after", NOON)
    assert events(log) == ["first", "after"]


# -- finding -------------------------------------------------------------------------------------------------


def test_entries_are_found_by_all_that_is_said_of_them(log: AuditLog) -> None:
    log.append("granted", NOON, who="ana", boost_id="abc1", node="gpu1", source="gpu2", target="gpu1")
    log.append("refused", NOON, who="ben", node="gpu1")
    log.append("returned", NOON + timedelta(hours=1), who="grid", boost_id="abc1", node="gpu2")
    log.append("granted", NOON + timedelta(hours=2), who="ana", boost_id="abd2", node="gpu3")

    def found(**wanted: Any) -> list[tuple[str, str]]:
        return [(entry["event"], entry["who"]) for entry in log.find(Wanted(**wanted))]

    assert len(found()) == 4
    assert found(who="ana") == [("granted", "ana"), ("granted", "ana")]
    assert found(node="gpu2") == [("granted", "ana"), ("returned", "grid")]
    assert found(boost="ABC") == [("granted", "ana"), ("returned", "grid")]
    assert found(event="refused") == [("refused", "ben")]
    assert found(since=NOON + timedelta(minutes=30)) == [("returned", "grid"), ("granted", "ana")]
    assert found(who="ana", boost="abc", since=NOON) == [("granted", "ana")]
    assert found(who="ana", event="refused") == []


def test_finding_goes_through_rotated_files_and_stops_where_it_may(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", rotate_above=2000, keep=3)
    for n in range(60):
        log.append("e", NOON + timedelta(minutes=n), n=n)
    assert log.path.with_name("audit.jsonl.2").exists()
    assert [entry["n"] for entry in log.find(Wanted(since=NOON + timedelta(minutes=25)))] == list(range(25, 60))
    assert [entry["n"] for entry in log.find(Wanted(since=NOON + timedelta(minutes=25)), 2)] == [58, 59]
    log.path.with_name("audit.jsonl.2").write_bytes(b"\xff" * 100)  # what is older than asked for is not even read
    assert [entry["n"] for entry in log.find(Wanted(since=NOON + timedelta(minutes=58)))] == [58, 59]


def test_an_entry_without_a_time_is_shown_rather_than_hidden(log: AuditLog) -> None:
    log.path.write_text('{"event": "odd"}\n{"event": "odder", "at": 7}\n')
    assert len(log.find(Wanted(since=NOON))) == 2


# -- without making an event loop wait -------------------------------------------------------------------------


@pytest.fixture
def queued(tmp_path: Path) -> QueuedAuditLog:
    return QueuedAuditLog(tmp_path / "audit.jsonl")


@contextmanager
def stuck(path: Path) -> Iterator[threading.Event]:
    """The disk takes nothing until it is told to go on."""
    go_on = threading.Event()
    with opening(path, lambda: go_on.wait(60.0) and None):
        try:
            yield go_on
        finally:
            go_on.set()


def test_a_disk_that_hangs_holds_up_no_event_loop_and_all_lines_come_in_order(queued: QueuedAuditLog) -> None:
    async def note() -> int:
        for number in range(100):
            queued.append("counted", NOON, n=number)
        await asyncio.sleep(0)
        return queued.waiting

    with stuck(queued.path) as go_on:
        loop = asyncio.new_event_loop()
        try:
            assert loop.run_until_complete(note()) == 100
        finally:
            go_on.set()
            loop.run_until_complete(queued.finish())
            loop.close()
    assert [entry["n"] for entry in AuditLog(queued.path).read()] == list(range(100))


def test_a_reader_sees_what_was_appended_before(queued: QueuedAuditLog) -> None:
    async def note_and_read() -> list[str]:
        queued.append("first", NOON)
        queued.append("second", NOON)
        return events(queued)  # no other thread had a turn meanwhile

    assert asyncio.run(note_and_read()) == ["first", "second"]


def test_what_a_disk_does_not_take_stays_in_the_queue_and_is_reported(queued: QueuedAuditLog) -> None:
    with opening(queued.path, failing(errno.ENOSPC)):
        queued.append("first", NOON)
        assert "No space left" in (queued.trouble or "") and queued.waiting == 1
        with pytest.raises(StoreBroken, match="No space left"):
            queued.append("second", NOON)
    queued.flush()
    assert queued.trouble is None and queued.waiting == 0
    queued.append("third", NOON)
    assert events(queued) == ["first", "third"]  # the second one is still its caller's


def test_a_full_queue_takes_no_more(queued: QueuedAuditLog) -> None:
    async def flood() -> None:
        with pytest.raises(StoreBroken, match="slow"):
            for number in range(10_000):
                queued.append("counted", NOON, n=number)

    with stuck(queued.path):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(flood())
        taken = queued.waiting
    loop.run_until_complete(queued.finish())
    loop.close()
    assert 0 < taken < 10_000
    assert [entry["n"] for entry in AuditLog(queued.path).read()][:10] == list(range(10))


@pytest.mark.timeout(60)
def test_a_lock_that_another_process_holds_keeps_no_line_waiting(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", rotate_above=10)
    log.append("first", NOON)
    with locked(log.path):
        log.append("second", NOON)
        assert not log.path.with_name("audit.jsonl.1").exists()
    log.append("third", NOON)

    assert log.path.with_name("audit.jsonl.1").exists()
    assert events(log) == ["first", "second", "third"]
