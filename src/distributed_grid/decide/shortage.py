"""How much a node is short of, and who could lend it. What grid does by itself and what it suggests rest on this."""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from distributed_grid.decide.hysteresis import Threshold
from distributed_grid.decide.lending import plan_grant
from distributed_grid.decide.loans import Loans
from distributed_grid.model.demand import Shape
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.plans import Grant, Refused
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import CPU, MEMORY, ResourceVector, scale
from distributed_grid.model.rules import Rules

MOVABLE: Final = (CPU, MEMORY)
"""What grid moves without being asked. GPUs cannot be, and a custom resource may stand for something of the machine."""

Thresholds = Mapping[str, Threshold]


def middle(threshold: Threshold) -> float:
    """Where use should be: as far from being pressed as from being relieved."""
    return (threshold.low + threshold.high) / 2


def short_by(kind: str, use: float, capacity: int, threshold: Threshold) -> int:
    """How much more brings this use of this capacity down to the middle; whole CPUs or GBs, and at least one."""
    lacking = capacity * (use / middle(threshold) - 1)
    return max(1, math.ceil(lacking / scale(kind))) * scale(kind)


def gap(shape: Shape, node: Node, count: int = 1) -> ResourceVector:
    """What a node lacks to start so many of these at once."""
    needs = shape.needs
    return ResourceVector({kind: max(0, count * units - node.free[kind]) for kind, units in needs.items()})


def fits_on_one_node(shape: Shape) -> bool:
    """Whether room on a single node is enough: not for a group whose bundles must be apart."""
    return shape.in_group is None and not (shape.strategy == "STRICT_SPREAD" and len(shape.bundles) > 1)


def with_nothing_to_lend(nodes: NodeTable, names: Collection[NodeName]) -> NodeTable:
    """The same nodes, of which these have nothing free: they are not to be asked."""
    if not names:
        return nodes
    return NodeTable(replace(n, free=ResourceVector()) if n.name in names else n for n in nodes.values())


def find_lender(ask: Ask, nodes: NodeTable, loans: Loans, rules: Rules, *, least: int) -> Grant | Refused:
    """Who lends what is asked; or, where nobody has all of it, the most that one has, if that is at least `least`."""
    plan = plan_grant(ask, nodes, loans, rules)
    if isinstance(plan, Grant):
        return plan
    most = max((refusal.could_lend for refusal in plan.refusals), default=0)
    units = most - most % scale(ask.kind)
    if units < max(1, least):
        return plan
    smaller = plan_grant(replace(ask, units=units), nodes, loans, rules)
    return smaller if isinstance(smaller, Grant) else plan
