"""A plan as the API shows it: amounts as people read them, instants as text."""

from dataclasses import replace
from datetime import timedelta

import orjson
import pytest
from builders import NOON, ask, cpu, lease, node

from distributed_grid.controller.sharing_routes import allocation_dict
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.policies import POLICIES
from distributed_grid.decide.queue.answers import look_ahead
from distributed_grid.leases.view import plan_dict
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.plans import Rules
from distributed_grid.model.policies import AllocationPriority, SharingPolicy
from distributed_grid.model.requests import Ask


def shown(asked: Ask, *nodes: Node, leases: tuple[Lease, ...] = ()) -> dict[str, object]:
    table = NodeTable([node("gpu-master", cpus=2), *nodes])
    numbers = POLICIES[SharingPolicy.BALANCED]
    said = look_ahead(asked, table, leases, Usage.of(leases), (), {}, lambda _: Rules(), numbers, NOON)
    return orjson.loads(orjson.dumps(plan_dict(said, NOON)))  # type: ignore[no-any-return]


def test_a_plan_that_fits() -> None:
    assert shown(ask(amount=1.5), node("gpu1", cpus=4)) == {
        "target_node": "gpu-master",
        "resource_type": "cpu",
        "amount": 1.5,
        "priority": "normal",
        "team": "default",
        "at": "2025-06-01T12:00:00.000Z",
        "fits": True,
        "source_node": "gpu1",
        "parts": [],
        "delivery": "transfer",
        "delivery_reason": "transfer is the default for cpu",
        "warnings": [],
        "preemption": None,
        "ahead": 0,
        "expected_start": "2025-06-01T12:00:00.000Z",
        "expected_wait_s": 0.0,
        "largest_now": {"amount": 4, "source_node": "gpu1"},
        "team_limit": None,
        "nodes": [
            {"node": "gpu-master", "verdict": "IsTarget", "detail": "it is the target of the request", "could_lend": 0},
            {
                "node": "gpu1",
                "verdict": "chosen",
                "detail": "4 of 4 CPUs free, it can lend 4; of the eligible nodes it has the most left",
                "could_lend": 4,
            },
        ],
        "summary": "1.5 CPUs for gpu-master: gpu1 lends it now (transfer)",
    }


def test_a_plan_for_which_another_lease_would_yield() -> None:
    low = AllocationPriority.LOW
    lent = lease("b1", amount=6, priority=low, age_s=1000.0, team="web", expires_at=NOON + timedelta(minutes=30))
    full = replace(node("gpu1", cpus=8), total=cpu(2), free=cpu(0))
    plan = shown(ask(amount=4, priority=AllocationPriority.HIGH), full, leases=(lent,))
    assert (plan["fits"], plan["source_node"], plan["expected_wait_s"]) == (False, None, 30.0)
    assert plan["largest_now"] == {"amount": 0, "source_node": None}
    assert plan["preemption"] == {
        "source_node": "gpu1",
        "parts": [],
        "reason": "a request of high priority takes precedence: 4 CPUs for gpu-master",
        "takes_own": False,
        "delivery": "transfer",
        "at": "2025-06-01T12:00:00.000Z",
        "back_by": "2025-06-01T12:00:30.000Z",
        "victims": [
            {
                "boost_id": "b1",
                "target_node": "gpu-master",
                "resource_type": "cpu",
                "amount": 6,
                "takes": 4,
                "priority": "low",
                "team": "web",
            }
        ],
    }


@pytest.mark.parametrize("state", LeaseState)
def test_a_request_that_became_a_boost_has_the_state_that_the_boost_shows(state: LeaseState) -> None:
    granted = lease(state=state)
    answer = allocation_dict(granted, None, (), NOON)
    assert answer["boost"] is not None
    assert answer["state"] == answer["boost"]["state"] == state.shown
