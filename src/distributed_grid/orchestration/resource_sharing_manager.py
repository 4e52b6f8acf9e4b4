"""Sharing from Python: requests that wait for their turn, what they hold, and by which policy."""

from distributed_grid.sdk.sharing import AllocationPriority, ResourceSharingManager, ResourceType, SharingPolicy

__all__ = ["AllocationPriority", "ResourceSharingManager", "ResourceType", "SharingPolicy"]
