"""The words of resource sharing: resource types, priorities and policies."""

from distributed_grid.config import SharingPolicy
from distributed_grid.model.priorities import AllocationPriority
from distributed_grid.orchestration.resource_types import ResourceType

__all__ = ["AllocationPriority", "ResourceType", "SharingPolicy"]
