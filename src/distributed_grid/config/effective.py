"""The settings in force, each with where it came from: what `grid config show` shows."""

from typing import Any

from distributed_grid.config.entries import dotted, leaves
from distributed_grid.config.loader import LoadedConfig


def effective(loaded: LoadedConfig) -> dict[str, Any]:
    """`{"source": file, "values": {path: {"value": ..., "from": "file:line:column" | "default"}}}`."""
    return {
        "source": str(loaded.source),
        "named_by": loaded.source.origin,
        "values": {
            dotted(steps): {"value": value, "from": loaded.origins.get(dotted(steps), "default")}
            for steps, value in leaves(loaded.config.to_dict())
        },
    }
