"""What happened to a run is read as it comes, each line once, only whole lines; and told in a line for each kind."""

import json
from pathlib import Path
from typing import Any

from distributed_grid.run.progress import of_the_run
from distributed_grid.run.reports import Reports


def test_lines_are_read_as_they_come_and_kept_for_the_end(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    reports = Reports(path)
    assert list(reports.news()) == []

    escaped = json.dumps({"event": "escaped", "what": "task f", "why": "node affinity"})
    path.write_text('{"event": "job", "job_id": "02000000"}\n' + escaped[:10])
    assert list(reports.news()) == []
    assert reports.jobs == ["02000000"]
    assert reports.summary({}) == []

    path.write_text('{"event": "job", "job_id": "02000000"}\n' + escaped + "\nnonsense\n[1]\n")
    assert list(reports.news()) == []
    with path.open("a") as more:
        more.write('{"event": "rewritten", "what": "SPREAD"}\n{"event": "job", "job_id": "02000000"}\n')
    assert list(reports.news()) == []
    assert reports.jobs == ["02000000"]
    assert reports.summary({}) == ["outside the lease, 1: task f (node affinity)", "kept inside, 1: SPREAD"]


def test_there_is_one_line_for_each_kind_of_event_with_how_many_there_were(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    reports = Reports(path)
    reported = [{"event": "rewritten", "what": f"placement group {number}", "why": "it fits"} for number in range(40)]
    reported += [reported[0], {"event": "refused", "what": "Ray Serve", "why": "one for all"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in reported))

    assert list(reports.news()) == []

    assert reports.summary({"f": 8, "g": 1}) == [
        "outside the lease, of all that ran: f (8), g (1)",
        "refused, 1: Ray Serve (one for all)",
        "kept inside, 40: placement group 0 (it fits), and 39 more",
    ]


def test_what_is_outside_is_one_line_however_much_it_is(tmp_path: Path) -> None:
    reports = Reports(tmp_path / "report.jsonl")
    reports.add("escaped", "Ray job 03000000", "no hook")
    list(reports.news())

    (line,) = reports.summary({f"task_{number:05}": 1 for number in range(10_000)} | {"n" * 500: 2})
    (long,) = reports.summary({"n" * 500: 2})

    names = ", ".join(f"task_{number:05} (1)" for number in range(5))
    assert line == f"outside the lease, 1: Ray job 03000000 (no hook); of all that ran: {names}, and 9,996 more names"
    assert len(long) < 200


def test_what_cannot_wait_for_the_end_is_reported_at_once_and_again(tmp_path: Path) -> None:
    reports = Reports(tmp_path / "report.jsonl")

    reports.add("escaped", "Ray job 03000000", "the hook is not in it")

    assert list(reports.news()) == ["outside the lease: Ray job 03000000 (the hook is not in it)"]
    assert list(reports.news()) == []
    assert reports.summary({}) == ["outside the lease, 1: Ray job 03000000 (the hook is not in it)"]


def driver(job_id: str, **said: Any) -> dict[str, Any]:
    return {"job_id": job_id, "pid": 7, "address": "here", "run_id": "", "is_hooked": False} | said


def test_drivers_of_a_run_are_those_that_say_so_and_those_that_say_nothing_below_its_program() -> None:
    drivers = [
        driver("says so", run_id="mine", pid=1),
        driver("says so and is hooked", run_id="mine", is_hooked=True, pid=1),
        driver("of another run", run_id="theirs"),
        driver("says nothing, below"),
        driver("says nothing, elsewhere", pid=1),
        driver("says nothing, on another machine", address="there"),
    ]

    found = of_the_run(drivers, "mine", lambda pid, address: (pid, address) == (7, "here"))

    assert [one["job_id"] for one in found] == ["says so", "says so and is hooked", "says nothing, below"]
