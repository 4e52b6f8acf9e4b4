"""Keeping boosts and getting them back: renewal, expiry, queues that hold them, a file that is gone."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from builders import ask
from fake_cluster import FakeCluster, LostReply
from whole_grid import WholeGrid, at_home, raising

from distributed_grid.decide.monitoring.naming import Raylet
from distributed_grid.errors import NotRenewable, StoreBroken
from distributed_grid.execution.port import Holder
from distributed_grid.model.endings import OnGraceEnd
from distributed_grid.model.leases import LeaseState
from distributed_grid.queue.answers import why_answer
from distributed_grid.store.audit_log import AuditLog, Wanted

ACTIVE, RELEASED, RELEASING = LeaseState.ACTIVE, LeaseState.RELEASED, LeaseState.RELEASING

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_boost_ends_when_its_time_is_over(lab: WholeGrid) -> None:
    lab.run(lab.service.request(ask("b", amount=2, duration_s=5.0)))
    lab.wait(4.5)
    assert lab.leases
    lab.wait(1.5)
    at_home(lab)


def test_a_renewed_boost_lasts_as_long_again(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("b", amount=2, duration_s=5.0)))
    lab.wait(4.0)
    lab.run(lab.service.renew(boost.id))
    lab.wait(4.0)
    assert lab.leases[boost.id].state is ACTIVE
    lab.wait(2.5)
    at_home(lab)


@pytest.mark.parametrize("seed", range(8))
def test_a_boost_leaves_the_disk_only_after_the_audit_log_tells_how_it_ended(
    make_grid: Callable[..., WholeGrid], seed: int
) -> None:
    """A client whose answer was lost in a crash asks again, and only the audit log can tell it."""
    lab = make_grid(seed=seed)
    boost = lab.run(lab.service.request(ask("b", amount=2, delivery="reserve")))
    lab.wait(1.0)
    lab.run(lab.service.release(boost.id))
    while lab.on_disk():
        lab.wait(0.0005)
    lab.bury()
    told = [entry["event"] for entry in AuditLog(lab.home.audit_log).read() if entry["boost_id"] == boost.id]
    assert told == ["granted", "release_asked", "returned"]
    lab.start()


def test_also_the_write_of_another_change_comes_after_what_tells_how_a_boost_ended(lab: WholeGrid) -> None:
    async def released_while_another_writes() -> bool:
        boost = await lab.service.request(ask("b", amount=2, delivery="reserve"))
        await asyncio.sleep(1.0)
        await lab.service.release(boost.id)
        await lab.parts.commit()
        assert not lab.on_disk()
        return lab.parts.journal.is_waiting("returned")

    assert not lab.run(released_while_another_writes())


def test_whoever_reads_sees_what_was_noted_a_moment_ago(lab: WholeGrid) -> None:
    journal = lab.parts.journal

    async def note_and_read() -> None:
        journal.note("returned", "from the event loop")
        assert journal.since(0)[-1].message == "from the event loop"
        journal.note("returned", "from a thread")
        found = await asyncio.to_thread(journal.recorded, Wanted(event="returned"))
        assert [entry["message"] for entry in found] == ["from the event loop", "from a thread"]

    lab.run(note_and_read())


def test_a_boost_that_is_being_returned_cannot_be_renewed(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("b", amount=2)))
    lab.cluster.start("b", 6)
    lab.run(lab.service.release(boost.id, wait_s=0.0))
    with pytest.raises(NotRenewable):
        lab.run(lab.service.renew(boost.id))


@pytest.mark.parametrize("on_grace_end", [OnGraceEnd.DRAIN, OnGraceEnd.KILL])
def test_a_queue_does_not_hold_a_boost_for_ever(lab: WholeGrid, on_grace_end: OnGraceEnd) -> None:
    boost = lab.run(lab.service.request(ask("b", amount=2, on_grace_end=on_grace_end)))
    lab.cluster.queue("b", 30)
    lab.run(lab.service.release(boost.id, grace_s=0.5, wait_s=0.0))

    async def short_tasks() -> None:
        for _ in range(40):
            await asyncio.sleep(0.5)
            if running := lab.cluster.running("b"):
                lab.cluster.finish(running[0])

    lab.run(short_tasks())
    assert boost.id not in lab.leases
    assert not lab.cluster.violations


def test_a_queue_holds_a_boost_that_says_hold_and_it_is_told_who(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("b", amount=2, on_grace_end=OnGraceEnd.HOLD)))
    lab.cluster.queue("b", 30)
    lab.run(lab.service.release(boost.id, grace_s=0.5, wait_s=0.0))
    lab.wait(5.0)
    assert lab.leases[boost.id].state is RELEASING
    assert "work" in lab.parts.notes[boost.id][0]


@pytest.mark.parametrize(
    ("on_grace_end", "words"),
    [(OnGraceEnd.HOLD, "it is back when the work that uses it ends"), (OnGraceEnd.KILL, "is terminated")],
)
def test_why_says_that_work_is_terminated_only_where_it_is(
    lab: WholeGrid, on_grace_end: OnGraceEnd, words: str
) -> None:
    boost = lab.run(lab.service.request(ask("b", amount=2, on_grace_end=on_grace_end)))
    lab.cluster.queue("b", 30)
    lab.run(lab.service.release(boost.id, grace_s=30.0, wait_s=0.0))

    facts = lab.run(why_answer(lab.parts, lab.service, boost.id))["facts"]

    reported = [fact for fact in facts if "is being returned: " in fact or "release_asked: " in fact]
    assert len(reported) == 2
    assert all(words in fact for fact in reported), reported


def test_a_boost_that_is_held_is_an_event_once_and_then_at_most_every_five_minutes(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("b", amount=2, on_grace_end=OnGraceEnd.HOLD)))
    lab.cluster.queue("b", 200)
    lab.run(lab.service.release(boost.id, grace_s=0.5, wait_s=0.0))
    reported: set[str] = set()

    def work_on(seconds: int) -> list[str]:
        """A task ends and another one begins every ten seconds."""
        for _ in range(seconds // 10):
            lab.wait(5.0)
            running = lab.cluster.running("b")
            note = lab.parts.notes[boost.id][0]
            assert any(f"pid {pid}" in note for pid in running), "it is up to date"
            reported.add(note)
            lab.cluster.finish(running[0])
            lab.wait(5.0)
        return lab.events("held")

    assert len(work_on(290)) == 1
    assert len(reported) > 20
    assert len(work_on(30)) == 2
    assert len(work_on(60)) == 2


def test_the_event_about_what_holds_a_boost_names_work_that_had_just_begun(
    lab: WholeGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    boost = lab.run(lab.service.request(ask("b", amount=2, on_grace_end=OnGraceEnd.HOLD)))
    lab.cluster.queue("b", 30)
    known, looks = lab.cluster.holders_of, []

    def unnamed_at_first(raylet: Raylet, kind: str) -> tuple[Holder, ...]:
        """As Ray answers in the first second of a task."""
        looks.append(raylet)
        found = known(raylet, kind)
        return found if len(looks) > 1 else tuple(replace(each, what="of job 01", since_ms=None) for each in found)

    monkeypatch.setattr(lab.cluster, "holders_of", unnamed_at_first)
    lab.run(lab.service.release(boost.id, grace_s=0.5, wait_s=0.0))
    lab.wait(5.0)

    [reported] = lab.events("held")
    assert "of job" not in reported
    assert "task work" in reported


def test_a_boost_released_while_reconciler_completes_its_grant_is_released(make_grid: Callable[..., WholeGrid]) -> None:
    """A reply was lost, so reconciler completes the grant; meanwhile the user asks it back."""
    for seed in range(6):
        lab = make_grid(FakeCluster(), seed)
        lab.cluster.upcoming(1, raising(LostReply()), after=True)
        with pytest.raises(LostReply):
            lab.run(lab.service.request(ask("b", amount=2)))
        (boost,) = lab.leases.values()
        lab.run(lab.service.release(boost.id, wait_s=0.0))
        lab.wait(3.0)
        at_home(lab)


def test_nothing_is_left_on_nodes_by_a_boost_that_ended_just_before_grid_stopped(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("b", amount=2)))
    lab.run(lab.service.release(boost.id))
    lab.stop()
    assert lab.cluster.is_at_base(), lab.cluster.differences()
    lab.start()


def test_deleting_the_file_ends_the_boosts(lab: WholeGrid) -> None:
    for kind in ("cpu", "gpu"):
        lab.run(lab.service.request(ask("b", kind, 1)))
    lab.wait(0.5)
    lab.home.boosts.unlink()
    lab.wait(3.0)
    at_home(lab)


def test_a_file_that_was_deleted_while_no_controller_ran_ends_the_boosts_too(lab: WholeGrid) -> None:
    for kind in ("cpu", "gpu"):
        lab.run(lab.service.request(ask("b", kind, 1)))
    lab.wait(0.5)
    lab.bury()
    lab.home.boosts.unlink()
    lab.start()
    lab.wait(3.0)
    at_home(lab)


def test_what_a_full_disk_did_not_take_is_written_when_there_is_room(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("b", amount=1)))
    lab.wait(0.5)
    for number in range(20):
        lab.cluster.upcoming(number, raising(StoreBroken("no space")), call="save")
    released = lab.run(lab.service.release(boost.id))
    assert released.state is RELEASED
    assert "no space; if the controller restarts" in released.warnings[0]
    assert lab.on_disk()
    lab.wait(1.0)
    lab.cluster.nothing_upcoming()
    lab.wait(3.0)
    at_home(lab)
