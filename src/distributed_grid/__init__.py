"""Distributed Grid: lend and borrow capacity between the nodes of one live Ray cluster.

import distributed_grid as grid

async with grid.lease(cpus=4, target="gpu-master") as lease:

    @lease.remote
    def work(part): ...

Everything that programs import is here, and is loaded when it is first used; workloads of roles are in
`distributed_grid.roles`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from distributed_grid.config import find_config as find_config
    from distributed_grid.config import load_config as load_config
    from distributed_grid.errors import GridError as GridError
    from distributed_grid.model.series import ResourceTrend as ResourceTrend
    from distributed_grid.model.snapshots import NodeSnapshot as NodeSnapshot
    from distributed_grid.monitoring.resource_metrics import ResourceMetricsCollector as ResourceMetricsCollector
    from distributed_grid.sdk.boosts import *  # noqa: F403 - the names below: a test compares them
    from distributed_grid.sdk.executor import *  # noqa: F403
    from distributed_grid.sdk.program_lease import *  # noqa: F403
    from distributed_grid.sdk.scheduler import *  # noqa: F403
    from distributed_grid.sdk.sharing import *  # noqa: F403

__version__ = "0.1.0"

_WHERE: Final = {
    "config": ("find_config", "load_config"),
    "errors": ("GridError",),
    "model.series": ("ResourceTrend",),
    "model.snapshots": ("NodeSnapshot",),
    "monitoring.resource_metrics": ("ResourceMetricsCollector",),
    "sdk.boosts": ("IdleNotice", "ReclaimNotice", "ResourceBoost", "ResourceBoostManager", "ResourceBoostRequest"),
    "sdk.executor": ("EnhancedOffloadingExecutor", "OffloadingMode", "OffloadingRecommendation"),
    "sdk.program_lease": ("ProgramLease", "lease"),
    "sdk.scheduler": (
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
_MODULE_OF: Final = {name: module for module, names in _WHERE.items() for name in names}
__all__ = ["__version__", *_MODULE_OF]

if not TYPE_CHECKING:  # type checkers would take any name for one that is here

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
