"""The environment of a program in a lease: the user's own, and what lets Ray find its place."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from distributed_grid import capture
from distributed_grid.client import GridClient
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.work import RUN_MARK

_JOB_CONFIG: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""What Ray adds to the configuration of every job whose driver finds it."""


def captured(
    client: GridClient,
    boost: Mapping[str, Any],
    report: Path | None = None,
    *,
    run_id: str = "",
    allow_escapes: bool = False,
) -> dict[str, str]:
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
            "GRID_ALLOW_ESCAPES": "1" if allow_escapes else "0",
            "PYTHONPATH": path,
        }
        | ({_JOB_CONFIG: marked(os.environ.get(_JOB_CONFIG, ""), run_id)} if run_id else {})
    )


def private(boost: Mapping[str, Any], ray_address: str, auth_mode: str) -> dict[str, str]:
    """For a program with a Ray of its own."""
    return os.environ | {"RAY_ADDRESS": ray_address, "RAY_AUTH_MODE": auth_mode, "GRID_BOOST": boost["boost_id"]}


def marked(job_config: str, run_id: str) -> str:
    """The job configuration, and in it the run: so Ray knows every job of the run, also those without the hook."""
    try:
        config = dict(json.loads(job_config or "{}"))
    except (ValueError, TypeError):
        config = {}
    return json.dumps({**config, "metadata": {**(config.get("metadata") or {}), RUN_MARK: run_id}})


def _node_id(client: GridClient, name: str) -> str:
    """Empty if it has left the cluster: the hook then asks Ray."""
    nodes = client.nodes()["nodes"]
    return next((node["node_id"] for node in nodes if node["name"] == name and node["alive"]), "")
