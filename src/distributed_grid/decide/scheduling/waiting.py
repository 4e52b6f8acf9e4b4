"""Who waits for a place must have one in the end: what small tasks leave free for a moment is not enough."""

import numpy as np

from distributed_grid.decide.scheduling.feasibility import feasible
from distributed_grid.decide.scheduling.sought import Sought
from distributed_grid.decide.scheduling.table import NodeColumns, Units
from distributed_grid.model.nodes import NodeName


def kept_for(sought: Sought) -> set[NodeName]:
    """The nodes that those behind leave alone, so that the task's place can become free there.

    As many as it has members: those that lack the least of what would carry it if they were idle.
    """
    columns = sought.columns
    idle = Sought(sought.request, sought.needs, sought.target, _Idle(columns), peers=sought.peers, not_on=sought.not_on)
    rows = np.flatnonzero(feasible(idle))
    lacking = np.zeros(len(columns))
    for kind, units in sought.needs.items():
        lacking = np.maximum(lacking, (units - sought.rooms[kind]) / units)
    order = sorted(rows.tolist(), key=lambda row: (lacking[row], row))
    return {columns.names[row] for row in order[: sought.request.count]}


class _Idle(NodeColumns):
    """The same nodes as if nothing ran on them."""

    def __init__(self, columns: NodeColumns) -> None:
        self.__dict__.update(columns.__dict__)

    def rooms(self, kind: str, target: int) -> Units:
        total = self.total.get(kind)
        return np.zeros(len(self), dtype=np.int64) if total is None else total.copy()
