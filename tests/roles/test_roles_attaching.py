"""A run of another process, followed by its record: what hiccups, orders of reading and ends do to it."""

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from fake_key_value_store import FakeKeyValueStore
from live_grid import until
from role_runs import a_member, a_role, a_run

from distributed_grid.errors import MemberLost, Unavailable
from distributed_grid.execution.role_records import RoleRecords
from distributed_grid.roles.attaching import AttachedRun


class KeyValueStore(FakeKeyValueStore):
    """One that can be silent for some questions, and that can be watched."""

    def __init__(self) -> None:
        super().__init__()
        self.silent = 0
        self.read: Callable[[], None] = lambda: None

    def get(self, key: str) -> bytes | None:
        if self.silent:
            self.silent -= 1
            raise Unavailable("Ray's control service does not answer")
        found = super().get(key)
        read, self.read = self.read, lambda: None
        read()
        return found


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> KeyValueStore:
    store = KeyValueStore()
    monkeypatch.setattr(RoleRecords, "connected", lambda: RoleRecords(store))
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_actor", lambda name, namespace: SimpleNamespace(name=name))
    tell(store)
    return store


@pytest.fixture
def run(store: KeyValueStore) -> Iterator[AttachedRun]:
    with AttachedRun("run-1") as run:
        yield run


def tell(store: KeyValueStore, members: int = 2, **of_first: Any) -> None:
    """The owner writes down so many workers."""
    workers = [a_member("worker", rank, **(of_first if rank == 0 else {})) for rank in range(members)]
    role = a_role("worker", 1, 4, call_deadline_seconds=None)
    RoleRecords(store).write_record(a_run(roles=[role], members=workers))


def target(run: AttachedRun) -> Any:
    return run.endpoints("worker")[0].target


def test_a_control_service_that_was_silent_is_asked_again_and_restarts_are_seen(
    run: AttachedRun, store: KeyValueStore
) -> None:
    before = target(run)
    store.silent = 2
    until(lambda: not store.silent, what="it has not answered twice")
    assert target(run) is before, "who was there is still called"

    tell(store, restarts=1, pid=7)
    until(lambda: target(run) is not before, what="the new one is known")


def test_a_run_is_followed_after_an_unforeseen_error(run: AttachedRun, store: KeyValueStore) -> None:
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise RuntimeError("unforeseen")

    store.read = fail
    until(lambda: failed.is_set(), what="a look has failed")
    tell(store, members=3)
    until(lambda: run["worker"].size == 3, what="the new member is known")


def test_a_waiting_caller_is_patient_with_a_silent_control_service(run: AttachedRun, store: KeyValueStore) -> None:
    store.silent = 3
    assert not run.wait(0.0)
    store.silent = 0
    RoleRecords(store).remove_record("run-1")
    assert run.wait(20.0)


def test_what_was_read_earlier_never_has_the_last_word(run: AttachedRun, store: KeyValueStore) -> None:
    """Between the reading and the taking of a record, another one is written, read and taken."""
    other = threading.Thread(target=lambda: run.status())

    def meanwhile() -> None:
        tell(store, members=3)
        other.start()
        other.join(0.2)

    store.read = meanwhile
    run.status()
    other.join()

    assert run["worker"].size == 3


def test_members_have_the_concurrency_that_their_owner_tells(store: KeyValueStore) -> None:
    tell(store, concurrency=4)
    with AttachedRun("run-1") as run:
        assert [endpoint.concurrency for endpoint in run.endpoints("worker")] == [4, 1]


def test_references_are_forgotten_when_they_are_over(run: AttachedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "wait", lambda refs, **_: (refs, []))
    (endpoint, _) = run.endpoints("worker")
    run["worker"].choose()
    endpoint.remember(object())

    until(lambda: not endpoint.outstanding, what="it is forgotten")


def test_a_detached_process_calls_no_member_though_it_looks_again(run: AttachedRun, store: KeyValueStore) -> None:
    run.detach()
    tell(store, members=4)

    assert len(run.status()["members"]) == 4
    with pytest.raises(MemberLost, match="no longer attached"):
        run["worker"].call("step")
