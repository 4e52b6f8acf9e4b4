"""What a captured program's hook tells the one who started it."""

import json
from pathlib import Path

import pytest

from distributed_grid.capture.inside_lease.captured import Captured
from distributed_grid.capture.inside_lease.reporting import Refusal, Reports


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_thing_is_reported_once_in_the_file_that_was_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report"
    reports = Reports(str(path))

    for _ in range(3):
        reports.escaped("task f: on node b", "the lease is on node a")
    reports.rewritten("task f: on node b", "the affinity was soft")
    reports.job("01000000")
    reports.job("01000000")

    assert [line["event"] for line in lines(path)] == ["escaped", "rewritten", "job", "job"]
    assert lines(path)[0] == {"event": "escaped", "what": "task f: on node b", "why": "the lease is on node a"}
    assert capsys.readouterr() == ("", "")


def test_without_a_file_it_is_told_on_stderr_and_jobs_are_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    reports = Reports(None)

    reports.job("01000000")
    reports.escaped("task f: on node b", "the lease is on node a")
    reports.escaped("task f: on node b", "the lease is on node a")

    assert capsys.readouterr().err == "grid: NOT in the lease: task f: on node b: the lease is on node a\n"


def test_a_file_that_cannot_be_written_loses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Reports(str(tmp_path / "nowhere" / "report")).note("detached actor A", "it ends with the lease")

    assert capsys.readouterr().err == "grid: detached actor A: it ends with the lease\n"


def test_a_program_with_endless_names_does_not_fill_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "report"
    reports = Reports(str(path))

    for number in range(2000):
        reports.rewritten(f"task f{number}: SPREAD", "the lease is on one node")
    reports.escaped("task g: on node b", "the lease is on node a")

    assert len(lines(path)) == 502
    assert lines(path)[500]["what"] == "others"
    assert lines(path)[501]["event"] == "escaped"


def test_work_is_refused_once_the_lease_is_gone_and_not_while_it_is_only_asked_back(tmp_path: Path) -> None:
    file, report = tmp_path / "reclaim.json", tmp_path / "report"
    environ = {"GRID_PLACEMENT_GROUP": "00" * 18, "GRID_RECLAIM_FILE": str(file), "GRID_RUN_REPORT": str(report)}
    captured = Captured(environ)
    asked = {"boost_id": "42ecbd65-0000", "cause": "released", "ends_in_seconds": 30.0}

    captured.check_lease(lambda: ("task", "f"))
    file.write_text(json.dumps(asked))
    captured.check_lease(lambda: ("task", "f"))
    file.write_text(json.dumps({**asked, "ends_in_seconds": 0.0, "gone": "released by ana"}))
    with pytest.raises(Refusal, match="task f cannot run: boost 42ecbd65 has ended: released by ana"):
        captured.check_lease(lambda: ("task", "f"))

    assert lines(report) == [{"event": "refused", "what": "task f", "why": "released by ana"}]
