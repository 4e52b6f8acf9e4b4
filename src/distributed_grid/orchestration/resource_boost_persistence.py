"""Boost state on disk, for those who want to read it from Python."""

from distributed_grid.sdk.sharing import ResourceBoostPersistence

__all__ = ["ResourceBoostPersistence"]
