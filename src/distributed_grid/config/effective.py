"""The settings in force, each with where it came from: what `grid config show` shows."""

from collections.abc import Mapping
from typing import Any

from distributed_grid.config.entries import dotted, leaves
from distributed_grid.config.loader import LoadedConfig


def effective_in_controller(running: Mapping[str, Any]) -> dict[str, Any]:
    """The same for what a controller says it runs: where in the file a value stood is known no more."""
    return {
        "source": running["source"],
        "named_by": "the running controller",
        "values": {
            dotted(steps): {"value": value, "from": running["source"]} for steps, value in leaves(running["config"])
        },
    }


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
