"""The environment of a program in a lease: the user's own, and what lets Ray find its place."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distributed_grid import capture
from distributed_grid.client import GridClient
from distributed_grid.model.resources import ResourceVector


def captured(client: GridClient, boost: Mapping[str, Any], report: Path | None = None) -> dict[str, str]:
    """For a program whose Ray work is captured by the lease's placement group: Python finds the hook on its path."""
    hook = str(Path(capture.__file__).parent)
    path = os.pathsep.join(part for part in (hook, os.environ.get("PYTHONPATH", "")) if part)
    told = {} if report is None else {"GRID_RUN_REPORT": str(report)}
    return (
        os.environ
        | told
        | {
            "RAY_ADDRESS": client.ray_address(),
            "GRID_BOOST": boost["boost_id"],
            "GRID_PLACEMENT_GROUP": boost["placement_group"],
            "GRID_LEASE_NODE": _node_id(client, boost["source_node"]),
            "GRID_LEASE_RESOURCES": json.dumps(ResourceVector.of(**boost["resources"]).to_ray()),
            "GRID_CAPTURE_WORKERS": os.environ.get("GRID_CAPTURE_WORKERS", "1"),
            "PYTHONPATH": path,
        }
    )


def private(boost: Mapping[str, Any], ray_address: str, auth_mode: str) -> dict[str, str]:
    """For a program with a Ray of its own."""
    return os.environ | {"RAY_ADDRESS": ray_address, "RAY_AUTH_MODE": auth_mode, "GRID_BOOST": boost["boost_id"]}


def _node_id(client: GridClient, name: str) -> str:
    """Empty if it has left the cluster: the hook then asks Ray."""
    nodes = client.nodes()["nodes"]
    return next((node["node_id"] for node in nodes if node["name"] == name and node["alive"]), "")
