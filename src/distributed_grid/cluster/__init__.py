"""Starting and stopping clusters. Nothing here imports ray: it runs Ray's own commands."""

from distributed_grid.cluster.local import running, start, stop
from distributed_grid.cluster.nodes import NodeSpec
from distributed_grid.cluster.record import ClusterRecord, NodeProcess

__all__ = ["ClusterRecord", "NodeProcess", "NodeSpec", "running", "start", "stop"]
