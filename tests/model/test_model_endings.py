"""Why a lease ended, in words, and what then helps: it depends on who asked for it, and why."""

import json
from datetime import timedelta

import pytest
from answer_checks import what_is_wrong
from builders import FOR_ANA, NOON, lease

from distributed_grid.leases.view import boost_dict, ending_of
from distributed_grid.model.endings import EndCause, Ending, OnGraceEnd, what_happens_then, what_to_do, why_it_ends
from distributed_grid.model.leases import Delivery, LeaseState, Notice, Program, Purpose
from distributed_grid.model.notices import notice_body, notice_in
from distributed_grid.wire.boosts import ReclaimMessage

RELEASING = LeaseState.RELEASING


def ended(cause: EndCause, reason: str = "", by: str = "bo", of: Ending | None = None) -> dict:
    found = ending_of(
        lease(state=RELEASING, ending=of or Ending(cause, by), release_reason=reason, release_asked_at=NOON)
    )
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (ended(EndCause.RELEASED, "released"), "released by bo"),
        (ended(EndCause.EXPIRED, "expired", "grid"), "it expired"),
        (
            ended(EndCause.PREEMPTED, of=FOR_ANA),
            "preempted by ana's request r1e9f00d: 4 CPUs for gpu-master, priority high, team vision",
        ),
        (ended(EndCause.LENDER, "its lender needs it: cpu at 97%"), "its lender needs it: cpu at 97%"),
        (ended(EndCause.COOLDOWN, "gpu1 is cordoned"), "gpu1 is cordoned, requested by bo"),
        (ended(EndCause.LOST, "gpu1 left the cluster"), "gpu1 left the cluster"),
        (ended(EndCause.FILE_REMOVED, "the state file was removed"), "the state file was removed"),
        (ended(EndCause.STOPPED, "grid stops"), "grid stops, requested by bo"),
    ],
)
def test_each_reason_has_its_own_words(ending: dict, words: str) -> None:
    assert why_it_ends(ending) == words


@pytest.mark.parametrize("cause", EndCause)
@pytest.mark.parametrize("is_own_lease", [True, False])
def test_a_higher_priority_is_suggested_only_where_one_was_preempted_by_a_higher_one(
    cause: EndCause, is_own_lease: bool
) -> None:
    ending = ended(cause, "why", of=FOR_ANA if cause is EndCause.PREEMPTED else None)

    low, high = [
        what_to_do(ending, boost_id="b1", priority=priority, is_own_lease=is_own_lease) for priority in ("low", "high")
    ]

    assert ("priority" in low) == (cause is EndCause.PREEMPTED)
    assert "priority" not in high
    assert "Run it" in low


@pytest.mark.parametrize(
    ("delivery", "on_grace_end", "state", "words"),
    [
        (Delivery.TRANSFER, OnGraceEnd.HOLD, RELEASING, "it is back when the work that uses it ends"),
        (Delivery.TRANSFER, OnGraceEnd.DRAIN, RELEASING, "its target starts no new work from noon until it is back"),
        (Delivery.TRANSFER, OnGraceEnd.KILL, RELEASING, "work that still uses it at noon is terminated"),
        (Delivery.TRANSFER, OnGraceEnd.HOLD, LeaseState.RECLAIMING, "work that still uses it at noon is terminated"),
        (Delivery.RESERVE, OnGraceEnd.HOLD, RELEASING, "work that still uses it at noon is terminated"),
    ],
)
def test_what_a_deadline_means_depends_on_the_delivery_and_on_whether_the_capacity_is_waited_for(
    delivery: Delivery, on_grace_end: OnGraceEnd, state: LeaseState, words: str
) -> None:
    found = ending_of(
        lease(
            delivery=delivery,
            on_grace_end=on_grace_end,
            state=state,
            ending=Ending(EndCause.RELEASED, "bo"),
            release_reason="released",
            release_asked_at=NOON,
        )
    )
    assert found is not None
    assert what_happens_then(found, "noon") == words


def test_the_deadline_counts_from_the_asking_through_notice_and_return() -> None:
    notice = Notice(10_000, "ana needs it", NOON, NOON + timedelta(seconds=15))
    asked = lease(notice=notice, grace_s=30.0, ending=FOR_ANA)
    later = lease(state=RELEASING, release_asked_at=NOON + timedelta(seconds=15), grace_s=15.0, ending=FOR_ANA)

    assert asked.deadline == later.deadline == NOON + timedelta(seconds=30)
    assert lease().deadline is None
    assert lease(state=LeaseState.LOST, release_asked_at=NOON).deadline is None


def test_a_holder_is_told_for_whom_and_when_all_is_over() -> None:
    notice = Notice(10_000, "ana needs it", NOON, NOON + timedelta(seconds=15))
    asked = lease(notice=notice, grace_s=30.0, ending=FOR_ANA)

    reported, read = notice_body(asked), notice_in(boost_dict(asked))

    assert (reported["by"], reported["cause"], reported["ends_at"]) == ("ana", "preempted", "2025-06-01T12:00:30.000Z")
    assert reported["claimant"]["priority"] == "high"
    assert what_is_wrong(ReclaimMessage, json.dumps(reported).encode()) is None
    assert read is not None
    assert (read.by, read.claimant, read.ends_at) == ("ana", reported["claimant"], asked.deadline)


def test_a_program_is_inside_until_it_falls_silent_and_a_runs_holder_until_its_lease_expires() -> None:
    soon, late = NOON + timedelta(seconds=10), NOON + timedelta(hours=2)
    held = lease(programs=(Program("p1", "train.py", soon),))
    run = lease(purpose=Purpose.RUN)

    assert held.is_inhabited(NOON)
    assert not held.is_inhabited(soon)
    assert run.is_inhabited(NOON)
    assert not run.is_inhabited(late)
    assert not lease().is_inhabited(NOON)
    assert not lease(state=LeaseState.LOST, programs=held.programs).is_inhabited(NOON)
