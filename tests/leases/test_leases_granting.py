"""Asking for a boost: granted at once or later, refused with reasons, or given up."""

import asyncio
from collections.abc import Callable

import pytest
from builders import ask, cpu
from whole_grid import WholeGrid, at_home, together

from distributed_grid.errors import BoostNotFound, GridError, NoCapacity, TargetNotFound
from distributed_grid.leases.release import begin_release
from distributed_grid.model.endings import OnGraceEnd
from distributed_grid.model.leases import LeaseState
from distributed_grid.model.nodes import NodeTable

ACTIVE, RELEASED = LeaseState.ACTIVE, LeaseState.RELEASED

Make = Callable[..., WholeGrid]

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_boost_is_there_at_once_and_is_returned_at_once(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("b", amount=2)))
    assert boost.state is ACTIVE
    assert lab.cluster.true_totals()["b"] == cpu(6)
    assert lab.run(lab.service.release(boost.id)).state is RELEASED
    lab.wait(0.1)
    at_home(lab)


def test_a_refused_caller_learns_why_within_a_moment(lab: WholeGrid) -> None:
    before = lab.clock.now
    with pytest.raises(NoCapacity) as caught:
        lab.run(lab.service.request(ask("b", amount=9)))
    assert any("4 CPUs free" in line for line in caught.value.because)
    assert lab.clock.now - before < 1.0
    at_home(lab)


def test_a_waiting_request_is_granted_when_the_capacity_is_free(lab: WholeGrid) -> None:
    work = [lab.cluster.start(name, 4) for name in ("a", "c")]

    async def later() -> None:
        await asyncio.sleep(3.0)
        lab.cluster.finish(work[0])

    boost, _ = lab.run(together(lab.service.request(ask("b", amount=3), wait_s=10.0), later()))
    assert (boost.state, boost.source) == (ACTIVE, "a")


def test_parts_of_gpus_that_were_just_granted_are_on_one_device_each(make_grid: Make) -> None:
    """The cluster's view does not show them yet."""
    lab = make_grid(fractional_gpus=True)
    lab.cluster.add_node("d", cpus=4, gpus=2)
    lab.run(lab.parts.look())
    part = ask("b", "gpu", 0.6, source="d")
    lab.run(together(*(lab.service.request(part) for _ in range(2))))
    known = lab.parts.known()
    assert known is not None
    assert known["d"].gpu_parts == (6_000, 6_000)


def test_an_unknown_target_or_boost_is_reported(lab: WholeGrid) -> None:
    with pytest.raises(TargetNotFound):
        lab.run(lab.service.request(ask("nowhere")))
    with pytest.raises(BoostNotFound):
        lab.run(lab.service.release("nothing"))


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_a_grant_that_is_released_while_it_is_under_way_does_not_come_back(lab: WholeGrid, kind: str) -> None:
    """As when grid stops, and everything ends."""

    def release() -> None:
        (granting,) = lab.parts.ledger
        begin_release(lab.parts, granting, "grid stops", grace_s=0.0, is_reclaimed=False)

    lab.cluster.upcoming(0, release, call="reserve" if kind == "gpu" else "resize", after=True)
    boost = lab.run(lab.service.request(ask("b", kind, 1, source="a")))
    assert boost.is_winding_down
    lab.wait(1.0)
    at_home(lab)
    assert not lab.cluster.groups()


def test_many_at_once_never_get_more_than_there_is(lab: WholeGrid) -> None:
    answers = lab.run(together(*(lab.service.request(ask("b", amount=2)) for _ in range(8))))
    granted = [a for a in answers if not isinstance(a, BaseException)]
    assert len(granted) == 4  # 8 CPUs on a and c
    assert all(isinstance(a, NoCapacity) for a in answers if isinstance(a, BaseException))
    assert lab.cluster.true_totals()["b"] == cpu(12)
    assert not lab.cluster.violations


def test_a_client_that_gave_up_can_ask_again(lab: WholeGrid) -> None:
    asked = ask("b", amount=9, idempotency_key="k")

    async def give_up() -> None:
        asking = asyncio.ensure_future(lab.service.request(asked))
        await asyncio.sleep(0.001)
        lab.service.abandon("k")
        with pytest.raises(NoCapacity):
            await asking

    lab.run(give_up())
    again = ask("b", amount=2, idempotency_key="k")
    assert lab.run(lab.service.request(again)).state is ACTIVE


def test_a_boost_asked_for_after_the_file_was_deleted_is_not_ended_with_the_others(lab: WholeGrid) -> None:
    lab.run(lab.service.request(ask("b", amount=1)))
    lab.wait(0.3)
    lab.home.boosts.unlink()
    new = lab.run(lab.service.request(ask("b", amount=2)))
    lab.wait(3.0)
    assert list(lab.leases) == [new.id]


def test_a_grant_that_failed_half_way_is_known_until_all_of_it_is_returned(lab: WholeGrid) -> None:
    """The source gave one of two CPUs, the target's queue took it at once: the reconciler must return it."""
    lab.cluster.queue("b", 40)
    lab.cluster.upcoming(0, lambda: lab.cluster.start("a", 3), call="resize")
    with pytest.raises(GridError):
        lab.run(lab.service.request(ask("b", amount=2, source="a", on_grace_end=OnGraceEnd.DRAIN, grace_s=0.0)))

    async def short_tasks() -> None:
        for _ in range(30):
            await asyncio.sleep(0.3)
            if running := lab.cluster.running("b"):
                lab.cluster.finish(running[0])

    lab.run(short_tasks())
    assert lab.cluster.true_totals()["b"] == cpu(4)


def test_all_callers_that_ask_during_a_look_share_the_next_one(lab: WholeGrid) -> None:
    parts, looks = lab.parts, []
    really_look = parts.observer.look

    def look() -> NodeTable:
        looks.append(really_look())
        return looks[-1]

    parts.observer.look = look  # type: ignore[method-assign]

    async def many() -> None:
        first = asyncio.create_task(parts.look())
        while not looks:  # noqa: ASYNC110 - a thread makes it
            await asyncio.sleep(0.001)
        others = await asyncio.gather(*(parts.look() for _ in range(50)))
        assert await first is looks[0]
        assert {id(other) for other in others} == {id(looks[1])}

    lab.run(many())

    assert parts.last_seen is looks[-1]
