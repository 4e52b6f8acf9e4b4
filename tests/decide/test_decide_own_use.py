"""What a node sets aside of its own for one program: nothing is lent, and nothing of it is lent on."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from builders import NOON, ask, cpu, lease, limits, node, waits

from distributed_grid.decide.capacity.lending import plan_grant
from distributed_grid.decide.capacity.snapshot import Snapshot
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.policies import POLICIES
from distributed_grid.decide.queue.admission import plan_queue
from distributed_grid.decide.queue.preemption import plan_relief
from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.plans import NO_RULES, Grant, Headroom, Refused, Rules
from distributed_grid.model.policies import SharingPolicy
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.requests import Ask

ALONE = node("gpu-master", cpus=4, limits=limits(can_share=False))


def own(amount: float = 2, **more: Any) -> Ask:
    return ask(amount=amount, delivery="reserve", own_too=True, **more)


def set_aside(amount: float = 2, id: str = "o1") -> Lease:
    return lease(id, "gpu-master", "gpu-master", amount=amount, delivery=Delivery.RESERVE)


def plan(asked: Ask, *nodes: Node, leases: tuple[Lease, ...] = (), rules: Rules = NO_RULES) -> Grant | Refused:
    return plan_grant(asked, NodeTable(nodes), Usage.of(leases), rules)


def source(planned: Grant | Refused) -> str | None:
    return planned.source if isinstance(planned, Grant) else None


def test_others_lend_first_and_the_target_has_it_where_none_does() -> None:
    assert source(plan(own(), ALONE, node(cpus=2))) == "gpu1"
    assert source(plan(own(), ALONE, node(cpus=1))) == "gpu-master"
    assert source(plan(own(source="gpu-master"), ALONE, node(cpus=8))) == "gpu-master"


def test_only_a_target_that_requests_it_gets_its_own_capacity_and_never_as_a_transfer() -> None:
    assert source(plan(ask(delivery="reserve"), ALONE)) is None
    assert source(plan(ask(own_too=True), ALONE)) is None
    assert source(plan(ask(own_too=True, source="gpu-master"), ALONE)) == "gpu-master"


def test_no_limit_of_lending_counts_for_it() -> None:
    keeps = Rules(headroom=Headroom(of_base=0.5))
    assert source(plan(own(4), replace(ALONE, limits=limits(cpu=1)), rules=keeps)) == "gpu-master"


def test_what_is_set_aside_is_neither_set_aside_again_nor_lent() -> None:
    held = set_aside(3)
    refused = plan(own(2), ALONE, leases=(held,))  # Ray does not show it yet
    assert isinstance(refused, Refused)
    assert [(r.code, r.detail, r.could_lend) for r in refused.refusals] == [
        (RefusalCode.NO_CAPACITY, "1 of 4 CPUs free, 2 requested", 10_000)
    ]
    lends = replace(ALONE, limits=limits(cpu=4))
    assert source(plan(ask("gpu1", amount=2), lends, node(cpus=0), leases=(held,))) is None
    assert source(plan(ask("gpu1", amount=1), lends, node(cpus=0), leases=(held,))) == "gpu-master"


def test_it_does_not_count_as_lent() -> None:
    usage = Usage.of([set_aside(3)])
    assert (usage.lent("gpu-master", "cpu"), usage.taken("gpu-master", "cpu")) == (0, 30_000)
    assert not usage.borrowed_by("gpu-master")
    lends = node("gpu-master", cpus=8, limits=limits(cpu=4))
    assert source(plan(ask("gpu1", amount=4), lends, node(cpus=0), leases=(set_aside(3),))) == "gpu-master"


def test_what_it_was_given_is_its_own_too() -> None:
    given = lease("b1", "gpu1", "gpu-master", amount=2)
    richer = node("gpu-master", cpus=4, borrowed=cpu(2), limits=limits(can_share=False))
    assert source(plan(own(6), richer, node(cpus=0), leases=(given,))) == "gpu-master"
    assert source(plan(own(6), ALONE, node(cpus=0))) is None


def test_it_is_not_taken_from_a_node_to_relieve_that_node() -> None:
    numbers = POLICIES[SharingPolicy.AGGRESSIVE]
    old = replace(set_aside(2), allocated_at=NOON.replace(hour=1))

    def relief(held: Lease) -> Mapping[str, int]:
        full = NodeTable([node("gpu-master", used=cpu(4)), node("gpu1")])
        return plan_relief("gpu-master", [(cpu(2),)], Snapshot(full, Usage.of([held]), [held]), numbers, NOON)

    assert not relief(old)
    assert relief(replace(old, target="gpu1"))


def test_a_waiting_request_takes_its_own_as_soon_as_it_is_free_but_not_what_one_ahead_counts_on() -> None:
    held, kept = lease("b1", "gpu1", "gpu-master", amount=4, delivery=Delivery.RESERVE), set_aside(3)
    mine = waits("mine", 1, delivery="reserve", own_too=True)

    def grants(*queue: Any, used: float = 0, leases: tuple[Lease, ...] = (held,)) -> dict[str, str | None]:
        nodes = NodeTable([node("gpu-master", cpus=4, used=cpu(used)), node("gpu1", cpus=4, used=cpu(4))])
        verdicts = plan_queue(queue, nodes, leases, Usage.of(leases), lambda _: NO_RULES, NOON)
        return {v.waiting.id: None if v.grant is None else v.grant.source for v in verdicts}

    assert grants(mine) == {"mine": "gpu-master"}
    assert grants(waits("ahead", 4), mine) == {"ahead": None, "mine": "gpu-master"}  # it waits for gpu1
    assert grants(mine, used=4, leases=(held, set_aside(4))) == {"mine": None}
    assert grants(mine, used=3, leases=(held, kept)) == {"mine": "gpu-master"}
    ahead = waits("ahead", 4, target="gpu1")  # it waits for gpu-master
    longer = waits("longer", 1, delivery="reserve", own_too=True, duration_s=7200)
    assert grants(ahead, longer, used=3, leases=(held, kept)) == {"ahead": None, "longer": None}
    assert grants(ahead, mine, used=3, leases=(held, kept)) == {"ahead": None, "mine": "gpu-master"}  # done by then


def test_a_request_that_waits_for_its_own_has_an_expected_start_and_those_behind_leave_it_that() -> None:
    held = lease("b1", "gpu-master", "gpu1", amount=3, delivery=Delivery.RESERVE)
    nodes = NodeTable([node("gpu-master", cpus=4, used=cpu(3)), node(cpus=0)])
    queue = [waits("mine", 4, delivery="reserve", own_too=True, nodes=("gpu-master",))]
    queue.append(waits("w", 1, target="gpu1", duration_s=7200))
    mine, behind = plan_queue(queue, nodes, [held], Usage.of([held]), lambda _: NO_RULES, NOON)
    assert (mine.expected_start, mine.expected_source) == (held.expires_at, "gpu-master")
    assert behind.grant is None, "it would be in the way"
    queue[1] = waits("w", 1, target="gpu1", duration_s=60)
    assert plan_queue(queue, nodes, [held], Usage.of([held]), lambda _: NO_RULES, NOON)[1].grant


def test_of_the_nodes_that_will_do_the_first_that_has_room_lends_also_if_it_is_the_targets_own() -> None:
    nodes = (ALONE, node(cpus=2), node("gpu2", cpus=8))
    order = ("gpu-master", "gpu1", "gpu2")
    assert source(plan(own(2, nodes=order), *nodes)) == "gpu-master"
    assert source(plan(own(2, nodes=order[::-1]), *nodes)) == "gpu2"
    assert source(plan(own(2, nodes=("gpu1",)), *nodes)) == "gpu1"
    assert source(plan(own(2, nodes=order), *nodes, leases=(set_aside(4),))) == "gpu1"
    queue = [waits(name, 2, delivery="reserve", own_too=True, nodes=order) for name in ("w1", "w2", "w3", "w4")]
    verdicts = plan_queue(queue, NodeTable(nodes), (), Usage(), lambda _: NO_RULES, NOON)
    assert [v.expected_source for v in verdicts] == ["gpu-master", "gpu-master", "gpu1", "gpu2"]
    assert source(plan(own(2, nodes=()), *nodes)) is None


def test_when_it_ends_its_node_can_lend_again() -> None:
    nodes = NodeTable([node("gpu-master", cpus=4, used=cpu(3), limits=limits(cpu=3)), node(cpus=0)])
    held = set_aside(3)
    [verdict] = plan_queue([waits("w", 3, target="gpu1")], nodes, [held], Usage.of([held]), lambda _: NO_RULES, NOON)
    assert (verdict.grant, verdict.expected_start, verdict.expected_source) == (None, held.expires_at, "gpu-master")
