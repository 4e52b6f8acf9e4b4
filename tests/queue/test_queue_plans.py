"""What `grid plan` says is what then happens: in random states of the whole engine, hundreds in `make test-slow`."""

import contextlib
import random
import re
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import ask
from disks import filled, small_disk
from fake_cluster import FakeCluster
from property_examples import examples
from whole_grid import WholeGrid

from distributed_grid.controller.sharing_routes import queue_dict
from distributed_grid.errors import GridError, NoCapacity, UnknownResource
from distributed_grid.model.leases import LeaseState, OnGraceEnd, Purpose
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.requests import Ask, Waiting
from distributed_grid.model.resources import scale
from distributed_grid.model.times import parse_instant
from distributed_grid.queue.answers import plan_answer, why_answer

pytestmark = pytest.mark.filterwarnings("ignore")

SHARING: dict[str, Any] = {
    "grace_seconds": 1,
    "min_hold_seconds": 0,
    "teams": [
        {"name": "red", "guaranteed": {"cpu": 3}, "borrowing_limit": {"cpu": 4}},
        {"name": "blue", "guaranteed": {"cpu": 2, "gpu": 1}},
    ],
}
POLICIES = ("conservative", "balanced", "aggressive")


def a_request(chance: random.Random, **more: Any) -> Ask:
    kind = chance.choice(("cpu", "cpu", "cpu", "gpu"))
    amount = 1 if kind == "gpu" else chance.choice((1, 2, 3, 4))
    target = chance.choice("abc")
    source = chance.choice((None, None, *(name for name in "abc" if name != target)))
    return ask(
        target,
        kind,
        amount,
        source=source,
        priority=chance.choice(list(AllocationPriority)),
        duration_s=float(chance.choice((60, 300, 900))),
        delivery=chance.choice((None, "reserve")) if kind == "cpu" else None,
        team=chance.choice(("red", "blue", "default")),
        requester="somebody",
        **more,
    )


def a_state(lab: WholeGrid, chance: random.Random) -> None:
    """Some boosts, some work, and perhaps requests that wait."""
    for _ in range(chance.randrange(6)):
        with contextlib.suppress(GridError):
            lab.run(lab.service.request(a_request(chance)))
    for name in "abc":
        if chance.random() < 0.4:
            lab.cluster.start(name, chance.choice((1, 2)))
    if chance.random() < 0.3:
        with contextlib.suppress(GridError):
            lab.run(lab.service.enqueue(a_request(chance)))
    lab.wait(5.0)  # all have seen it, and who was to yield has yielded


@pytest.mark.hypothesis  # a property, though its examples come from a seed: `make test-slow` runs four times as many
@pytest.mark.parametrize("seed", range(examples(200)))
def test_what_the_plan_says_happens(make_grid: Callable[..., WholeGrid], seed: int) -> None:
    chance = random.Random(seed)
    lab = make_grid(seed=seed, policy=chance.choice(POLICIES), **SHARING)
    a_state(lab, chance)
    wanted = a_request(chance)
    before = lab.leases
    plan = lab.run(plan_answer(lab.parts, lab.service.queue, wanted))
    assert lab.leases == before  # it is only a plan

    if plan["fits"]:
        lease = lab.run(lab.service.request(wanted))
        assert (lease.source, lease.delivery, lease.state) == (plan["source_node"], plan["delivery"], LeaseState.ACTIVE)
        assert lab.leases.keys() == {*before, lease.id}
    elif (taking := plan["preemption"]) is not None and not plan["ahead"]:
        lease = lab.run(lab.service.request(wanted))
        assert (lease.source, lease.delivery) == (taking["source_node"], taking["delivery"])
        for victim in taking["victims"]:
            left = lab.leases.get(victim["boost_id"])
            units = 0 if left is None or left.is_winding_down else left.units
            assert units == before[victim["boost_id"]].units - round(victim["takes"] * scale(victim["resource_type"]))
        spared = before.keys() - {victim["boost_id"] for victim in taking["victims"]}
        assert spared <= lab.leases.keys()
    elif taking is None:
        with pytest.raises(NoCapacity) as refused:
            lab.run(lab.service.request(wanted))
        _the_refusal_is_the_plans_answer(refused.value, plan, lab)
        _what_fits_is_granted(lab, wanted, plan["largest_now"])
        if not plan["largest_now"]["source_node"] and plan["expected_start"] and not plan["ahead"]:
            _it_is_met_when_it_was_said(lab, wanted, plan["expected_start"])
    assert not lab.cluster.violations


def _the_refusal_is_the_plans_answer(refused: NoCapacity, plan: dict[str, Any], lab: WholeGrid) -> None:
    """Its reason, its expected start, and advice that follows from them."""
    start = plan["expected_start"]
    if start is None:
        assert refused.expected_start is None
        assert refused.because[0] in plan["summary"]
    else:
        assert refused.expected_start is not None
        assert abs((parse_instant(refused.expected_start) - parse_instant(start)).total_seconds()) < 2.0
        assert "; expected in " in refused.because[0]
    assert refused.try_next is not None
    if "can ever" in refused.because[0] or "may have at most" in refused.because[0]:
        assert "wait for it" not in refused.try_next and "queue" not in refused.try_next
    waits = re.findall(r"--wait (\d+)m", refused.try_next)
    assert len(waits) == (start is not None)
    assert all(lab.now() + timedelta(minutes=int(wait)) >= parse_instant(str(start)) for wait in waits)


def _what_fits_is_granted(lab: WholeGrid, wanted: Ask, largest: dict[str, Any]) -> None:
    if largest["source_node"] is not None:
        less = replace(wanted, units=round(largest["amount"] * scale(wanted.kind)))
        assert lab.run(lab.service.request(less)).source == largest["source_node"]


def _it_is_met_when_it_was_said(lab: WholeGrid, wanted: Ask, start: str) -> None:
    """Or sooner: who could not yield for it yet may do so meanwhile."""
    waiting = lab.run(lab.service.enqueue(wanted))
    assert isinstance(waiting, Waiting)
    lab.wait((parse_instant(start) - lab.now()).total_seconds() + SHARING["grace_seconds"] + 3.0)
    assert waiting.id not in lab.parts.sharing.waiting


@pytest.mark.hypothesis
@pytest.mark.parametrize("seed", range(examples(60)))
def test_plan_queue_and_why_have_one_answer_and_it_is_kept(make_grid: Callable[..., WholeGrid], seed: int) -> None:
    chance = random.Random(1000 + seed)
    rules = SHARING | {"min_hold_seconds": chance.choice((0, 20)), "grace_seconds": 10}
    lab = make_grid(seed=seed, policy=chance.choice(POLICIES), **rules)
    a_state(lab, chance)
    wanted = a_request(chance)
    plan = lab.run(plan_answer(lab.parts, lab.service.queue, wanted))
    found = lab.run(lab.service.enqueue(wanted))
    if not isinstance(found, Waiting):
        assert plan["fits"]
        return
    assert not plan["fits"]
    (queued,) = [one for one in lab.run(_listed(lab)) if one["request_id"] == found.id]
    why = lab.run(why_answer(lab.parts, lab.service, found.id))
    said = [answer["expected_start"] for answer in (plan, queued, why)]
    if plan["expected_start"] is None:
        assert said == [None, None, None]
        assert queued["reason"] in plan["summary"]
        return
    first, *others = (parse_instant(start) for start in said)
    # A boost that is not in use returns at once, and the request is being granted while it is asked about.
    in_time = [(other - first).total_seconds() for other in others]
    is_granted = lab.parts.ledger.is_being_granted(found.id)
    assert all(late < 2.0 if is_granted else abs(late) < 2.0 for late in in_time), (plan, queued, why)
    if not plan["ahead"]:
        lab.wait((first - lab.now()).total_seconds() + 3.0)
        assert found.id not in lab.parts.sharing.waiting, (plan["summary"], queued["reason"])


async def _listed(lab: WholeGrid) -> list[dict[str, Any]]:
    requests = queue_dict(lab.parts.sharing.waiting, lab.service.queue.verdicts(), lab.now())["requests"]
    return list(requests)


def test_the_plan_is_refused_where_the_request_is(make_grid: Callable[..., WholeGrid]) -> None:
    assert refused_alike(make_grid(enabled=False)) == "SHARING_DISABLED"


def test_the_plan_is_refused_where_the_disk_takes_no_request(lab: WholeGrid) -> None:
    """Whether a write has failed before or the plan is the first to find out; and no longer once the disk does."""
    lab.wait(1.0)  # a write a moment ago would prove that the disk takes more
    lab.disk_is_full = True
    assert refused_alike(lab) == "STORE_BROKEN"
    lab.run(lab.parts.try_commit())
    assert refused_alike(lab) == "STORE_BROKEN"
    lab.disk_is_full = False
    assert planned(lab)["fits"]
    assert lab.run(lab.service.request(ask("a"))).state is LeaseState.ACTIVE


def test_however_many_plans_are_asked_for_the_disk_is_tried_once_in_a_moment(
    lab: WholeGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.wait(1.0)
    written: list[None] = []
    save = lab.parts.file.save

    def counted(*args: Any, **how: Any) -> None:
        written.append(None)
        save(*args, **how)

    monkeypatch.setattr(lab.parts.file, "save", counted)
    assert all(planned(lab)["fits"] for _ in range(20))

    assert len(written) == 1


def test_a_real_disk_refuses_the_plan_in_the_words_of_the_request(
    make_grid: Callable[..., WholeGrid], tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "256k") as disk:
        lab = make_grid(home=disk)
        lab.run(lab.service.request(ask("b", amount=1)))
        lab.wait(1.0)
        with filled(disk):
            plan, request, again = (
                _refusal_of(lab, doing)
                for doing in (
                    plan_answer(lab.parts, lab.service.queue, ask("a")),
                    lab.service.request(ask("a")),
                    plan_answer(lab.parts, lab.service.queue, ask("a")),
                )
            )
        assert plan == request == again
        assert "No space left" in plan[1] and "this change is not" in plan[2][0]


def _refusal_of(lab: WholeGrid, doing: Coroutine[Any, Any, Any]) -> tuple[Any, ...]:
    with pytest.raises(GridError) as refused:
        lab.run(doing)
    return refused.value.code, refused.value.message, refused.value.because, refused.value.try_next


def test_the_plan_is_refused_while_the_boost_file_cannot_be_read(lab: WholeGrid) -> None:
    lab.run(lab.service.request(ask("a")))
    lab.wait(1.0)
    lab.stop()
    file = lab.home.boosts
    content = file.read_bytes()
    file.write_bytes(content.replace(b'"version": 1', b'"version": 99'))
    lab.start(strict=False)
    assert refused_alike(lab) == "STORE_BROKEN"
    file.write_bytes(content)
    lab.wait(3.0)
    assert planned(lab)["fits"]


def test_the_plan_is_refused_while_grid_stops(lab: WholeGrid) -> None:
    lab.service.queue.is_open = False
    assert refused_alike(lab) == "REFUSED"
    assert not lab.leases
    lab.service.queue.is_open = True
    assert planned(lab)["fits"]


def planned(lab: WholeGrid) -> dict[str, Any]:
    return lab.run(plan_answer(lab.parts, lab.service.queue, ask("a")))


def refused_alike(lab: WholeGrid) -> str:
    """The code with which a plan is refused; the requests, on the line and in the queue, say the same."""
    said = []
    for doing in (
        plan_answer(lab.parts, lab.service.queue, ask("a")),
        lab.service.request(ask("a")),
        lab.service.enqueue(ask("a")),
        plan_answer(lab.parts, lab.service.queue, ask("a")),
    ):
        said.append(_refusal_of(lab, doing))
    assert all(each == said[0] for each in said), said
    return str(said[0][0])


@pytest.mark.parametrize("seed", range(10))
def test_a_plan_just_after_a_release_counts_what_the_view_does_not_show_yet(
    make_grid: Callable[..., WholeGrid], seed: int
) -> None:
    lab = make_grid(FakeCluster.lagging(seed), seed=seed)
    for source in "bc":
        boost = lab.run(lab.service.request(ask("a", amount=4, source=source, delivery="reserve")))
        lab.wait(2.0)
        lab.run(lab.service.release(boost.id, grace_s=0.0, wait_s=5.0))
        again = ask("a", amount=4, source=source, delivery="reserve")
        assert lab.run(plan_answer(lab.parts, lab.service.queue, again))["fits"]


def test_a_refusal_says_when_and_advises_a_wait_that_is_long_enough(lab: WholeGrid) -> None:
    for source in "bc":
        lab.run(lab.service.request(ask("a", amount=4, source=source, duration_s=720.0)))
    plan = lab.run(plan_answer(lab.parts, lab.service.queue, ask("a", amount=4)))
    with pytest.raises(NoCapacity) as refused:
        lab.run(lab.service.request(ask("a", amount=4)))
    assert refused.value.expected_start == plan["expected_start"] is not None
    assert refused.value.because[0].endswith("; expected in 12 min")
    assert refused.value.try_next == (
        "Wait for it with --wait 13m; "
        "or let it wait in the queue: grid resource-sharing request a cpu 4 --max-sources 1"
    )


@pytest.mark.parametrize(("waited_s", "advice"), [(40.0, "Wait for it with --wait 12m; or let"), (360.0, "Let")])
def test_a_request_whose_wait_ran_out_is_not_told_to_wait_a_little_longer(
    lab: WholeGrid, waited_s: float, advice: str
) -> None:
    for source in "bc":
        lab.run(lab.service.request(ask("a", amount=4, source=source, duration_s=720.0)))
    with pytest.raises(NoCapacity) as refused:
        lab.run(lab.service.request(ask("a", amount=4, source="b", priority=AllocationPriority.LOW), wait_s=waited_s))
    assert refused.value.try_next == (
        f"{advice} it wait in the queue: grid resource-sharing request a cpu 4 --source b --priority low"
    )


def test_the_command_that_lets_a_request_wait_asks_for_the_same(lab: WholeGrid) -> None:
    for source in "bc":
        lab.run(lab.service.request(ask("a", amount=4, source=source, duration_s=720.0)))

    with pytest.raises(NoCapacity) as refused:
        lab.run(lab.service.request(ask("a", amount=4, duration_s=600.0, on_grace_end=OnGraceEnd.KILL)))
    same = "grid resource-sharing request a cpu 4 --max-sources 1 --duration 600"
    assert str(refused.value.try_next).endswith(f": {same}")


def test_a_run_is_told_what_a_run_can_do(lab: WholeGrid) -> None:
    for_run = {"purpose": Purpose.RUN, "delivery": "reserve", "own_too": True, "max_sources": 1}
    with pytest.raises(NoCapacity) as refused:
        lab.run(lab.service.request(ask("a", amount=99, **for_run)))
    assert refused.value.try_next == "4 CPUs can be lent by b: grid run --cpus 4 --source b"
    for source in "abc":
        lab.run(lab.service.request(ask("a", amount=4, source=source, duration_s=720.0, **for_run)))
    with pytest.raises(NoCapacity) as refused:
        lab.run(lab.service.request(ask("a", amount=99, **for_run)))
    assert str(refused.value.try_next).startswith("Waiting does not help: the nodes can never lend that")
    with pytest.raises(NoCapacity) as refused:
        lab.run(lab.service.request(ask("a", amount=4, **for_run), wait_s=600.0))
    assert refused.value.try_next == "Wait for it with --wait 13m"


def test_of_equal_lenders_a_plan_and_a_refusal_name_the_same(lab: WholeGrid) -> None:
    asked = ask("b", amount=99)
    plan = lab.run(plan_answer(lab.parts, lab.service.queue, asked))
    with pytest.raises(NoCapacity) as refused:
        lab.run(lab.service.request(asked))

    first = plan["largest_now"]["source_node"]
    assert f"({first} can lend the most: " in plan["summary"] and plan["summary"].endswith(f" from {first}")
    assert any(f"({first} can lend the most: " in line for line in refused.value.because)
    assert (refused.value.try_next or "").endswith(f"--source {first}")


def test_a_refusal_never_advises_to_wait_for_what_can_never_be_met(lab: WholeGrid) -> None:
    with pytest.raises(UnknownResource, match="No node has a resource 'unicorns'") as unknown:
        lab.run(lab.service.request(ask("a", "unicorns", 1)))
    assert "wait" not in str(unknown.value.try_next)
    with pytest.raises(NoCapacity) as refused:
        lab.run(lab.service.request(ask("a", amount=9), wait_s=5.0))
    assert refused.value.because[0].startswith("no node can ever lend 9 CPUs")
    assert refused.value.try_next == "4 CPUs can be lent by b: grid boost request a cpu 4 --source b"


def test_a_team_at_its_limit_has_one_expected_start_everywhere(make_grid: Callable[..., WholeGrid]) -> None:
    lab = make_grid(teams=[{"name": "red", "guaranteed": {"cpu": 2}, "borrowing_limit": {"cpu": 0}}])
    lab.run(lab.service.request(ask("a", amount=2, team="red", duration_s=600.0)))
    wanted = ask("a", amount=1, team="red")
    plan = lab.run(plan_answer(lab.parts, lab.service.queue, wanted))
    with pytest.raises(NoCapacity) as refused:
        lab.run(lab.service.request(wanted))
    found = lab.run(lab.service.enqueue(wanted))
    (queued,) = lab.run(_listed(lab))
    why = lab.run(why_answer(lab.parts, lab.service, found.id))
    said = {refused.value.expected_start, *(answer["expected_start"] for answer in (plan, queued, why))}
    assert len(said) == 1 and None not in said
    lab.wait((parse_instant(plan["expected_start"]) - lab.now()).total_seconds() + 3.0)
    assert found.id not in lab.parts.sharing.waiting
