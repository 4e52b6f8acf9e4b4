"""Scheduling from Python: where a task goes, how sure that is, and the place reserved for it."""

from distributed_grid.sdk.scheduler import (
    Affinity,
    Alternative,
    IntelligentScheduler,
    NodeColumns,
    PlacedBy,
    Placement,
    SchedulingDecision,
    SchedulingRequest,
    SchedulingStrategy,
    Sought,
    ray_options,
    register_strategy,
)

__all__ = [
    "Affinity",
    "Alternative",
    "IntelligentScheduler",
    "NodeColumns",
    "PlacedBy",
    "Placement",
    "SchedulingDecision",
    "SchedulingRequest",
    "SchedulingStrategy",
    "Sought",
    "ray_options",
    "register_strategy",
]
