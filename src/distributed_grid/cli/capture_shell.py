"""A shell, or a command, whose Ray programs run inside a reserved boost."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distributed_grid import capture
from distributed_grid.client import GridClient
from distributed_grid.errors import InvalidRequest, NotReserved
from distributed_grid.model.resources import ResourceVector

Boost = Mapping[str, Any]


def run_inside(client: GridClient, boost: Boost, command: tuple[str, ...], say: Callable[[str], None]) -> int:
    """Run it in the user's terminal, folder and environment; its exit code."""
    ray_address = client.ray_address()
    if boost["placement_group"] is None or boost["state"] != "active":
        raise NotReserved(
            f"Boost {boost['boost_id'][:8]} is {boost['state']}, by {boost['delivery']}: nothing to run inside of",
            because=[f"its capacity is on {boost['target_node']} itself, where every Ray program sees it"]
            if boost["delivery"] == "transfer"
            else [],
            try_next=f"Run the program as it is, with RAY_ADDRESS={ray_address}",
        )
    inside = command or (os.environ.get("SHELL", "/bin/sh"),)
    if not command:
        say(f"Ray programs in this shell run on {boost['source_node']}, in boost {boost['boost_id'][:8]}. exit leaves.")
    try:
        return subprocess.run(inside, env=environment(client, boost), check=False).returncode
    except FileNotFoundError:
        raise InvalidRequest(f"There is no command {inside[0]!r}") from None
    except PermissionError:
        raise InvalidRequest(f"{inside[0]!r} cannot be executed", try_next=f"python {inside[0]}") from None


def environment(client: GridClient, boost: Boost) -> dict[str, str]:
    """The caller's environment, with what the hook needs that Python finds on its path."""
    hook = str(Path(capture.__file__).parent)
    path = os.pathsep.join(part for part in (hook, os.environ.get("PYTHONPATH", "")) if part)
    return os.environ | {
        "RAY_ADDRESS": client.ray_address(),
        "GRID_BOOST": boost["boost_id"],
        "GRID_PLACEMENT_GROUP": boost["placement_group"],
        "GRID_LEASE_NODE": _node_id(client, boost["source_node"]),
        "GRID_LEASE_RESOURCES": json.dumps(ResourceVector.of(**boost["resources"]).to_ray()),
        "PYTHONPATH": path,
    }


def _node_id(client: GridClient, name: str) -> str:
    """Empty if it has left the cluster: the hook then asks Ray."""
    nodes = client.cluster_status()["nodes"]
    return next((node["node_id"] for node in nodes if node["name"] == name and node["alive"]), "")
