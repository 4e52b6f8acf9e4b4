"""Which node gets a task: a table of nodes, what is in the way, strategies, and how sure a place is."""

from distributed_grid.decide.scheduling.placing import Choice, choose, choose_gang
from distributed_grid.decide.scheduling.sought import BoostRoom, Sought
from distributed_grid.decide.scheduling.strategies import register_strategy, strategies
from distributed_grid.decide.scheduling.table import NodeColumns

__all__ = [
    "BoostRoom",
    "Choice",
    "NodeColumns",
    "Sought",
    "choose",
    "choose_gang",
    "register_strategy",
    "strategies",
]
