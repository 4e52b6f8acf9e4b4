"""Who waits, on disk: it comes back as it was, and what cannot be understood is kept and told."""

from dataclasses import replace
from pathlib import Path

import pytest
from builders import NOON, ask, waits

from distributed_grid.decide.queue.claims import Account
from distributed_grid.errors import StoreBroken
from distributed_grid.model.policies import SharingMode, SharingPolicy
from distributed_grid.store.boost_file import ClusterIdentity
from distributed_grid.store.sharing_file import SharingFile, SharingRecord

LAB = ClusterIdentity("lab", frozenset({"a", "b"}))
RECORD = SharingRecord(
    SharingPolicy.AGGRESSIVE,
    SharingMode.OFFLOAD_ONLY,
    ("a",),
    (
        replace(waits("w1", 2, waited_s=60), is_durable=True),
        replace(waits("w2", 1), ask=ask("b", "gpu", 1, team="red", reclaim_hook="watch:"), until=NOON),
    ),
    {"red": Account(12.5, NOON)},
)


@pytest.fixture
def file(tmp_path: Path) -> SharingFile:
    return SharingFile(tmp_path / "sharing.json")


def test_what_was_saved_comes_back_as_it_was(file: SharingFile) -> None:
    file.save(RECORD, LAB)
    assert file.load(LAB) == (RECORD, ())
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_where_there_is_no_file_no_request_waits(file: SharingFile) -> None:
    assert file.load(LAB) == (SharingRecord(), ())


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[]", "{}", '{"version": 2}', '{"version": 1, "cluster": null, "sharing": {}}']
)
def test_what_cannot_be_understood_is_kept_and_told(file: SharingFile, text: str) -> None:
    file.path.write_text(text)
    record, problems = file.load(LAB)
    assert record == SharingRecord()
    assert len(problems) == 1
    assert "cannot be understood" in problems[0]
    assert [path.read_text() for path in file.path.parent.glob("*.broken-*")] == [text]


def test_a_field_that_makes_no_sense_is_reported_too(file: SharingFile) -> None:
    file.save(RECORD, LAB)
    file.path.write_text(file.path.read_text().replace("aggressive", "bold"))
    assert file.load(LAB)[1]


def test_another_clusters_record_is_kept_and_not_used(file: SharingFile) -> None:
    file.save(RECORD, ClusterIdentity("other", frozenset({"x"})))
    before = file.path.read_text()
    assert file.load(LAB) == (SharingRecord(), ())
    assert [path.read_text() for path in file.path.parent.glob("*.other-cluster*")] == [before]


def test_a_disk_that_does_not_take_it_is_reported(file: SharingFile) -> None:
    missing = SharingFile(file.path.parent / "gone" / "sharing.json")
    with pytest.raises(StoreBroken, match="Cannot write"):
        missing.save(RECORD, LAB)
