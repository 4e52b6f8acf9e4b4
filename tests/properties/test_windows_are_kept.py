"""No request with a weaker claim breaks a window: it begins on time, whatever was asked for before and meanwhile."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from builders import NOON, ask, lease, node
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from property_examples import examples
from queue_world import World

from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.policies import POLICIES
from distributed_grid.decide.queue.admission import Verdict
from distributed_grid.decide.queue.claims import ordered
from distributed_grid.decide.queue.renewals import latest_end
from distributed_grid.decide.queue.windows import asked_by, horizon, promised
from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.nodes import Node
from distributed_grid.model.policies import AllocationPriority, SharingPolicy
from distributed_grid.model.requests import Waiting
from distributed_grid.model.resources import ResourceVector, scale
from distributed_grid.model.teams import Teams
from distributed_grid.model.windows import Window

BALANCED = POLICIES[SharingPolicy.BALANCED]
MASTER = node("gpu-master", cpus=0, memory=0)
UNTIL = NOON + timedelta(hours=8)
NOT_BETTER = (AllocationPriority.LOW, AllocationPriority.NORMAL)
DELIVERIES = ("transfer", "reserve")


@st.composite
def windows(draw: st.DrawFn) -> list[Window]:
    """One or two windows in the next hours, which nodes with 4 CPUs each could meet together at any time."""
    return [
        Window(
            f"w{number}",
            ask(
                "gpu-master",
                "cpu",
                draw(st.integers(1, 2)) * 2,
                duration_s=draw(st.integers(1, 5)) * 1200.0,
                delivery=draw(st.sampled_from(DELIVERIES)),
                priority=AllocationPriority.NORMAL,
            ),
            f"daily {13 + draw(st.integers(0, 5))}:{draw(st.sampled_from(('00', '07', '30')))}",
            "UTC",
            NOON,
        )
        for number in range(draw(st.integers(1, 2)))
    ]


@st.composite
def arrivals(draw: st.DrawFn) -> list[Waiting]:
    """Requests that come one after the other. Many wait so long that they are overdue."""
    found = []
    for number in range(draw(st.integers(3, 14))):
        asked = ask(
            "gpu-master",
            "cpu",
            draw(st.integers(1, 4)),
            duration_s=draw(st.sampled_from((60.0, 600.0, 3600.0, 4 * 3600.0))),
            delivery=draw(st.sampled_from(DELIVERIES)),
            priority=draw(st.sampled_from(NOT_BETTER)),
            grace_s=draw(st.sampled_from((0.0, 30.0, 300.0))),
        )
        since = NOON + timedelta(minutes=draw(st.integers(-200, 300)))
        found.append(Waiting(f"r{number}", asked, since))
    return found


@st.composite
def lent_before(draw: st.DrawFn, bases: Sequence[Node]) -> list[Lease]:
    """Leases with a weaker claim that are older than the windows, some of them far longer."""
    found = []
    for base in bases:
        left = draw(st.sampled_from((4, 4, 3, 0)))
        for number in range(left):
            amount = min(left, draw(st.sampled_from((1, 2, 4))))
            if not amount:
                break
            left -= amount
            delivery = Delivery(draw(st.sampled_from(DELIVERIES)))
            found.append(
                lease(
                    f"old-{base.name}-{number}",
                    base.name,
                    amount=amount,
                    resources=ResourceVector({"cpu": amount * scale("cpu")}),
                    delivery=delivery,
                    priority=AllocationPriority.LOW,
                    allocated_at=NOON - timedelta(hours=1),
                    expires_at=NOON + timedelta(minutes=draw(st.sampled_from((600, 60, 59, 90, 600, 5)))),
                    grace_s=draw(st.sampled_from((30.0, 300.0, 0.0))),
                )
            )
    return found


def play(world: World, wanted: list[Window], coming: list[Waiting], *, until: datetime = UNTIL) -> dict[str, datetime]:
    """Let time pass, with a round of the queue whenever something happens. By id, when each occurrence should begin."""
    begins: dict[str, datetime] = {}
    while world.now < until:
        now = world.now
        world.queue += [
            one for one in coming if one.since <= now and one.id not in world.admitted and one not in world.queue
        ]
        for window in wanted:
            for each in window.occurrences(now, now + timedelta.resolution):
                one = window.request(each, now)
                if each.begin == now:
                    begins[one.id] = now
                    world.queue.append(one)
        world.queue = [one for one in world.queue if one.occurrence is None or now < one.occurrence.end]
        while any(one.preemption and one.preemption.due(now) for one in a_round(world, wanted)):
            pass  # what changes is news for the queue, which plans again
        moments = [one.since for one in coming]
        moments += [each.begin for window in wanted for each in window.occurrences(now, until)]
        moments += [asked_by(held, begin, now) for held in world.leases.values() for begin in tuple(moments)]
        moments += [world.next_end() or until, until]
        world.go_on_to(min(moment for moment in moments if moment > now))
    return begins


def a_round(world: World, wanted: list[Window]) -> tuple[Verdict, ...]:
    now = world.now
    longest_s = max((one.ask.duration_s for one in world.queue), default=0.0)
    promises = promised(wanted, now, horizon(longest_s, now), {one.id for one in world.queue})
    leases = tuple(world.leases.values())
    verdicts = world.plan(ordered((*world.queue, *promises), Usage.of(leases), {}, Teams(()), now, leases))
    assert not any(one.grants for one in verdicts if one.waiting.is_promise(now)), "none begins early"
    world.admit(verdicts)
    return verdicts


def fit_together(wanted: list[Window], bases: Sequence[Node]) -> bool:
    """Whether idle nodes could meet all windows, by the plan itself."""
    world = World(list(bases), numbers=BALANCED)
    begins = play(world, wanted, [])
    return all(world.admitted.get(one) == begin for one, begin in begins.items())


@settings(max_examples=examples(200), deadline=None, phases=[Phase.generate, Phase.shrink])
@given(st.data())
def test_a_window_begins_on_time_whatever_weaker_claims_hold_or_request(data: st.DataObject) -> None:
    bases = [MASTER, *(node(name, cpus=4) for name in ("a", "b")[: data.draw(st.integers(1, 2))])]
    wanted = data.draw(windows())
    if not fit_together(wanted, bases):
        wanted = wanted[:1]
    world = World(bases, numbers=BALANCED, uses_up_grace=True)
    world.leases = {one.id: one for one in data.draw(lent_before(bases[1:]))}

    begins = play(world, wanted, data.draw(arrivals()))

    for one, begin in begins.items():
        assert world.admitted.get(one) == begin, f"{one} should begin at {begin}, got {world.admitted.get(one)}"
    assert begins


@settings(max_examples=examples(40), deadline=None)
@given(windows(), st.integers(1, 4), st.integers(10, 600), st.integers(1, 59))
def test_a_renewal_makes_no_window_begin_late(wanted: list[Window], amount: int, more_min: int, end_min: int) -> None:
    bases = [MASTER, node("a", cpus=4)]
    wanted = wanted[:1]
    held = lease("mine", "a", amount=amount, expires_at=NOON + timedelta(minutes=end_min), grace_s=0.0)
    world = World(bases, numbers=None)
    world.leases = {held.id: held}
    promises = promised(wanted, NOON, horizon(more_min * 60.0, NOON))

    found = latest_end(
        held, NOON + timedelta(minutes=more_min), world.nodes(), [held], Usage.of([held]), promises,
        lambda _: world.rules, Teams(()), NOON,
    )  # fmt: skip

    world.leases = {held.id: replace(held, expires_at=max(found.at, held.expires_at))}
    begins = play(world, wanted, [])
    assert all(world.admitted.get(one) == begin for one, begin in begins.items())
    begin, takes = next(iter(begins.values())), wanted[0].ask.units + held.units
    if takes <= 4 * scale("cpu") or NOON + timedelta(minutes=more_min) <= begin:
        assert found.at == NOON + timedelta(minutes=more_min), "what is in no window's way is renewed in full"
    else:
        assert found.window is not None
        assert found.at == begin
