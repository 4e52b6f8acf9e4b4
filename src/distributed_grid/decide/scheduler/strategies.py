"""Strategies: each is a small function that scores every node. The highest score wins; then the first name.

A strategy need not check which nodes can carry the task: the others are already out. To add one:

    @register_strategy("newest")
    def newest(columns, sought):
        return columns.with_label("generation", "5").astype(float)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from distributed_grid.decide.scheduler.feasibility import Sought
from distributed_grid.decide.scheduler.table import Floats, NodeColumns
from distributed_grid.errors import InvalidRequest
from distributed_grid.model.resources import BUILT_IN
from distributed_grid.model.scheduling import SchedulingStrategy, strategy_name

Scorer = Callable[[NodeColumns, Sought], Floats]


@dataclass(frozen=True, slots=True)
class Strategy:
    name: str
    scorer: Scorer
    summary: str
    """Its preference, in one line."""


REGISTERED: Final[dict[str, Strategy]] = {}


def strategies() -> Mapping[str, Strategy]:
    """All registered strategies, by name."""
    return MappingProxyType(REGISTERED)


def register_strategy(name: str, summary: str = "") -> Callable[[Scorer], Scorer]:
    """Add or replace a strategy in this process. By default, its docstring's first line says what it prefers."""

    def register(scorer: Scorer) -> Scorer:
        known = strategy_name(name)
        REGISTERED[known] = Strategy(known, scorer, summary or (scorer.__doc__ or known).strip().splitlines()[0])
        return scorer

    return register


def strategy_named(name: str) -> Strategy:
    """Raises `InvalidRequest` if there is no strategy of that name."""
    found = REGISTERED.get(name)
    if found is None:
        raise InvalidRequest(
            f"Unknown strategy: {name!r}", try_next=f"Use one of: {', '.join(sorted(map(str, REGISTERED)))}."
        )
    return found


def load(columns: NodeColumns, sought: Sought) -> Floats:
    """0..1: how busy each node would be with the task: measured pressure or used capacity, whichever is more."""
    found: Floats = 1.0 - sought.left
    for kind in BUILT_IN:
        found = np.fmax(found, columns.pressure[kind])  # fmax ignores NaN
    return found


@register_strategy(SchedulingStrategy.LOAD_BALANCED)
def load_balanced(columns: NodeColumns, sought: Sought) -> Floats:
    """The node that is then the least busy."""
    return -load(columns, sought)


@register_strategy(SchedulingStrategy.LOCAL_FIRST)
def local_first(columns: NodeColumns, sought: Sought) -> Floats:
    """The target, with its boosts; where it has no room, the node that is then the least busy."""
    scores = -load(columns, sought)
    if sought.home >= 0:
        scores[sought.home] += 2.0
    return scores


@register_strategy(SchedulingStrategy.BEST_FIT)
def best_fit(_: NodeColumns, sought: Sought) -> Floats:
    """The node that is left with the least, so that large gaps stay for large tasks."""
    return -sought.left


@register_strategy(SchedulingStrategy.SPREAD)
def spread(columns: NodeColumns, sought: Sought) -> Floats:
    """The node with the fewest tasks that the scheduler has placed; of these the least busy."""
    return -columns.tasks - 0.5 * load(columns, sought)


@register_strategy(SchedulingStrategy.PERFORMANCE_OPTIMIZED)
def performance_optimized(columns: NodeColumns, sought: Sought) -> Floats:
    """The node with the highest product of speed (label grid/speed) and idle capacity."""
    return columns.speed * (1.0 - 0.9 * load(columns, sought))


@register_strategy(SchedulingStrategy.COST_OPTIMIZED)
def cost_optimized(columns: NodeColumns, sought: Sought) -> Floats:
    """The cheapest node (label grid/cost, else 1/priority); of equal ones the fullest."""
    return -columns.cost - 1e-3 * sought.left


@register_strategy(SchedulingStrategy.NODE_SPECIFIC)
def node_specific(columns: NodeColumns, _: Sought) -> Floats:
    """The node that was named, and no other; the target, if none was."""
    return np.zeros(len(columns))
