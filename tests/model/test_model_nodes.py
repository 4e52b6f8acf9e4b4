"""Nodes by name, in name order; limits per kind."""

import pytest
from builders import limits, node

from distributed_grid.errors import SourceNotFound, TargetNotFound
from distributed_grid.model.nodes import NodeTable, connected, node_named
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


def test_a_node_that_is_not_there_is_named_beside_those_that_are() -> None:
    table = NodeTable([node("a"), node("b", alive=False)])
    assert node_named(table, "b") is table["b"]
    with pytest.raises(TargetNotFound) as unknown:
        node_named(table, "c")
    assert (unknown.value.because, unknown.value.try_next) == (("no node is named 'c'",), "Nodes: a, b")
    with pytest.raises(SourceNotFound, match="Source node not found in cluster"):
        node_named(table, "c", is_source=True)
    with pytest.raises(TargetNotFound) as down:
        connected(table, "b")
    assert down.value.because == ("b is configured but not connected to the cluster",)
