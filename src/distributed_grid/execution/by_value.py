"""The modules that travel to other nodes: nothing of grid is installed there, so they are sent by value.

Whoever sends something of them imports them from here.
"""

from ray import cloudpickle

from distributed_grid.execution import (
    on_node,
    on_node_function,
    on_node_kept,
    on_node_processes,
    on_node_raylet,
    on_node_runner,
)

__all__ = ["on_node", "on_node_function", "on_node_processes", "on_node_raylet", "on_node_runner"]

for _module in (on_node, on_node_function, on_node_kept, on_node_processes, on_node_raylet, on_node_runner):
    cloudpickle.register_pickle_by_value(_module)
