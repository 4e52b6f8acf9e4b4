"""Whose process is it where several nodes share a machine."""

from distributed_grid.model.nodes import NodeName, NodeTable


def speakers(nodes: NodeTable) -> frozenset[NodeName]:
    """For every machine one node: what runs there and not below any raylet counts as that node's.

    It is the head where the head is one of them, otherwise the first by name. So on an embedded cluster, whose nodes
    are all on one machine, what people run beside Ray is the head's; each other node has what its own raylet started.
    """
    found: dict[tuple[str, str], NodeName] = {}
    for node in sorted(nodes.alive, key=lambda one: (not one.is_head, one.name)):
        found.setdefault((node.host, node.ip), node.name)
    return frozenset(found.values())
