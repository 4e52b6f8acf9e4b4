"""Boosts from Python: the same requests as `grid boost`, as awaitable calls."""

from distributed_grid.sdk.boosts import ReclaimNotice, ResourceBoost, ResourceBoostManager, ResourceBoostRequest

__all__ = ["ReclaimNotice", "ResourceBoost", "ResourceBoostManager", "ResourceBoostRequest"]
