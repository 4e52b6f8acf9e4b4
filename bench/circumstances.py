"""The circumstances of a measurement: what a reader needs to compare two runs."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import ray

import distributed_grid
from bench.effort import Effort
from bench.stage import CONFIG
from distributed_grid.cluster.processes import child_environment
from distributed_grid.config import load_config


def circumstances(effort: Effort, load_before: tuple[float, float, float]) -> dict[str, Any]:
    settings = child_environment({}, "")
    nodes = load_config(CONFIG).config.nodes
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "distributed_grid": distributed_grid.__version__,
            "commit": _commit(),
            "ray": ray.__version__,
            "python": platform.python_version(),
            "kernel": platform.release(),
        },
        "machine": {
            "cores": os.cpu_count(),
            "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
            "load_before": [round(load, 2) for load in load_before],
        },
        "cluster": {
            "config": CONFIG.name,
            "nodes": [{"name": node.name, "cpus": node.cpu_count, "gpus": node.gpu_count} for node in nodes],
            "ray_settings": {name: value for name, value in settings.items() if name.startswith("RAY_")},
        },
        "effort": {name: getattr(effort, name) for name in effort.__slots__},
    }


def _commit() -> str | None:
    """The measured commit, with `-dirty` if files have changed since; None outside a checkout."""
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip()
