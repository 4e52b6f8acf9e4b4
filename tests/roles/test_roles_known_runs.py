"""What any process may ask of runs: names of lost ones, waiting for an end, and what is forgotten by itself."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fake_key_value_store import FakeKeyValueStore
from role_runs import a_run

from distributed_grid.errors import GridError, Unavailable
from distributed_grid.execution.role_records import RoleRecords, new_group_name
from distributed_grid.roles.known_runs import KnownRuns

NOW = datetime(2025, 1, 3, 10, 0, tzinfo=UTC)


class Controller:
    """Stands for the client of a controller."""

    def __init__(self, records: RoleRecords | None) -> None:
        self._records = records
        self.asked: list[str] = []

    def role_run_down(self, name: str, *, only_over: bool) -> Any:
        self.asked.append(name)
        if self._records is None:
            raise GridError("it is away")
        return KnownRuns(self._records).down(name, only_over=only_over)[0]

    def close(self) -> None:
        self.asked.append("closed")


@pytest.fixture
def store() -> FakeKeyValueStore:
    return FakeKeyValueStore()


@pytest.fixture
def records(store: FakeKeyValueStore) -> RoleRecords:
    """With a run whose owner is gone."""
    records = RoleRecords(store)
    records.write_record(a_run())
    store.dead.add("worker-of-run-1")
    store.standing = {"its": new_group_name("run-1"), "another's": new_group_name("run-2")}
    return records


def next_one() -> dict[str, Any]:
    return a_run(state="starting", owner={"node": "b", "pid": 2, "job_id": "02", "worker_id": "the next"})


@pytest.mark.parametrize("is_there", [True, False])
def test_a_run_that_takes_the_name_of_a_lost_one_clears_away_what_it_left(
    records: RoleRecords, store: FakeKeyValueStore, is_there: bool
) -> None:
    controller: Any = Controller(records if is_there else None)

    assert KnownRuns(records, lambda: controller).register(next_one()) is None

    assert controller.asked == ["run-1", "closed"], "only it gives leases back at once"
    assert records.read_record("run-1") == next_one()
    assert [*store.standing] == ["another's"]


def test_clearing_away_a_lost_run_does_not_end_another_that_has_taken_its_name(
    records: RoleRecords, store: FakeKeyValueStore
) -> None:
    controller: Any = Controller(records)

    def found_slowly() -> Any:
        assert KnownRuns(records).register(next_one()) is None  # another program took the room
        return controller

    assert KnownRuns(records, found_slowly).register(a_run(owner={"node": "c"} | next_one()["owner"])) == next_one()

    assert controller.asked == ["run-1", "closed"]
    assert records.pending_command("run-1") is None and records.read_record("run-1") == next_one()


def test_a_run_that_lives_keeps_its_name(records: RoleRecords, store: FakeKeyValueStore) -> None:
    store.dead.clear()

    assert KnownRuns(records).register(next_one()) == a_run()
    assert len(store.standing) == 2


def test_ending_a_lost_run_clears_it_away(records: RoleRecords, store: FakeKeyValueStore) -> None:
    KnownRuns(records).end("run-1", 60.0)

    assert records.names() == [] and [*store.standing] == ["another's"]


def test_an_owner_that_does_not_hear_is_not_waited_for_without_end(
    records: RoleRecords, store: FakeKeyValueStore
) -> None:
    store.dead.clear()

    with pytest.raises(Unavailable, match="run-1 has not ended") as caught:
        KnownRuns(records).end("run-1", 0.0)

    assert "process 4711 on a" in caught.value.because[0]
    assert (records.pending_command("run-1") or {})["down"]


def test_a_run_that_dies_while_its_end_is_waited_for_is_cleared_away(
    records: RoleRecords, store: FakeKeyValueStore
) -> None:
    store.dead.clear()
    command = records.send_command

    def and_dies(name: str, **pending_command: Any) -> None:
        command(name, **pending_command)
        store.dead.add("worker-of-run-1")

    records.send_command = and_dies  # type: ignore[method-assign]

    KnownRuns(records).end("run-1", None)

    assert records.names() == []


def test_what_a_lost_run_holds_is_freed_though_its_record_stays_to_be_seen(
    records: RoleRecords, store: FakeKeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributed_grid.roles.known_runs.SURE_S", 0.0)
    records.write_record(a_run("run-2"))

    KnownRuns(records).free_lost()

    assert [*store.standing] == ["another's"] and records.names() == ["run-1", "run-2"]
    assert KnownRuns(records).one("run-1")["state"] == "lost"


def test_a_run_whose_owner_is_unknown_for_a_moment_keeps_what_it_holds(
    records: RoleRecords, store: FakeKeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: store.dead.clear())

    KnownRuns(records).free_lost()

    assert len(store.standing) == 2


def test_the_groups_of_a_run_that_has_taken_the_name_of_a_lost_one_are_not_the_lost_ones(
    records: RoleRecords, store: FakeKeyValueStore
) -> None:
    (lost,) = records.lost()
    assert KnownRuns(records).register(next_one()) is None
    store.standing = {"the next one's": new_group_name("run-1")}

    assert records.remove_groups(lost) == 0 and [*store.standing] == ["the next one's"]


def test_what_has_been_over_for_a_day_is_forgotten(records: RoleRecords, store: FakeKeyValueStore) -> None:
    day = timedelta(days=1)
    records.write_record(a_run("failed", "failed", updated_at=(NOW - 1.1 * day).isoformat()))
    records.write_record(a_run("fresh", "failed", updated_at=(NOW - 0.9 * day).isoformat()))
    records.write_record(a_run("lives", updated_at=(NOW - 9 * day).isoformat()))  # its clock may be wrong

    KnownRuns(records).forget_old(NOW)

    assert records.names() == ["fresh", "lives"]
    assert [*store.standing] == ["another's"]
