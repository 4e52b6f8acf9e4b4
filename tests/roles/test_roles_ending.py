"""Ending a run when something fails in it: the rest is done all the same."""

import os
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from fake_key_value_store import FakeKeyValueStore
from role_runs import a_run

from distributed_grid.errors import Unavailable
from distributed_grid.execution.role_records import RoleRecords
from distributed_grid.roles.ending import RayExit, leave_record, let_go
from distributed_grid.roles.supervision.parts import RunParts


class Silent(FakeKeyValueStore):
    """Does not answer when it is asked to remove, so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def remove(self, key: str) -> bool:
        self.times -= 1
        if self.times >= 0:
            raise Unavailable("Ray's control service does not answer")
        return super().remove(key)


class Fails:
    """Three that each end, but for the second: of a process set, and of places."""

    def __init__(self, error: type[BaseException] = RuntimeError) -> None:
        self.by_name: dict[str, str] = {name: name for name in "abc"}
        self.ended: list[str] = []
        self._error = error

    def end(self, processes: Iterable[str], _why: str) -> None:
        for process in processes:
            del self.by_name[process]
            self._end(process)

    def give_back(self, held: Iterable[str]) -> None:
        for one in held:
            self._end(one)

    def close(self) -> None:
        self.ended.append("closed")

    def _end(self, one: str) -> None:
        self.ended.append(one)
        if one == "b" and self.ended.count("b") == 1:
            raise self._error


def parts_of(process_set: Fails, places: Fails) -> RunParts:
    unused: Any = SimpleNamespace(name="rl")
    held: Any = ["a", "b", "c"]
    return RunParts("run-1", unused, process_set, places, unused, held=held)  # type: ignore[arg-type]


def test_each_is_let_go_though_another_could_not_be() -> None:
    parts = parts_of(process_set := Fails(), places := Fails())
    boosts: list[str] = []

    let_go(parts, lambda: boosts.append("home"))

    assert process_set.ended == ["a", "b", "c"]
    assert places.ended == ["a", "b", "c", "closed"]
    assert boosts == ["home"] and parts.held == []
    assert [(event.message, event.times) for event in parts.events] == [("while it ended: RuntimeError", 2)]


def test_an_interrupted_end_goes_on_with_what_is_left() -> None:
    parts = parts_of(process_set := Fails(), places := Fails(KeyboardInterrupt))
    process_set.by_name.pop("b")
    with pytest.raises(KeyboardInterrupt):
        let_go(parts, lambda: None)

    let_go(parts, lambda: None)

    assert process_set.ended == ["a", "c"]
    assert places.ended == ["a", "b", "b", "c", "closed"]


@pytest.mark.parametrize(("times", "left"), [(0, []), (1, []), (99, ["run-1"])])
def test_a_record_is_removed_also_if_the_store_is_silent_for_a_moment(times: int, left: list[str]) -> None:
    records = RoleRecords(Silent(times))
    records.write_record(a_run())

    leave_record(parts_of(Fails(), Fails()), records, a_run(), forget=True)

    assert records.names() == left


def test_why_a_run_failed_stays_to_be_read() -> None:
    records = RoleRecords(FakeKeyValueStore())
    records.write_record(a_run())

    leave_record(parts_of(Fails(), Fails()), records, a_run(state="failed"), forget=False)

    assert records.read_record("run-1") == a_run(state="failed")


def test_a_process_that_left_ray_and_gets_no_answer_does_not_wait_for_the_cluster() -> None:
    class Gone(Silent):
        def dead_workers(self, worker_ids: Iterable[str]) -> frozenset[str]:
            raise Unavailable("Ray's control service does not answer")

    store = Gone(99)

    leave_record(parts_of(Fails(), Fails()), RoleRecords(store), a_run(), forget=True)

    assert store.times == 99


# -- before the process leaves Ray ---------------------------------------------------------------------------------


def test_all_that_lives_ends_before_its_process_leaves_ray_the_youngest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    living, ended = RayExit(), []

    def end(name: str) -> None:
        ended.append(name)
        if name == "c":
            raise RuntimeError("it does not want to")

    for name in "abcd":
        living.add(name, lambda name=name: end(name))
    living.drop("b")
    living.drop("never added")
    assert [*living] == ["a", "c", "d"]

    living.end_all()
    assert ended == ["d", "c", "a"]

    monkeypatch.setattr(os, "getpid", lambda: -1)
    living.end_all()
    assert len(ended) == 3, "a forked child ends nothing of its parent's"
