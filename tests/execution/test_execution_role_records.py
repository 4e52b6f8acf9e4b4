"""Records and commands of runs: what is promised of names, and that no command gets lost. On Ray: tests/integration."""

import pytest
from fake_key_value_store import FakeKeyValueStore
from role_runs import a_run

from distributed_grid.errors import InvalidRequest, Unavailable
from distributed_grid.execution.role_records import RoleRecords, new_group_name
from distributed_grid.model.roles.runs import Record, as_seen


@pytest.fixture
def store() -> FakeKeyValueStore:
    return FakeKeyValueStore()


@pytest.fixture
def records(store: FakeKeyValueStore) -> RoleRecords:
    return RoleRecords(store)


def second(**others: object) -> Record:
    return a_run(
        owner={"node": "b", "pid": 2, "job_id": "02000000", "worker_id": "the second"}, began_at="later", **others
    )


def test_what_was_written_last_is_read(records: RoleRecords) -> None:
    records.write_record(a_run())
    records.write_record(a_run(state="degraded"))
    records.write_record(a_run("another"))

    assert records.read_record("run-1") == a_run(state="degraded")
    assert records.names() == ["another", "run-1"]


def test_a_removed_record_takes_its_commands_along(records: RoleRecords, store: FakeKeyValueStore) -> None:
    records.write_record(a_run())
    records.send_command("run-1", down=True)
    records.send_command("run-10", down=True)  # whose name only begins alike

    assert records.remove_record("run-1")
    assert not records.remove_record("run-1")
    assert records.read_record("run-1") is None
    assert records.pending_command("run-1") is None
    assert records.take_command("run-10") is not None
    assert not store.kept


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 101, None, 7])
def test_a_name_that_could_not_be_a_key_is_refused(records: RoleRecords, name: object) -> None:
    with pytest.raises(InvalidRequest, match="not a valid name of a run"):
        records.read_record(name)  # type: ignore[arg-type]


# -- claiming a name -----------------------------------------------------------------------------------------


def test_only_one_run_that_lives_has_a_name(records: RoleRecords) -> None:
    assert records.register(a_run(state="starting")) is None

    assert records.register(second()) == a_run(state="starting")
    assert records.read_record("run-1") == a_run(state="starting")


@pytest.mark.parametrize("state", ["ended", "failed"])
def test_the_name_of_a_run_that_is_over_is_free(records: RoleRecords, state: str) -> None:
    records.write_record(a_run(state=state))
    records.send_command("run-1", down=True)

    assert records.register(second()) is None
    assert records.read_record("run-1") == second()
    assert records.pending_command("run-1") is None, "a command to the earlier run"


def test_a_command_that_came_too_late_for_a_run_does_not_reach_the_next(records: RoleRecords) -> None:
    records.send_command("run-1", down=True)  # it was removed a moment before

    assert records.register(a_run()) is None
    assert records.pending_command("run-1") is None


def test_of_two_that_want_the_name_of_a_dead_run_at_once_one_has_it(
    records: RoleRecords, store: FakeKeyValueStore
) -> None:
    """Both have seen that it is over before either writes."""
    records.write_record(a_run(state="ended"))

    class AnotherComesFirst(FakeKeyValueStore):
        def put(self, key: str, value: bytes, *, replace: bool) -> bool:
            if key.startswith("heir:"):
                assert records.register(second()) is None
            return store.put(key, value, replace=replace)

    slow = AnotherComesFirst()
    slow.get, slow.keys = store.get, store.keys  # type: ignore[method-assign]

    assert RoleRecords(slow).register(a_run(state="starting")) == second()
    assert records.read_record("run-1") == second()


# -- clearing away -------------------------------------------------------------------------------------------


def test_only_that_run_is_forgotten_and_not_the_next_of_its_name(records: RoleRecords) -> None:
    records.write_record(second())

    assert not records.remove_same(a_run())
    assert records.read_record("run-1") == second()
    assert records.remove_same(second(state="ended"))


def test_with_a_run_go_the_placement_groups_that_it_left_and_no_others(
    records: RoleRecords, store: FakeKeyValueStore
) -> None:
    names = [new_group_name(name) for name in ("run-1", "run-1", "run-1-more", "run-10", "run")]
    store.standing = {str(number): name for number, name in enumerate([*names, "grid-roles-run-1"])}
    records.write_record(a_run())

    assert records.clear_away(a_run(state="lost"))

    assert sorted(store.standing) == ["2", "3", "4", "5"]
    assert records.names() == []


def test_nothing_is_removed_of_a_run_that_has_taken_the_name_meanwhile(
    records: RoleRecords, store: FakeKeyValueStore
) -> None:
    records.write_record(second())
    store.standing = {"1": new_group_name("run-1")}

    assert not records.clear_away(a_run(state="lost"))
    assert store.standing and records.names() == ["run-1"]


# -- commands --------------------------------------------------------------------------------------------------


def test_commands_add_up_and_the_last_count_holds(records: RoleRecords) -> None:
    records.send_command("run-1", counts={"rollout_worker": 3, "trainer": 1})
    records.send_command("run-1", down=True)
    records.send_command("run-1", counts={"rollout_worker": 5})

    taken = records.take_command("run-1")

    assert taken is not None
    assert (taken["counts"], taken["down"]) == ({"rollout_worker": 5, "trainer": 1}, True)
    assert records.take_command("run-1") is None


def test_a_command_that_comes_while_others_are_taken_is_not_lost(
    records: RoleRecords, store: FakeKeyValueStore
) -> None:
    records.send_command("run-1", counts={"rollout_worker": 3})
    remove = store.remove

    def remove_slowly(key: str) -> bool:
        store.remove = remove  # type: ignore[method-assign]
        records.send_command("run-1", down=True)
        return remove(key)

    store.remove = remove_slowly  # type: ignore[method-assign]

    first, then = records.take_command("run-1"), records.take_command("run-1")

    assert first is not None and then is not None
    assert (first["down"], then["down"]) == (False, True)


def test_a_command_is_taken_though_it_could_not_be_removed_at_once(
    records: RoleRecords, store: FakeKeyValueStore
) -> None:
    records.send_command("run-1", counts={"rollout_worker": 3})
    records.send_command("run-1", down=True)
    remove = store.remove

    def removed_and_silent(key: str) -> bool:
        store.remove = remove  # type: ignore[method-assign]
        remove(key)
        raise Unavailable("Ray does not answer")

    store.remove = removed_and_silent  # type: ignore[method-assign]

    first, then = records.take_command("run-1"), records.take_command("run-1")

    assert first is not None and (first["counts"], first["down"]) == ({"rollout_worker": 3}, True)
    assert then is not None and (then["counts"], then["down"]) == ({}, True)  # heard again, and means the same


# -- as readers see it ---------------------------------------------------------------------------------------


def test_a_run_whose_owner_died_without_a_word_is_lost(records: RoleRecords, store: FakeKeyValueStore) -> None:
    store.dead.add("worker-of-run-1")
    assert records.with_dead_owners([a_run(), a_run("run-2")]) == {"run-1"}

    seen = as_seen(a_run(), owner_is_dead=records.owner_is_dead(a_run()))

    assert seen["state"] == "lost"
    assert "4711 on a" in seen["why"]
    assert {member["state"] for member in seen["members"]} == {"gone"}
    assert {role["up"] for role in seen["roles"]} == {0}


def test_a_run_that_said_how_it_ended_stays_as_it_said() -> None:
    assert as_seen(a_run(state="failed"), owner_is_dead=True) == a_run(state="failed")
    assert as_seen(a_run(), owner_is_dead=False) == a_run()
