"""Configuration: found, read with the place of every value, normalised and checked."""

from distributed_grid.config.finding import ConfigSource, find_config, packaged_config
from distributed_grid.config.loader import (
    ConfigLike,
    LoadedConfig,
    effective,
    effective_in_controller,
    load_config,
    loaded_config,
)
from distributed_grid.config.models import CallerLimits, GridConfig, NodeConfig, NodeRole, NodeSharing, json_schema
from distributed_grid.config.sharing import (
    ForecasterChoice,
    GpuCompanions,
    GpuInUse,
    SharingConfig,
    TeamConfig,
    Thresholds,
)
from distributed_grid.model.leases import DeliveryChoice
from distributed_grid.model.policies import SharingMode, SharingPolicy

__all__ = [
    "CallerLimits",
    "ConfigLike",
    "ConfigSource",
    "DeliveryChoice",
    "ForecasterChoice",
    "GpuCompanions",
    "GpuInUse",
    "GridConfig",
    "LoadedConfig",
    "NodeConfig",
    "NodeRole",
    "NodeSharing",
    "SharingConfig",
    "SharingMode",
    "SharingPolicy",
    "TeamConfig",
    "Thresholds",
    "effective",
    "effective_in_controller",
    "find_config",
    "json_schema",
    "load_config",
    "loaded_config",
    "packaged_config",
]
