"""The lease that this process runs in: its group, its bundles and their nodes."""

import json
from collections.abc import Mapping
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup

from .strategies import Place


class Lease:
    """Ray's report of the lease, read once per connection; where Ray reports nothing, the environment."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.group_hex = environ["GRID_PLACEMENT_GROUP"]
        self.group_id = ray.PlacementGroupID(bytes.fromhex(self.group_hex))
        self._node_id = environ.get("GRID_LEASE_NODE", "")
        self._amounts = _amounts(environ.get("GRID_LEASE_RESOURCES", ""))
        self._most = _amounts(environ.get("GRID_LEASE_MOST", ""))
        """What a lease that reserves nothing may grow to. Work in any other fits into its bundles at any time."""
        self.forget()

    def forget(self) -> None:
        """A new connection begins."""
        self._handle: PlacementGroup | None = None
        self._places: tuple[Place, ...] | None = None
        self._seen: dict[str, Any] | None = None

    def look_again(self) -> None:
        """Read again which bundles have a node: a lease of several nodes loses the bundle of a node that is gone."""
        if len(self.places) > 1:
            self._places = self._seen = None

    @property
    def handle(self) -> PlacementGroup:
        """One shared handle: it caches its bundles, which Ray would ask for at every submission."""
        if self._handle is None:
            # Ray refuses at once what is larger than every bundle of a group.
            bundles = [bundle | self._most for bundle in self.seen().get("bundles", {}).values()]
            self._handle = PlacementGroup(self.group_id, bundles)
        return self._handle

    @property
    def stands(self) -> bool:
        return bool(self.seen().get("state", "REMOVED") != "REMOVED")

    @property
    def places(self) -> tuple[Place, ...]:
        """Its bundles that have a node; at least one."""
        if self._places is None:
            bundles = self.seen().get("bundles", {})
            node_ids = self.seen().get("bundles_to_node_id", {})
            found = [(index, node_ids[index], dict(bundles[index])) for index in bundles if node_ids.get(index)]
            nodes = {node["NodeID"]: node for node in ray.nodes()}
            self._places = tuple(
                _place(nodes.get(node_id, {}), node_id, index, amounts or self._amounts)
                for index, node_id, amounts in found or [(0, self._node_id, dict(bundles.get(0, {})))]
            )
        return self._places

    def seen(self) -> dict[str, Any]:
        """The group as Ray shows it; empty if this cluster does not have it."""
        if self._seen is None:
            self._seen = dict(ray._private.state.state.placement_group_table(self.group_id))
        return self._seen


def _place(node: dict[str, Any], node_id: str, index: int, amounts: dict[str, float]) -> Place:
    return Place(node_id, dict(node.get("Labels", {})), frozenset(node.get("Resources", ())), amounts, index)


def _amounts(text: str) -> dict[str, float]:
    try:
        return {str(name): float(amount) for name, amount in json.loads(text).items()} if text else {}
    except (ValueError, TypeError, AttributeError):
        return {}
