"""Which cluster a set of boosts belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass

from distributed_grid.model.nodes import NodeName


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """A cluster by its configured names, since Ray's own session id changes with every restart."""

    name: str
    nodes: frozenset[NodeName]

    def same_cluster(self, other: "ClusterIdentity") -> bool:
        """Same name and at least one node in common: nodes come and go, but not all of them at once."""
        return self.name == other.name and not self.nodes.isdisjoint(other.nodes)


def encode_identity(identity: ClusterIdentity) -> dict[str, object]:
    return {"name": identity.name, "nodes": sorted(identity.nodes)}


def decode_identity(data: object) -> ClusterIdentity:
    """The reverse of `encode_identity`; a `ValueError` says what is wrong."""
    if not isinstance(data, Mapping):
        raise ValueError(f"the cluster must be an object, not {data!r}")
    name, nodes = data.get("name"), data.get("nodes")
    if not isinstance(name, str):
        raise ValueError(f"the cluster's name must be text, not {name!r}")
    if not isinstance(nodes, list) or not all(isinstance(node, str) for node in nodes):
        raise ValueError(f"the cluster's nodes must be a list of names, not {nodes!r}")
    return ClusterIdentity(name, frozenset(nodes))
