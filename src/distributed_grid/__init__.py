"""Distributed Grid: lend and borrow capacity between the nodes of one live Ray cluster.

import distributed_grid as grid

async with grid.lease(cpus=4, target="gpu-master") as lease:

    @lease.remote
    def work(part): ...

Everything that programs import is here, and is loaded when it is first used; workloads of roles are in
`distributed_grid.roles`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from distributed_grid.errors import GridError
    from distributed_grid.model.series import ResourceTrend
    from distributed_grid.model.snapshots import NodeSnapshot
    from distributed_grid.monitoring.resource_metrics import ResourceMetricsCollector
    from distributed_grid.sdk.boosts import ReclaimNotice, ResourceBoost, ResourceBoostManager, ResourceBoostRequest
    from distributed_grid.sdk.executor import EnhancedOffloadingExecutor, OffloadingMode, OffloadingRecommendation
    from distributed_grid.sdk.program_lease import ProgramLease
    from distributed_grid.sdk.scheduler import (
        Affinity,
        IntelligentScheduler,
        SchedulingDecision,
        SchedulingRequest,
        SchedulingStrategy,
        register_strategy,
    )
    from distributed_grid.sdk.sharing import (
        AllocationPriority,
        ResourceBoostPersistence,
        ResourceSharingManager,
        ResourceSharingOrchestrator,
        ResourceType,
        SharingPolicy,
    )

__version__ = "0.1.0"
__all__ = [
    "Affinity",
    "AllocationPriority",
    "EnhancedOffloadingExecutor",
    "GridError",
    "IntelligentScheduler",
    "NodeSnapshot",
    "OffloadingMode",
    "OffloadingRecommendation",
    "ProgramLease",
    "ReclaimNotice",
    "ResourceBoost",
    "ResourceBoostManager",
    "ResourceBoostPersistence",
    "ResourceBoostRequest",
    "ResourceMetricsCollector",
    "ResourceSharingManager",
    "ResourceSharingOrchestrator",
    "ResourceTrend",
    "ResourceType",
    "SchedulingDecision",
    "SchedulingRequest",
    "SchedulingStrategy",
    "SharingPolicy",
    "__version__",
    "lease",
    "register_strategy",
]

_WHERE: Final = {
    "errors": ("GridError",),
    "model.series": ("ResourceTrend",),
    "model.snapshots": ("NodeSnapshot",),
    "monitoring.resource_metrics": ("ResourceMetricsCollector",),
    "sdk.boosts": ("ReclaimNotice", "ResourceBoost", "ResourceBoostManager", "ResourceBoostRequest"),
    "sdk.executor": ("EnhancedOffloadingExecutor", "OffloadingMode", "OffloadingRecommendation"),
    "sdk.program_lease": ("ProgramLease",),
    "sdk.scheduler": (
        "Affinity",
        "IntelligentScheduler",
        "SchedulingDecision",
        "SchedulingRequest",
        "SchedulingStrategy",
        "register_strategy",
    ),
    "sdk.sharing": (
        "AllocationPriority",
        "ResourceBoostPersistence",
        "ResourceSharingManager",
        "ResourceSharingOrchestrator",
        "ResourceType",
        "SharingPolicy",
    ),
}
_MODULES: Final = {name: module for module, names in _WHERE.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def lease(**wanted: Any) -> "ProgramLease":
    """Capacity for an `async with` block: cpus, gpus, memory (GB), target, source, priority, duration, wait."""
    from distributed_grid.sdk.program_lease import ProgramLease

    return ProgramLease(**wanted)
