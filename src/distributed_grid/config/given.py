"""A configuration as Python callers give it: loaded, as a path, or not at all."""

from pathlib import Path
from typing import TypeAlias

from distributed_grid.config.finding import find_config
from distributed_grid.config.loader import load_config
from distributed_grid.config.models import GridConfig

ConfigLike: TypeAlias = GridConfig | str | Path | None


def loaded_config(config: ConfigLike) -> GridConfig:
    """None: the nodes are whichever the cluster has."""
    if config is None:
        return GridConfig.discovered()
    if isinstance(config, GridConfig):
        return config
    return load_config(find_config(config, {}, Path.cwd())).config
