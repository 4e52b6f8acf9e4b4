"""Whole workloads of actors, planned before they start.

`Workload`, `RoleSpec` and `Pool` describe a workload in Python; `load_workload` reads one from YAML. `plan_workload`
finds a place for every actor on an `Inventory`, or says what is missing. `LocalRun` runs a workload in this process,
without Ray.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from distributed_grid.decide.roles import plan_more, plan_workload, violations
from distributed_grid.model.roles.environment import DOCUMENTED_ALLOW, PROTECTED, EnvProfile
from distributed_grid.model.roles.plan import (
    DoesNotFit,
    Inventory,
    InventoryNode,
    Member,
    Missing,
    Placement,
    Reason,
    Remedy,
    RemedyKind,
    Unit,
    UnitKind,
)
from distributed_grid.model.roles.profiles import COLOCATED_CONCURRENCY, PROFILES, NexRLRole, from_profile
from distributed_grid.model.roles.scaling import (
    CallableSignal,
    MethodSignal,
    PrometheusSignal,
    QueueSignal,
    Scaling,
    Signal,
)
from distributed_grid.model.roles.spec import Arrangement, Colocation, FailurePolicy, NodeSelector, RoleSpec
from distributed_grid.model.roles.workload import Pool, Workload
from distributed_grid.roles.beginning import attach, launch
from distributed_grid.roles.calls.groups import RoleGroup
from distributed_grid.roles.calls.handles import MemberHandle
from distributed_grid.roles.local.run import LocalRun
from distributed_grid.roles.on_node.peers import Peers

if TYPE_CHECKING:
    from distributed_grid.config.roles_file import LoadedWorkload, load_workload
    from distributed_grid.roles.attaching import AttachedRun
    from distributed_grid.roles.ray_resource_manager import RayActorWrapper, RayResourceManager
    from distributed_grid.roles.run import Run

__all__ = [
    "COLOCATED_CONCURRENCY",
    "DOCUMENTED_ALLOW",
    "PROFILES",
    "PROTECTED",
    "Arrangement",
    "AttachedRun",
    "CallableSignal",
    "Colocation",
    "DoesNotFit",
    "EnvProfile",
    "FailurePolicy",
    "Inventory",
    "InventoryNode",
    "LoadedWorkload",
    "LocalRun",
    "Member",
    "MemberHandle",
    "MethodSignal",
    "Missing",
    "NexRLRole",
    "NodeSelector",
    "Peers",
    "Placement",
    "Pool",
    "PrometheusSignal",
    "QueueSignal",
    "RayActorWrapper",
    "RayResourceManager",
    "Reason",
    "Remedy",
    "RemedyKind",
    "RoleGroup",
    "RoleSpec",
    "Run",
    "Scaling",
    "Signal",
    "Unit",
    "UnitKind",
    "Workload",
    "attach",
    "from_profile",
    "launch",
    "load_workload",
    "plan_more",
    "plan_workload",
    "violations",
]

_LATER = {
    "AttachedRun": "distributed_grid.roles.attaching",
    "LoadedWorkload": "distributed_grid.config.roles_file",
    "RayActorWrapper": "distributed_grid.roles.ray_resource_manager",
    "RayResourceManager": "distributed_grid.roles.ray_resource_manager",
    "Run": "distributed_grid.roles.run",
    "load_workload": "distributed_grid.config.roles_file",
}
"""Imported on first use: local mode and planning need no Ray, and the processes of a run no YAML."""


def __getattr__(name: str) -> object:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
