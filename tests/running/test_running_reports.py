"""What the hook inside a program tells is read as it comes, each line once, and only whole lines."""

import json
from pathlib import Path

from distributed_grid.running.reports import Reports


def test_lines_are_read_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    reports = Reports(path)
    assert list(reports.news()) == []

    escaped = json.dumps({"event": "escaped", "what": "task f", "why": "node affinity"})
    path.write_text('{"event": "job", "job_id": "02000000"}\n' + escaped[:10])
    assert list(reports.news()) == []
    assert reports.jobs == ["02000000"]

    path.write_text('{"event": "job", "job_id": "02000000"}\n' + escaped + "\nnonsense\n[1]\n")
    assert list(reports.news()) == ["outside the lease: task f (node affinity)"]
    with path.open("a") as more:
        more.write('{"event": "rewritten", "what": "SPREAD"}\n{"event": "job", "job_id": "02000000"}\n')
    assert list(reports.news()) == ["kept inside: SPREAD"]
    assert reports.jobs == ["02000000"]
    assert list(reports.news()) == []
