"""The whole of resource sharing behind one class: a composition of the others, over one connection."""

from distributed_grid.sdk.sharing import ResourceSharingOrchestrator

__all__ = ["ResourceSharingOrchestrator"]
