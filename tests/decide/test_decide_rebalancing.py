"""What grid does without a request: every kind of action, and what keeps it from acting."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from builders import NOON, amounts, cpu, demand, forecast, lease, limits, node, reading, shape, snapshot
from builders import waits as in_queue

from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.monitoring.pressure import Pressed, Threshold
from distributed_grid.decide.policies import POLICIES
from distributed_grid.decide.rebalance.observed import kinds_asked
from distributed_grid.decide.rebalance.round import Observed, Streaks, rebalance
from distributed_grid.decide.rebalance.suggestions import suggest
from distributed_grid.model.demand import Demand, Shape
from distributed_grid.model.endings import OnGraceEnd
from distributed_grid.model.leases import Cause, Delivery, Lease, LeaseState, Notice, Purpose
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.plans import NO_RULES, Action, Borrow, Move, Relieve, Renew, Return, Rules
from distributed_grid.model.policies import AllocationPriority, SharingMode, SharingPolicy
from distributed_grid.model.resources import CPU, GPU, MEMORY, scale
from distributed_grid.model.series import Forecast
from distributed_grid.model.snapshots import GpuReading

BALANCED, PREDICTIVE = SharingPolicy.BALANCED, SharingPolicy.PREDICTIVE
THRESHOLDS = dict.fromkeys((CPU, MEMORY, GPU), Threshold(low=0.3, high=0.8))
MASTER, GPU1, GPU2 = node("gpu-master"), node("gpu1", cpus=8), node("gpu2", cpus=6)
OLD = 1000.0


@dataclass
class Round:
    """A cluster in which little happens, but for what a test says."""

    nodes: tuple[Node, ...] = (MASTER, GPU1, GPU2)
    use: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By node: what its snapshot says, as for the builder."""
    demand: tuple[Demand, ...] = ()
    leases: tuple[Lease, ...] = ()
    policy: SharingPolicy = BALANCED
    mode: SharingMode = SharingMode.DYNAMIC_BALANCING
    forecasts: Mapping[tuple[str, str], Forecast] = field(default_factory=dict)
    rules: Rules = NO_RULES
    queued: frozenset[str] = frozenset()

    def seen(self) -> Observed:
        snapshots = {n.name: snapshot(n, **self.use.get(n.name, {})) for n in self.nodes}
        return Observed(
            nodes=NodeTable(self.nodes),
            snapshots=snapshots,
            pressed=_pressed(snapshots),
            demand=self.demand,
            leases=self.leases,
            usage=Usage.of(self.leases),
            thresholds=THRESHOLDS,
            numbers=POLICIES[self.policy],
            mode=self.mode,
            now=NOON,
            forecasts=self.forecasts,
            queued=self.queued,
        )

    def after(self, rounds: int = 1, before: Streaks | None = None) -> tuple[Action, ...]:
        """What is done in the last of so many rounds in which everything is the same."""
        actions: tuple[Action, ...] = ()
        streaks: Streaks = before or {}
        for _ in range(rounds):
            actions, streaks = rebalance(self.seen(), streaks, lambda ask: self.rules)
        return actions


def _pressed(snapshots: Mapping[str, Any]) -> Pressed:
    return frozenset(
        (name, kind)
        for name, one in snapshots.items()
        for kind in THRESHOLDS
        if not one.stale and (one.pressure.of(kind) or 0.0) >= THRESHOLDS[kind].high
    )


def hot(name: str, value: float = 0.95) -> dict[str, dict[str, float]]:
    return {name: {"cpu": value}}


def own(amount: float = 2, cause: Cause = Cause.PRESSURE, age_s: float = OLD, **changes: Any) -> Lease:
    """One that grid made."""
    return lease(amount=amount, cause=cause, age_s=age_s, requester="grid", **changes)


# -- borrowing for who is pressed -------------------------------------------------------------------------------


def test_a_pressed_node_borrows_after_the_policys_rounds_and_not_before() -> None:
    pressed = Round(use=hot("gpu-master"))

    assert [pressed.after(rounds) for rounds in (1, 2)] == [(), ()]
    (borrow,) = pressed.after(3)
    assert isinstance(borrow, Borrow)
    assert (borrow.ask.target, borrow.ask.source, borrow.ask.kind) == ("gpu-master", "gpu1", "cpu")
    assert borrow.ask.units == cpu(3)["cpu"]  # 4 CPUs at 95 % are 3.8, and those are 55 % of 7
    assert (borrow.ask.cause, borrow.ask.priority) == (Cause.PRESSURE, AllocationPriority.LOW)
    assert (borrow.ask.requester, borrow.ask.delivery) == ("grid", "auto")
    assert "gpu-master has been under pressure for 3 rounds: cpu at 95%" in borrow.reason


@pytest.mark.parametrize(("policy", "rounds"), [(SharingPolicy.AGGRESSIVE, 1), (PREDICTIVE, 2), (BALANCED, 3)])
def test_each_policy_has_its_own_patience(policy: SharingPolicy, rounds: int) -> None:
    pressed = Round(use=hot("gpu-master"), policy=policy)
    assert [bool(pressed.after(n)) for n in range(1, rounds + 1)] == [False] * (rounds - 1) + [True]


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": SharingPolicy.CONSERVATIVE},
        {"mode": SharingMode.SHARE_AND_OFFLOAD},
        {"mode": SharingMode.OFFLOAD_ONLY},
    ],
    ids=str,
)
def test_no_node_is_boosted_where_grid_does_not_act_by_itself(changes: dict[str, Any]) -> None:
    waiting = demand(shape("gpu1", cpu=10), *Round().nodes)
    assert Round(use=hot("gpu-master"), demand=(waiting,), **changes).after(20) == ()


def test_a_round_without_pressure_begins_the_count_again() -> None:
    pressed, calm = Round(use=hot("gpu-master")), Round()
    streaks: Streaks = {}
    for each in (pressed, pressed, calm, pressed, pressed):
        actions, streaks = rebalance(each.seen(), streaks, lambda ask: NO_RULES)
        assert actions == ()


def test_a_node_that_falls_silent_neither_borrows_nor_begins_again() -> None:
    pressed = Round(use=hot("gpu-master"))
    silent = Round(use={"gpu-master": {"cpu": 0.95, "stale": True}})
    streaks: Streaks = {}
    done = []
    for each in (pressed, pressed, silent, pressed):
        actions, streaks = rebalance(each.seen(), streaks, lambda ask: NO_RULES)
        done.append(len(actions))
    assert done == [0, 0, 0, 1]


def test_a_node_under_pressure_does_not_lend() -> None:
    (borrow,) = Round(use=hot("gpu-master") | hot("gpu1", 0.85), nodes=(MASTER, GPU1, GPU2)).after(3)[:1]
    assert isinstance(borrow, Borrow) and borrow.ask.source == "gpu2"


def test_where_all_nodes_are_pressed_none_borrows() -> None:
    assert Round(use=hot("gpu-master") | hot("gpu1") | hot("gpu2")).after(9) == ()


def test_where_no_node_has_all_of_it_the_most_that_one_can_lend_is_borrowed() -> None:
    small = node("gpu1", cpus=8, limits=limits(cpu=2)), node("gpu2", cpus=6, limits=limits(cpu=1))
    (borrow,) = Round(nodes=(MASTER, *small), use=hot("gpu-master")).after(3)
    assert isinstance(borrow, Borrow) and (borrow.ask.units, borrow.ask.source) == (cpu(2)["cpu"], "gpu1")


@pytest.mark.parametrize(("age_s", "borrows"), [(10.0, False), (OLD, True)], ids=["young", "old"])
def test_nothing_more_is_borrowed_while_the_last_loan_is_young(age_s: float, borrows: bool) -> None:
    bigger = node("gpu-master", borrowed=cpu(1))
    pressed = Round(nodes=(bigger, GPU1, GPU2), use=hot("gpu-master"), leases=(own(1, age_s=age_s),))
    assert bool(pressed.after(3)) is borrows


def test_for_pressure_a_node_never_borrows_more_than_it_has_itself() -> None:
    doubled = node("gpu-master", borrowed=cpu(4))
    assert Round(nodes=(doubled, GPU1, GPU2), use=hot("gpu-master"), leases=(own(4),)).after(9) == ()


def test_what_is_reserved_for_it_elsewhere_counts_as_help() -> None:
    reserved = own(3, delivery=Delivery.RESERVE)
    assert Round(use=hot("gpu-master"), leases=(reserved,)).after(9) == ()


def test_gpu_pressure_borrows_nothing() -> None:
    """What runs on a GPU cannot move to another one: that is a person's to decide."""
    with_gpus = (node("gpu-master", gpus=1), node("gpu1", gpus=2), GPU2)
    assert Round(nodes=with_gpus, use={"gpu-master": {"gpu": 1.0}}).after(9) == ()


def test_the_most_pressed_comes_first_and_no_round_does_more_than_its_policy_allows() -> None:
    many = tuple(node(f"n{number}") for number in range(5)) + tuple(node(f"z{n}", cpus=32) for n in range(5))
    actions = Round(nodes=many, use={f"n{n}": {"cpu": 0.9 + n / 100} for n in range(5)}).after(3)
    assert [action.ask.target for action in actions if isinstance(action, Borrow)] == ["n4", "n3"]
    assert len({action.ask.source for action in actions if isinstance(action, Borrow)}) == 2


def test_a_node_that_lends_does_not_borrow_the_same_kind() -> None:
    assert Round(use=hot("gpu1"), leases=(lease(age_s=10),)).after(9) == ()


# -- borrowing for what waits -----------------------------------------------------------------------------------


def waits(wanted: Shape, count: int = 1, nodes: tuple[Node, ...] = (MASTER, GPU1, GPU2), **changes: Any) -> Round:
    return Round(nodes=nodes, demand=(demand(wanted, *nodes, count=count),), **changes)


def test_what_is_too_large_for_its_node_gets_the_missing_part_there() -> None:
    pinned = waits(shape("gpu-master", cpu=6))

    assert pinned.after(2) == ()
    (borrow,) = pinned.after(3)
    assert isinstance(borrow, Borrow)
    assert (borrow.ask.target, borrow.ask.units, borrow.ask.delivery) == ("gpu-master", cpu(2)["cpu"], "transfer")
    assert borrow.ask.cause is Cause.DEMAND
    assert "waits for gpu-master: 1 x 6 CPUs where grid/name=gpu-master" in borrow.reason


def test_what_waits_for_a_busy_node_gets_what_is_not_free_there() -> None:
    busy = node("gpu-master", used=cpu(3))
    (borrow,) = waits(shape("gpu-master", cpu=3), nodes=(busy, GPU1, GPU2)).after(3)
    assert isinstance(borrow, Borrow) and borrow.ask.units == cpu(2)["cpu"]


@pytest.mark.parametrize(("count", "borrowed"), [(1, 1), (3, 3), (40, 4)], ids=["one", "some", "too-many"])
def test_for_many_that_wait_at_most_as_much_again_as_the_node_has(count: int, borrowed: int) -> None:
    full = node("gpu-master", used=cpu(4))
    (borrow,) = waits(shape("gpu-master", cpu=1), count, (full, GPU1, GPU2)).after(3)
    assert isinstance(borrow, Borrow) and borrow.ask.units == cpu(borrowed)["cpu"]


def test_two_kinds_are_borrowed_together_or_not_at_all() -> None:
    both = waits(shape("gpu-master", cpu=6, memory=20)).after(3)
    assert {(action.ask.kind, action.ask.units) for action in both if isinstance(action, Borrow)} == {
        ("cpu", cpu(2)["cpu"]),
        ("memory", 4 * scale(MEMORY)),
    }
    assert waits(shape("gpu-master", cpu=6, memory=200)).after(9) == ()


def test_no_gpu_is_borrowed_for_work_that_waits_for_a_whole_one_where_only_parts_are_free() -> None:
    parts = node("b", gpus=3, used=amounts(gpu=1.8), gpu_parts=(6_000, 6_000, 6_000))
    assert waits(shape("b", gpu=1), nodes=(MASTER, parts, node("c", gpus=2))).after(9) == ()


@pytest.mark.parametrize(
    "wanted",
    [{"cpu": 3}, {"on": "b", "gpu": 1}, {"on": "b", "cpu": 1, "fpga": 1}, {"on": "b", "cpu": 60}, {"on": "b"}],
    ids=["any-node", "gpu", "custom", "more-than-any-node-has", "nothing"],
)
def test_nothing_is_borrowed_for_what_a_loan_cannot_serve(wanted: dict[str, Any]) -> None:
    assert waits(shape(**wanted), nodes=(node("a", cpus=8), node("b"), node("c", cpus=8, gpus=2))).after(9) == ()


def test_a_group_whose_bundles_must_be_apart_is_not_served_by_one_node() -> None:
    apart = replace(
        shape("gpu-master", cpu=3), bundles=shape("gpu-master", cpu=3).bundles * 2, strategy="STRICT_SPREAD"
    )
    assert waits(apart).after(9) == ()
    assert waits(replace(apart, strategy="STRICT_PACK")).after(3) != ()


def test_nothing_is_transferred_where_transfers_are_not_possible() -> None:
    assert waits(shape("gpu-master", cpu=6), rules=Rules(no_transfers_because="it is so")).after(9) == ()


def test_a_cordoned_node_gets_nothing() -> None:
    assert waits(shape("gpu-master", cpu=6), rules=Rules(cordoned=frozenset({"gpu-master"}))).after(9) == ()


# -- acting on what is expected ---------------------------------------------------------------------------------


def test_predictive_borrows_before_the_pressure_is_there_and_the_others_do_not() -> None:
    expected = {("gpu-master", CPU): forecast(0.9)}

    (borrow,) = Round(forecasts=expected, policy=PREDICTIVE).after(2)
    assert isinstance(borrow, Borrow) and borrow.ask.cause is Cause.FORECAST
    assert "gpu-master is expected to come under pressure: cpu at 90% in 15 min" in borrow.reason
    assert Round(forecasts=expected, policy=BALANCED).after(9) == ()


def test_a_node_that_is_expected_to_be_under_pressure_does_not_lend() -> None:
    expected = {("gpu-master", CPU): forecast(0.9), ("gpu1", CPU): forecast(0.85)}
    (borrow,) = [a for a in Round(forecasts=expected, policy=PREDICTIVE).after(2) if isinstance(a, Borrow)][:1]
    assert borrow.ask.source == "gpu2"


def test_what_is_still_expected_is_not_returned() -> None:
    made = own(cause=Cause.FORECAST)
    still = {("gpu-master", CPU): forecast(0.9)}
    assert not [a for a in Round(leases=(made,), forecasts=still, policy=PREDICTIVE).after(9) if isinstance(a, Return)]
    assert [a for a in Round(leases=(made,), policy=PREDICTIVE).after(9) if isinstance(a, Return)]


# -- returning and renewing -------------------------------------------------------------------------------------


def test_what_is_not_needed_any_more_is_returned_after_the_policys_rounds() -> None:
    relieved = Round(use=hot("gpu-master", 0.2), leases=(own(),))

    assert relieved.after(2) == ()
    (back,) = relieved.after(3)
    assert isinstance(back, Return)
    assert back.reason == "gpu-master's cpu is at 20%, not above 30%, for 3 rounds"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"leases": (own(age_s=10),)}, "it is young"),
        ({"leases": (lease(age_s=OLD),)}, "a user asked for it"),
        ({"leases": (own(state=LeaseState.RELEASING),)}, "it is on its way"),
        ({"leases": (own(),), "use": hot("gpu-master", 0.5)}, "it is neither pressed nor relieved"),
        ({"leases": (own(),), "use": {"gpu-master": {"cpu": 0.1, "stale": True}}}, "no recent measurement"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_returned(changes: dict[str, Any], why: str) -> None:
    assert Round(**changes).after(9) == (), why


def test_what_would_bring_the_pressure_back_is_not_returned() -> None:
    bigger = node("gpu-master", borrowed=cpu(4))
    nodes = (bigger, GPU1, GPU2)
    assert Round(nodes=nodes, use=hot("gpu-master", 0.29), leases=(own(4),)).after(9) == ()  # 58 % of its own 4
    assert Round(nodes=nodes, use=hot("gpu-master", 0.2), leases=(own(4),)).after(9) != ()


def test_what_was_borrowed_is_returned_also_when_the_policy_was_changed_since() -> None:
    changed = Round(leases=(own(),), policy=SharingPolicy.CONSERVATIVE, mode=SharingMode.SHARE_AND_OFFLOAD)
    assert isinstance(changed.after(5)[0], Return)


def test_one_nodes_loans_are_returned_one_by_one() -> None:
    bigger = node("gpu-master", borrowed=cpu(2))
    two = Round(nodes=(bigger, GPU1, GPU2), leases=(own(1, id="b2"), own(1, id="b1")))
    assert [action.lease.id for action in two.after(3) if isinstance(action, Return)] == ["b1"]


def test_what_was_borrowed_for_waiting_work_is_returned_when_nothing_waits_and_it_is_idle() -> None:
    made = own(cause=Cause.DEMAND)
    used, idle = node("gpu-master", borrowed=cpu(2), used=cpu(5)), node("gpu-master", borrowed=cpu(2), used=cpu(4))
    again = demand(shape("gpu-master", cpu=6), idle, GPU1, GPU2)

    assert Round(nodes=(used, GPU1, GPU2), leases=(made,)).after(9) == ()
    assert not [
        action
        for action in Round(nodes=(idle, GPU1, GPU2), leases=(made,), demand=(again,)).after(9)
        if isinstance(action, Return)
    ]
    (back,) = Round(nodes=(idle, GPU1, GPU2), leases=(made,)).after(3)
    assert isinstance(back, Return) and "nothing waits for gpu-master, and 2 CPUs are idle there" in back.reason


def test_what_is_still_needed_is_renewed_before_it_ends() -> None:
    ending = own(4, expires_at=NOON + timedelta(minutes=10))
    bigger = node("gpu-master", borrowed=cpu(4))
    pressed = Round(nodes=(bigger, GPU1, GPU2), use=hot("gpu-master"), leases=(ending,))

    (renewed,) = pressed.after(1)
    assert isinstance(renewed, Renew) and renewed.reason == "gpu-master is still under cpu pressure"
    assert replace(pressed, leases=(own(4),)).after(1) == ()
    assert replace(pressed, mode=SharingMode.SHARE_AND_OFFLOAD).after(1) == ()


# -- lenders ----------------------------------------------------------------------------------------------------

LENDER = node("gpu1", cpus=8, base=amounts(cpu=8, memory=16))
LENT = replace(LENDER, total=amounts(cpu=6, memory=16), free=amounts(memory=16))


def test_a_hot_lenders_loan_moves_to_a_cool_one() -> None:
    lent = lease(age_s=OLD, priority=AllocationPriority.HIGH, team="red", requester="ann")
    hot_lender = Round(nodes=(MASTER, LENT, GPU2), use=hot("gpu1"), leases=(lent,))

    assert hot_lender.after(2) == ()
    (move,) = hot_lender.after(3)
    assert isinstance(move, Move)
    assert (move.lease, move.grant.source, move.grant.delivery) == (lent, "gpu2", Delivery.TRANSFER)
    asked = move.grant.ask
    assert (asked.source, asked.target, asked.units) == ("gpu2", "gpu-master", lent.units)
    assert (asked.priority, asked.team, asked.requester) == (AllocationPriority.HIGH, "red", "ann")
    assert asked.duration_s == 3600 - OLD
    assert move.reason == "gpu1's own use of cpu has been high for 3 rounds: 95%"


def test_a_moved_loan_keeps_everything_that_its_holder_said_about_it() -> None:
    said = {
        "label": "nightly training",
        "purpose": Purpose.RUN,
        "ends_with": "a" * 56,
        "grace_s": 90.0,
        "on_grace_end": OnGraceEnd.DRAIN,
        "reclaim_hook": "watch:",
        "cause": Cause.DEMAND,
    }
    lent = lease(age_s=OLD, **said)
    (move,) = Round(nodes=(MASTER, LENT, GPU2), use=hot("gpu1"), leases=(lent,)).after(3)

    assert isinstance(move, Move)
    assert {name: getattr(move.grant.ask, name) for name in said} == said


def test_where_no_other_node_can_lend_a_hot_lender_gets_its_own_back() -> None:
    (relieve,) = Round(nodes=(MASTER, LENT), use=hot("gpu1"), leases=(lease(age_s=OLD),)).after(3)
    assert isinstance(relieve, Relieve)
    assert (relieve.node, [one.id for one in relieve.victims]) == ("gpu1", ["b1"])


def test_waiting_work_gets_cpus_for_as_many_copies_as_the_devices_of_its_gpus_have_room_for() -> None:
    idle_gpus = node("gpu-master", cpus=8, gpus=4, used=cpu(8))
    waiting = demand(shape("gpu-master", cpu=1, gpu=0.6), idle_gpus, GPU1, count=6)

    (borrow,) = Round(nodes=(idle_gpus, GPU1), demand=(waiting,)).after(3)

    assert isinstance(borrow, Borrow)
    assert borrow.ask.units == cpu(4)["cpu"], "4 GPUs are enough for 6 x 0.6 by their sum, and for 4 by device"


def parts_of_gpus(*parts: float) -> tuple[Lease, ...]:
    """What gpu1 lent of its GPUs: each on one device."""
    reserved = {"kind": GPU, "delivery": Delivery.RESERVE, "age_s": OLD, "priority": AllocationPriority.LOW}
    return tuple(lease(f"p{number}", amount=part, **reserved) for number, part in enumerate(parts))


def with_parts(of: Node, *leases: Lease, own: tuple[float, ...] = ()) -> Node:
    """The node with these leases and its own work on its GPUs."""
    for part in (*[amounts(gpu=each) for each in own], *[each.resources for each in leases]):
        of = of.reserving(part)
    return of


def group_on_gpu1(*needs: float) -> Shape:
    """Bundles with so much of a GPU each, all on gpu1."""
    (one,) = shape("gpu1", gpu=1).bundles
    return Shape(tuple(replace(one, needs=amounts(gpu=each)) for each in needs), strategy="PACK")


def relieved(lender: Node, *leases: Lease, use: float = 0.0, waiting: Shape | None = None) -> list[str]:
    """The leases that gpu1 gets back after many rounds, at this use of its GPUs."""
    waits = () if waiting is None else (demand(waiting, lender),)
    measured = reading(
        *[GpuReading(number, None, None, use, None, None) for number in range(lender.total[GPU] // scale(GPU))]
    )
    gpus = {"gpu1": {"gpu": use, "measured": measured}}
    found = Round(nodes=(MASTER, lender), leases=leases, use=gpus, demand=waits).after(6)
    return [id for action in found if isinstance(action, Relieve) for id in action.takes]


def test_a_lender_gets_back_as_many_parts_of_gpus_as_its_waiting_bundles_need() -> None:
    halves = parts_of_gpus(0.5, 0.5, 0.5, 0.5)
    full = with_parts(node("gpu1", gpus=2), *halves)

    assert len(relieved(full, *halves, waiting=group_on_gpu1(0.5, 0.5, 0.5))) == 3
    assert len(relieved(full, *halves, waiting=group_on_gpu1(0.5, 0.5, 0.5, 0.5))) == 4


def test_a_lender_that_needs_one_gpu_more_gets_one_back_beside_the_part_that_is_free() -> None:
    lent = parts_of_gpus(1, 1)
    busy = with_parts(node("gpu1", gpus=4), *lent, own=(1, 0.5))

    assert len(relieved(busy, *lent, use=0.91)) == 1


def test_a_lender_gets_back_no_parts_that_leave_no_device_with_room() -> None:
    lent = parts_of_gpus(0.3, 0.4)
    split = with_parts(node("gpu1", gpus=2), *lent, own=(0.7, 0.6))

    assert relieved(split, *lent, waiting=group_on_gpu1(0.4)) == ["p1"]
    assert relieved(split, *lent, waiting=group_on_gpu1(0.5)) == [], "0.7 would be free, at most 0.4 on one device"


@pytest.mark.parametrize("mode", SharingMode)
@pytest.mark.parametrize("policy", SharingPolicy)
def test_lenders_are_protected_under_every_policy_and_in_every_mode(policy: SharingPolicy, mode: SharingMode) -> None:
    rounds = POLICIES[policy].high_rounds
    lent = Round(nodes=(MASTER, LENT), use=hot("gpu1"), leases=(lease(age_s=OLD),), policy=policy, mode=mode)
    assert isinstance(lent.after(rounds)[0], Relieve)


def test_where_grid_does_not_act_by_itself_nothing_moves_except_returns() -> None:
    still = Round(nodes=(MASTER, LENT, GPU2), use=hot("gpu1"), leases=(lease(age_s=OLD),))
    (action,) = replace(still, mode=SharingMode.SHARE_AND_OFFLOAD).after(3)
    assert isinstance(action, Relieve)


def test_a_reservation_is_not_moved_and_its_work_is_not_the_lenders_own() -> None:
    reserved = lease(amount=4, age_s=OLD, delivery=Delivery.RESERVE)
    nodes = (MASTER, node("gpu1", cpus=8, used=cpu(8)), GPU2)

    # 95 % of 8 CPUs are 7.6; 4 of them are the borrower's: the lender's own 3.6 are 90 % of its 4.
    (relieve,) = Round(nodes=nodes, use=hot("gpu1"), leases=(reserved,)).after(3)
    assert isinstance(relieve, Relieve)
    # 85 % are 6.8: its own 2.8 are 70 % of 4. All that is measured is above the threshold, its own work is not.
    assert Round(nodes=nodes, use=hot("gpu1", 0.85), leases=(reserved,)).after(9) == ()


def test_a_lender_gets_back_what_waiting_work_needs_and_its_base_would_serve() -> None:
    nodes = (MASTER, LENT)
    waiting = demand(shape("gpu1", cpu=2), *nodes)
    (relieve,) = Round(nodes=nodes, demand=(waiting,), leases=(lease(age_s=OLD),)).after(3)
    assert isinstance(relieve, Relieve) and relieve.takes == {"b1": cpu(2)["cpu"]}
    assert relieve.reason == "2 CPUs where grid/name=gpu1 waits for what gpu1 lent"


def test_what_a_lender_never_had_is_not_taken_back_for_it() -> None:
    nodes = (MASTER, LENT)
    waiting = demand(shape("gpu1", cpu=9), *nodes)
    assert Round(nodes=nodes, demand=(waiting,), leases=(lease(age_s=OLD),)).after(9) == ()


def test_nothing_is_taken_back_for_parts_of_gpus_that_never_fit_on_the_lenders_devices() -> None:
    lender = node("gpu1", gpus=2, used=amounts(gpu=1, cpu=1))
    lent = lease(kind="gpu", amount=1, delivery=Delivery.RESERVE, age_s=OLD)
    (bundle,) = shape("gpu1", gpu=0.6).bundles
    for count, is_served in ((2, True), (3, False)):
        waiting = demand(Shape((bundle,) * count, strategy="STRICT_PACK"), MASTER, lender)
        actions = Round(nodes=(MASTER, lender), demand=(waiting,), leases=(lent,)).after(9)
        assert bool(actions) == is_served, f"{count} parts of 0.6 on 2 devices"


@pytest.mark.parametrize(
    "coming",
    [
        lease(age_s=OLD, state=LeaseState.RELEASING, release_asked_at=NOON),
        lease(age_s=OLD, notice=Notice(cpu(2)["cpu"], "", NOON, NOON)),
    ],
    ids=["winding-down", "its holder was asked"],
)
def test_what_is_on_its_way_is_not_asked_for_again(coming: Lease) -> None:
    waiting = demand(shape("gpu1", cpu=2), MASTER, LENT)
    assert Round(nodes=(MASTER, LENT), demand=(waiting,), leases=(coming,)).after(9) == ()


def test_the_cpus_that_a_reserved_gpu_brings_back_are_not_asked_for_again() -> None:
    lender = node("gpu1", cpus=4, gpus=1, used=amounts(cpu=4, gpu=1))
    lender = replace(lender, total=lender.base - cpu(2), free=amounts(memory=16))
    asked_back = lease(
        "g", kind="gpu", amount=1, resources=amounts(gpu=1, cpu=1), delivery=Delivery.RESERVE, age_s=OLD,
        notice=Notice(10_000, "", NOON, NOON),
    )  # fmt: skip
    waiting = demand(shape("gpu1", cpu=1), MASTER, lender)
    held = (asked_back, lease("c", age_s=OLD))
    assert Round(nodes=(MASTER, lender), demand=(waiting,), leases=held).after(9) == ()
    assert Round(nodes=(MASTER, lender), demand=(waiting,), leases=held[1:]).after(9) != ()


def test_no_more_is_taken_of_a_loan_than_the_lender_needs() -> None:
    lender = replace(LENDER, total=amounts(cpu=4, memory=16), free=amounts(cpu=1, memory=16))
    waiting = demand(shape("gpu1", cpu=2), MASTER, lender)
    (relieve,) = Round(nodes=(MASTER, lender), demand=(waiting,), leases=(lease(amount=4, age_s=OLD),)).after(3)
    assert isinstance(relieve, Relieve) and relieve.takes == {"b1": cpu(1)["cpu"]}


def test_a_loan_that_was_moved_lately_stays_where_it_is() -> None:
    young = lease(age_s=10)
    assert Round(nodes=(MASTER, LENT, GPU2), use=hot("gpu1"), leases=(young,)).after(9) == ()


def test_a_lender_that_has_just_got_its_own_back_waits_whether_that_is_enough() -> None:
    lent = lease("b1", amount=2, age_s=10)
    lending = Round(nodes=(MASTER, LENT, GPU2), use=hot("gpu1"), leases=(lent,))
    home = Round(use=hot("gpu1"))
    streaks: Streaks = {}
    done = []
    for each in (lending, lending, lending, home, home, home):
        actions, streaks = rebalance(each.seen(), streaks, lambda ask: NO_RULES)
        done.append(len(actions))
    assert done == [0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize(("count", "lender"), [(1, "gpu1"), (3, "gpu2")], ids=["enough-for-both", "too-little"])
def test_a_node_with_waiting_work_lends_only_what_that_work_does_not_need(count: int, lender: str) -> None:
    """It waits for a GPU, and would need CPUs with it."""
    nodes = (MASTER, GPU1, GPU2)
    waiting = demand(shape("gpu1", gpu=1, cpu=3), *nodes, count=count)
    (borrow,) = Round(nodes=nodes, use=hot("gpu-master"), demand=(waiting,)).after(3)
    assert isinstance(borrow, Borrow) and borrow.ask.source == lender


def test_a_request_for_several_kinds_keeps_grid_off_all_of_them() -> None:
    pressed = Round(use=hot("gpu-master"))
    queue = [in_queue(kind=GPU, amount=1, along=((CPU, 4 * scale(CPU)),))]

    assert kinds_asked(queue) == {GPU, CPU}
    assert replace(pressed, queued=kinds_asked(queue)).after(9) == ()


def test_while_people_wait_for_a_kind_grid_takes_none_of_it() -> None:
    pressed = Round(use=hot("gpu-master"))
    assert replace(pressed, queued=frozenset({CPU})).after(9) == ()
    assert replace(pressed, queued=frozenset({MEMORY})).after(3) != ()

    hot_lender = Round(nodes=(MASTER, LENT, GPU2), use=hot("gpu1"), leases=(lease(age_s=OLD),), queued=frozenset({CPU}))
    assert isinstance(hot_lender.after(3)[0], Relieve)


@pytest.mark.parametrize("left", [(), (node("gpu-master", alive=False),)], ids=["unknown", "configured"])
def test_what_is_known_of_a_node_that_has_just_left_harms_no_other(left: tuple[Node, ...]) -> None:
    """It was measured, work waits for it, it borrows from a hot lender: and it is gone."""
    before = Round(
        use=hot("gpu-master") | hot("gpu1"),
        demand=(demand(shape("gpu-master", cpu=6), MASTER, GPU1),),
        leases=(lease(age_s=OLD), own(1, id="b2", source="gpu2"), own(1, Cause.DEMAND, id="b3", source="gpu2")),
        forecasts={("gpu-master", CPU): forecast(0.9)},
        policy=PREDICTIVE,
    ).seen()
    seen = replace(before, nodes=NodeTable((*left, LENT, GPU2)))
    streaks: Streaks = {}
    for _ in range(4):
        actions, streaks = rebalance(seen, streaks, lambda ask: NO_RULES)
        assert not [action for action in actions if isinstance(action, Borrow | Move)]
    assert [action.node for action in actions if isinstance(action, Relieve)] == ["gpu1"]
    ahead = {("gpu-master", MEMORY): [forecast(0.9)]}
    assert {one.node for one in suggest(seen, ahead, {}, lambda ask: NO_RULES)} == {"gpu1"}
