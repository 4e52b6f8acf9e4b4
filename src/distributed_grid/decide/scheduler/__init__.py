"""Placement of tasks: a table of nodes, what rules a node out, strategies, and the confidence in a placement."""

from distributed_grid.decide.scheduler.feasibility import BoostRoom, Sought
from distributed_grid.decide.scheduler.placing import Choice, choose, choose_gang
from distributed_grid.decide.scheduler.strategies import register_strategy, strategies
from distributed_grid.decide.scheduler.table import NodeColumns

__all__ = ["BoostRoom", "Choice", "NodeColumns", "Sought", "choose", "choose_gang", "register_strategy", "strategies"]
