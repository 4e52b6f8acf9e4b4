"""A lease goes into the file readable, and comes out as it was."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from distributed_grid.model.codec import decode_instant, encode_instant
from distributed_grid.model.endings import Claimant, EndCause, Ending, OnGraceEnd
from distributed_grid.model.leases import Cause, Delivery, Lease, LeaseState, Notice, Program, Purpose
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.teams import DEFAULT_TEAM
from distributed_grid.store.lease_codec import ALWAYS_THERE, decode_lease, encode_lease

names = st.text(min_size=1, max_size=20)
units = st.integers(1, 2**60)
instants = st.datetimes(
    min_value=datetime(1970, 1, 2),
    max_value=datetime(9000, 1, 1),
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-8))]),
)
seconds = st.floats(0, 366 * 24 * 3600.0)
claimants = st.builds(
    Claimant,
    request_id=st.text(),
    requester=st.text(),
    team=st.text(),
    priority=st.sampled_from(AllocationPriority),
    wants=st.text(),
)
leases = st.builds(
    Lease,
    id=names,
    source=names,
    target=names,
    kind=st.sampled_from(["cpu", "gpu", "memory", "TPU"]) | names,
    units=units,
    resources=st.dictionaries(names, units, max_size=4).map(ResourceVector),
    priority=st.sampled_from(AllocationPriority),
    delivery=st.sampled_from(Delivery),
    delivery_reason=st.text(),
    state=st.sampled_from([state for state in LeaseState if state is not LeaseState.GRANTING]),
    allocated_at=instants,
    expires_at=instants,
    duration_s=seconds,
    grace_s=seconds,
    on_grace_end=st.sampled_from(OnGraceEnd),
    team=names,
    cause=st.sampled_from(Cause),
    reclaim_hook=st.none() | names,
    notice=st.none() | st.builds(Notice, units=units, reason=st.text(), asked_at=instants, deadline=instants),
    checkpointed_at=st.none() | instants,
    purpose=st.sampled_from(Purpose),
    label=st.text(),
    ending=st.none() | st.builds(Ending, cause=st.sampled_from(EndCause), by=st.text(), claimant=st.none() | claimants),
    programs=st.lists(st.builds(Program, id=names, label=st.text(), until=instants), max_size=3).map(tuple),
    requester=st.text(),
    idempotency_key=st.none() | st.text(),
    held_by=st.none() | st.text(),
    release_reason=st.none() | st.text(),
    release_asked_at=st.none() | instants,
    warnings=st.lists(st.text(), max_size=3).map(tuple),
)


@given(leases)
@settings(max_examples=examples(150), deadline=None)
def test_every_lease_comes_back_from_json_equal(lease: Lease) -> None:
    assert decode_lease(json.loads(json.dumps(encode_lease(lease)))) == lease


def test_a_grant_that_was_under_way_comes_back_interrupted(a_lease: Any) -> None:
    on_disk = encode_lease(a_lease(state=LeaseState.GRANTING))
    assert on_disk["state"] == "granting"
    assert decode_lease(on_disk).state is LeaseState.INTERRUPTED


def test_a_lease_that_is_being_reclaimed_keeps_the_keys_of_earlier_files(a_lease: Any) -> None:
    on_disk = encode_lease(a_lease(state=LeaseState.RECLAIMING))
    assert (on_disk["state"], on_disk["wanted_back"]) == ("releasing", True)
    assert decode_lease(on_disk | {"wanted_back": False}).state is LeaseState.RELEASING


def test_a_person_reads_amounts_and_times(a_lease: Any) -> None:
    shown = encode_lease(a_lease(kind="memory", units=5 * 2**29, resources=ResourceVector({"memory": 5 * 2**29})))
    assert shown["amount"] == 2.5
    assert shown["units"] == 5 * 2**29
    assert shown["active"] is True
    assert shown["expires_at"] == "2025-06-01T13:00:00.123456Z"


def test_keys_of_a_later_grid_are_ignored(a_lease: Any) -> None:
    assert decode_lease(encode_lease(a_lease()) | {"colour": "green"}) == a_lease()


def test_every_key_is_needed(a_lease: Any) -> None:
    whole = encode_lease(a_lease())
    for key in ALWAYS_THERE:
        with pytest.raises(ValueError, match=f"{key} is missing"):
            decode_lease({k: v for k, v in whole.items() if k != key})


def test_a_lease_of_the_first_grid_belongs_to_the_one_team_and_was_asked_for(a_lease: Any) -> None:
    old = {key: value for key, value in encode_lease(a_lease()).items() if key in ALWAYS_THERE}
    found = decode_lease(old)
    assert (found.team, found.cause, found.notice, found.state) == (DEFAULT_TEAM, Cause.ASKED, None, LeaseState.ACTIVE)


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("id", "", "id is empty"),
        ("id", 7, "id must be text, not 7"),
        ("source_node", None, "source_node must be text, not None"),
        ("units", 0, "units must be a whole number above zero, not 0"),
        ("units", True, "units must be a whole number, not True"),
        ("units", 2.5, "units must be a whole number, not 2.5"),
        ("units", 10**400, "units must be a whole number above zero"),
        ("amount", 3, "amount is 3, but the other fields say 2"),
        ("active", False, "active is False, but the other fields say True"),
        ("active", 1, "active must be true or false, not 1"),
        ("resources", {"cpu": -1}, "resources of cpu must be a whole number above zero, not -1"),
        ("resources", ["cpu"], "resources must be an object"),
        ("priority", "urgent", "priority must be one of low, normal, high, critical, not 'urgent'"),
        ("state", "gone", "state must be one of"),
        ("delivery", "mail", "delivery must be one of transfer, reserve"),
        ("on_grace_end", "wait", "on_grace_end must be one of hold"),
        ("allocated_at", "yesterday", "'yesterday' is not an ISO 8601 time"),
        ("expires_at", "2025-06-01T12:00:00", "has no time zone"),
        ("expires_at", "0001-01-01T00:00:00+23:00", "is not an ISO 8601 time"),
        ("duration_seconds", float("nan"), "duration_seconds must be a number of seconds"),
        ("duration_seconds", 10**400, "duration_seconds must be a number of seconds"),
        ("grace_seconds", -1, "grace_seconds must be a number of seconds, not -1"),
        ("grace_seconds", True, "grace_seconds must be a number of seconds, not True"),
        ("release_asked_at", 5, "release_asked_at must be text, not 5"),
        ("warnings", "careful", "warnings must be a list"),
        ("warnings", [1], "warnings must be a list of texts"),
    ],
)
def test_what_is_wrong_is_said_with_the_boost_it_is_in(a_lease: Any, key: str, value: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=r"^boost ") as caught:
        decode_lease(encode_lease(a_lease()) | {key: value})
    assert complaint in str(caught.value)


def test_something_else_than_an_object_is_no_boost() -> None:
    with pytest.raises(ValueError, match="must be an object"):
        decode_lease(["b1"])


def test_a_time_without_a_zone_is_refused_rather_than_guessed() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        encode_instant(datetime(2025, 6, 1))


def test_times_are_read_with_either_spelling_of_utc() -> None:
    assert decode_instant("2025-06-01T12:00:00Z") == decode_instant("2025-06-01T12:00:00+00:00")
