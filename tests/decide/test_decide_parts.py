"""Requests that several nodes meet together, each with a part of what is asked."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from builders import NOON, amounts, ask, cpu, lease, limits, node, waits

from distributed_grid.decide.capacity.lending import counter_offer, plan_parts
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.policies import POLICIES
from distributed_grid.decide.queue.admission import Verdict, plan_queue
from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.plans import Grant, Refused, Rules
from distributed_grid.model.policies import AllocationPriority, SharingPolicy
from distributed_grid.model.requests import Ask, Waiting

MASTER = node("gpu-master", cpus=2)
MANY = 64


def plan(asked: Ask, *nodes: Node, leases: tuple[Lease, ...] = (), rules: Rules | None = None) -> tuple[Grant, ...]:
    found = plan_parts(asked, NodeTable([MASTER, *nodes]), Usage.of(leases), rules or Rules())
    return () if isinstance(found, Refused) else found


def parts(grants: tuple[Grant, ...]) -> list[tuple[str, float]]:
    return [(grant.source, grant.ask.units / 10_000) for grant in grants]


def queued(
    *queue: Waiting, nodes: tuple[Node, ...], leases: tuple[Lease, ...] = (), policy: SharingPolicy | None = None
) -> dict[str, Verdict]:
    numbers = None if policy is None else POLICIES[policy]
    verdicts = plan_queue(
        queue, NodeTable([MASTER, *nodes]), leases, Usage.of(leases), lambda _: Rules(), NOON, numbers=numbers
    )
    return {verdict.waiting.id: verdict for verdict in verdicts}


def wants(id: str, amount: float, **changes: object) -> Waiting:
    return replace(waits(id, amount), ask=ask(amount=amount, max_sources=MANY, **changes))


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


# -- now -------------------------------------------------------------------------------------------------------


def test_two_nodes_lend_what_neither_can_lend_alone() -> None:
    found = plan(ask(amount=10, max_sources=MANY), node("a", cpus=6), node("b", cpus=5))
    assert parts(found) == [("a", 6), ("b", 4)]
    assert [grant.why_it for grant in found] == ["the most that a can lend", "the rest"]


def test_one_node_lends_alone_what_it_can() -> None:
    assert parts(plan(ask(amount=5, max_sources=MANY), node("a", cpus=6), node("b", cpus=8))) == [("b", 5)]


def test_as_few_nodes_as_possible_lend() -> None:
    small = [node(f"s{number}", cpus=3) for number in range(4)]
    assert parts(plan(ask(amount=10, max_sources=MANY), *small, node("big", cpus=8))) == [("big", 8), ("s0", 2)]


@pytest.mark.parametrize(("most", "expected"), [(1, []), (2, []), (3, [("a", 4), ("b", 4), ("c", 2)])])
def test_no_more_nodes_lend_than_the_request_allows(most: int, expected: list[tuple[str, float]]) -> None:
    nodes = [node(name, cpus=4) for name in "abc"]
    assert parts(plan(ask(amount=10, max_sources=most), *nodes)) == expected


def test_only_the_nodes_that_are_named_lend() -> None:
    nodes = [node(name, cpus=4) for name in "abc"]
    assert parts(plan(ask(amount=6, max_sources=MANY, sources=("c", "b")), *nodes)) == [("b", 4), ("c", 2)]
    assert plan(ask(amount=10, max_sources=MANY, sources=("c", "b")), *nodes) == ()


def test_each_part_keeps_its_lenders_limit() -> None:
    limited = node("a", cpus=8, limits=limits(cpu=3))
    assert parts(plan(ask(amount=7, max_sources=MANY), limited, node("b", cpus=5))) == [("b", 5), ("a", 2)]


def test_whole_amounts_have_whole_parts() -> None:
    half_free = node("a", cpus=4, used=amounts(cpu=0.5))
    assert parts(plan(ask(amount=6, max_sources=MANY), half_free, node("b", cpus=3))) == [("a", 3), ("b", 3)]


def test_every_gpu_brings_its_cpus_from_its_own_lender() -> None:
    nodes = [node("a", base=amounts(cpu=4, gpu=2)), node("b", base=amounts(cpu=1, gpu=2))]
    found = plan(ask(kind="gpu", amount=3, max_sources=MANY), *nodes)
    assert [(grant.source, grant.resources, grant.delivery) for grant in found] == [
        ("a", amounts(cpu=2, gpu=2), Delivery.RESERVE),
        ("b", amounts(cpu=1, gpu=1), Delivery.RESERVE),
    ]


def test_a_node_that_borrows_a_kind_lends_no_part_of_it() -> None:
    borrowed = lease("x", "c", "a", amount=2)
    nodes = (node("a", cpus=4, borrowed=cpu(2)), node("b", cpus=4), replace(node("c", cpus=4), free=cpu(2)))
    assert parts(plan(ask(amount=6, max_sources=MANY), *nodes, leases=(borrowed,))) == [("b", 4), ("c", 2)]


def test_a_refusal_offers_what_several_can_lend_together() -> None:
    refused = plan_parts(
        ask(amount=12, max_sources=2), NodeTable([MASTER, *(node(name, cpus=4) for name in "abc")]), Usage(), Rules()
    )
    assert isinstance(refused, Refused)
    same = "grid boost request gpu-master cpu 8 --max-sources 2"
    assert counter_offer(refused) == f"8 CPUs can be lent by 2 nodes together: {same}"


@pytest.mark.parametrize(
    ("most", "said"), [(MANY, "nor can all of them together"), (3, "nor can all of"), (2, "nor can any 2 of")]
)
def test_a_request_that_is_too_large_for_all_together_is_told_so(most: int, said: str) -> None:
    nodes = tuple(node(name, cpus=4) for name in "abc")
    reason = queued(replace(waits("r"), ask=ask(amount=99, max_sources=most)), nodes=nodes)["r"].reason
    assert reason.startswith(f"no node can ever lend 99 CPUs, {said}")
    assert reason.endswith("(a can lend the most: 4 CPUs)")


# -- later -----------------------------------------------------------------------------------------------------


def test_a_request_waits_until_enough_has_come_back_to_all_its_lenders_together() -> None:
    leases = (lease("x", "a", amount=4, expires_at=at(10)), lease("y", "b", amount=4, expires_at=at(20)))
    nodes = tuple(replace(node(name, cpus=4), total=cpu(0), free=cpu(0)) for name in "ab")
    verdict = queued(wants("w", 6), nodes=nodes, leases=leases)["w"]
    assert (verdict.grants, verdict.expected_start) == ((), at(20))
    assert set(verdict.expected_sources) == {"a", "b"}
    assert "a and b" in verdict.reason


def test_a_part_that_a_request_ahead_waits_for_is_lent_to_none_behind_it_for_longer() -> None:
    leases = (lease("x", "a", amount=4, expires_at=at(10)),)
    nodes = (replace(node("a", cpus=4), total=cpu(0), free=cpu(0)), node("b", cpus=4))
    long, short = wants("long", 4, duration_s=3600.0), wants("short", 4, duration_s=300.0)
    found = queued(wants("w", 8), long, nodes=nodes, leases=leases)
    assert (found["w"].expected_start, found["long"].grants) == (at(10), ())
    found = queued(wants("w", 8), short, nodes=nodes, leases=leases)
    assert parts(found["short"].grants) == [("b", 4)]


def test_what_no_nodes_can_lend_together_even_when_idle_is_hopeless() -> None:
    nodes = tuple(node(name, cpus=4) for name in "ab")
    assert queued(wants("w", 9), nodes=nodes)["w"].is_hopeless
    assert not queued(wants("w", 8), nodes=tuple(replace(one, free=cpu(1)) for one in nodes))["w"].is_hopeless


def test_leases_of_several_lenders_yield_together_and_no_more_than_needed() -> None:
    low = {"priority": AllocationPriority.LOW, "age_s": 1000.0}
    leases = (
        lease("x1", "a", amount=2, **low),
        lease("x2", "a", amount=2, **low),
        lease("y", "b", amount=3, **low),
    )
    nodes = tuple(replace(node(name, cpus=5), total=cpu(free), free=cpu(free)) for name, free in (("a", 1), ("b", 2)))
    high = wants("w", 8, priority=AllocationPriority.HIGH)
    verdict = queued(high, nodes=nodes, leases=leases, policy=SharingPolicy.BALANCED)["w"]
    assert verdict.preemption is not None
    taken = {victim.id: verdict.preemption.takes[victim.id] / 10_000 for victim in verdict.preemption.victims}
    assert sum(taken.values()) == 5
    assert sum(units for _, units in parts(verdict.preemption.grants)) == 8
    normal = queued(wants("w", 8), nodes=nodes, leases=leases[2:], policy=SharingPolicy.BALANCED)["w"]
    assert normal.preemption is None or "y" in {victim.id for victim in normal.preemption.victims}
