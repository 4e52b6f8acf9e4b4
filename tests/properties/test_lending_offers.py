"""What a refusal offers instead is granted when it is asked for."""

import shlex
from typing import Any

from builders import amounts, limits, node
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from distributed_grid.decide.capacity.lending import counter_offer, plan_grant
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.plans import Grant, Refused, Rules
from distributed_grid.model.requests import Ask, make_ask
from distributed_grid.model.resources import GB, ResourceVector

REPEATABLE = settings(max_examples=examples(500), report_multiple_bugs=False)


@st.composite
def lenders(draw: st.DrawFn, kind: str) -> list[Node]:
    found_nodes = [node("gpu-master")]
    for name in ("a", "b"):
        total = amounts(cpu=draw(st.integers(0, 8)), gpu=draw(st.integers(0, 4)), memory=8)
        free = ResourceVector(
            {
                "cpu": draw(st.integers(0, total["cpu"])) if kind != "memory" else total["cpu"],
                "gpu": total["gpu"],
                "memory": draw(st.integers(0, 8 * GB)) if kind == "memory" else total["memory"],
            }
        )
        limit = draw(st.none() | st.integers(0, 8))
        found_nodes.append(node(name, base=total, used=total - free, limits=limits(cpu=limit)))
    return found_nodes


def requested(target: str, kind: str, amount: float | str, **more: Any) -> Ask:
    return make_ask({"target_node": target, "resource_type": kind, "amount": amount, **more})


def is_kept(asked: Ask, nodes: list[Node], delivery: str | None = None) -> bool:
    """Ask; if that is refused and something is offered, ask for that, as a person would."""
    table = NodeTable(nodes)
    refused = plan_grant(asked, table, Usage(), Rules(delivery))
    if not isinstance(refused, Refused) or (offer := counter_offer(refused)) is None:
        return True
    *_, target, kind, amount, option, source = shlex.split(offer)
    assert (target, option) == (asked.target, "--source")
    again = requested(target, kind, amount, source_node=source)
    return isinstance(plan_grant(again, table, Usage(), Rules(delivery)), Grant)


@given(lenders("cpu"), st.integers(1, 9))
def test_an_offer_of_cpus_is_kept(nodes: list[Node], amount: int) -> None:
    assert is_kept(requested("gpu-master", "cpu", amount), nodes)


@REPEATABLE
@given(lenders("memory"), st.integers(1, 9), st.sampled_from(["transfer", "reserve"]))
def test_an_offer_of_memory_is_kept(nodes: list[Node], amount: int, delivery: str) -> None:
    assert is_kept(requested("gpu-master", "memory", amount), nodes, delivery)


@REPEATABLE
@given(lenders("gpu"), st.integers(1, 5))
def test_an_offer_of_gpus_is_kept(nodes: list[Node], amount: int) -> None:
    assert is_kept(requested("gpu-master", "gpu", amount), nodes)
