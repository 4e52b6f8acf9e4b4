"""Boosts from Python: the same requests as `grid boost`, as awaitable calls."""

from distributed_grid.sdk.boosts import (
    IdleNotice,
    ReclaimNotice,
    ResourceBoost,
    ResourceBoostManager,
    ResourceBoostRequest,
)

__all__ = ["IdleNotice", "ReclaimNotice", "ResourceBoost", "ResourceBoostManager", "ResourceBoostRequest"]
