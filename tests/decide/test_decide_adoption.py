"""Boosts of another cluster are taken over only where they could have been granted."""

from datetime import timedelta

import pytest
from builders import NOON, amounts, lease, limits, node

from distributed_grid.decide.leases.adoption import plan_adoption
from distributed_grid.model.leases import Delivery, Lease, LeaseState
from distributed_grid.model.nodes import NodeTable

NODES = NodeTable([node("gpu1", cpus=4, gpus=1), node("gpu2", cpus=4), node("gpu-master", cpus=2)])


def left(*offered: Lease, own: tuple[Lease, ...] = (), nodes: NodeTable = NODES) -> list[tuple[str, str]]:
    plan = plan_adoption(offered, own, nodes, now=NOON)
    assert {x.id for x in plan.taken} | {x.id for x, _ in plan.left} == {x.id for x in offered}
    return [(x.id, why) for x, why in plan.left]


def test_what_its_source_can_lend_is_taken_however_busy_it_is() -> None:
    busy = NodeTable([node("gpu1", cpus=4, used=amounts(cpu=4)), node("gpu-master", cpus=2)])
    assert left(lease("b1", amount=4), nodes=busy) == []


def test_the_oldest_come_first_and_all_count_together_with_what_is_lent_here() -> None:
    old, young = lease("x", amount=2, age_s=60), lease("a", amount=2)
    assert left(young, old) == []
    assert left(young, old, own=(lease("own", amount=1),)) == [("a", "gpu1: 1 of 4 CPUs free, 2 requested")]


@pytest.mark.parametrize("end", ["source", "target"])
def test_both_nodes_must_be_here(end: str) -> None:
    assert left(lease("b1", **{end: "gpu9"})) == [("b1", "no node here is named gpu9")]
    away = NodeTable([*NODES.values(), node("gpu9", alive=False)])
    assert left(lease("b1", **{end: "gpu9"}), nodes=away) == [("b1", "gpu9 is not connected")]


def test_limits_hold() -> None:
    nodes = NodeTable(
        [node("gpu1", limits=limits(cpu=1)), node("gpu-master"), node("gpu2", limits=limits(can_share=False))]
    )
    assert left(lease("b1"), lease("b2", "gpu2"), nodes=nodes) == [
        ("b1", "gpu1: 0 of at most 1 CPU lent, 2 requested"),
        ("b2", "gpu2: its configuration says can_share: false"),
    ]


def test_parts_of_gpus_are_on_one_device_each() -> None:
    nodes = NodeTable([node("gpu1", cpus=8, gpus=2), node("gpu-master")])
    parts = [
        lease(f"b{number}", kind="gpu", amount=0.6, delivery=Delivery.RESERVE, age_s=60 - number)
        for number in (1, 2, 3)
    ]
    why = "gpu1: 0.8 of 2 GPUs free, but at most 0.4 on one device, 0.6 requested"
    assert left(*parts, nodes=nodes) == [("b3", why)]


def test_loans_make_no_chains() -> None:
    own = lease("own", "gpu2", "gpu1", amount=1)
    assert left(lease("b1"), own=(own,)) == [("b1", "gpu1: it is borrowing cpu, and borrowed capacity is not lent on")]


def test_what_is_over_or_here_already_is_no_news() -> None:
    offered = [
        lease("expired", expires_at=NOON),
        lease("leaving", state=LeaseState.RELEASING),
        lease("lost", state=LeaseState.LOST),
        lease("here"),
        lease("half", state=LeaseState.GRANTING, expires_at=NOON + timedelta(seconds=1), delivery=Delivery.RESERVE),
    ]
    plan = plan_adoption(offered, [lease("here")], NODES, now=NOON)
    assert [x.id for x in plan.taken] == ["half"]
    assert plan.left == ()
