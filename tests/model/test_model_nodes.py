"""Nodes by name, in name order; limits per kind."""

from builders import limits, node

from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.resources import GB


def test_a_table_is_in_name_order_whatever_order_it_was_made_in() -> None:
    table = NodeTable([node("c"), node("a"), node("b")])
    assert list(table) == ["a", "b", "c"]
    assert len(table) == 3
    assert table["b"].name == "b"


def test_only_live_nodes_are_alive() -> None:
    table = NodeTable([node("a"), node("b", alive=False)])
    assert [n.name for n in table.alive] == ["a"]


def test_limits_are_per_kind_and_custom_resources_have_none() -> None:
    of_node = limits(cpu=2, memory=3, gpu=1)
    assert [of_node.limit(k) for k in ("cpu", "memory", "gpu", "tape")] == [20_000, 3 * GB, 10_000, None]
