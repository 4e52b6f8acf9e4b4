"""The lease that this process runs in: its group, its node and its resources."""

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
        self.forget()

    def forget(self) -> None:
        """A new connection begins."""
        self._handle: PlacementGroup | None = None
        self._place: Place | None = None
        self._seen: dict[str, Any] | None = None

    @property
    def handle(self) -> PlacementGroup:
        """One shared handle: it caches its bundles, which Ray would ask for at every submission."""
        if self._handle is None:
            self._handle = PlacementGroup(self.group_id, list(self.seen().get("bundles", {}).values()))
        return self._handle

    @property
    def stands(self) -> bool:
        return bool(self.seen().get("state", "REMOVED") != "REMOVED")

    @property
    def amounts(self) -> dict[str, float]:
        return dict(self.seen().get("bundles", {}).get(0, {})) or self._amounts

    @property
    def place(self) -> Place:
        if self._place is None:
            node_id = self.seen().get("bundles_to_node_id", {}).get(0, "") or self._node_id
            node: dict[str, Any] = next((node for node in ray.nodes() if node["NodeID"] == node_id), {})
            self._place = Place(
                node_id,
                dict(node.get("Labels", {})),
                frozenset(node.get("Resources", ())),
                without_memory=bool(self.amounts) and "memory" not in self.amounts,
            )
        return self._place

    def seen(self) -> dict[str, Any]:
        """The group as Ray shows it; empty if this cluster does not have it."""
        if self._seen is None:
            self._seen = dict(ray._private.state.state.placement_group_table(self.group_id))
        return self._seen


def _amounts(text: str) -> dict[str, float]:
    try:
        return {str(name): float(amount) for name, amount in json.loads(text).items()} if text else {}
    except (ValueError, TypeError, AttributeError):
        return {}
