"""Running functions and commands where the scheduler says: kept on their node, or offloaded to another."""

from distributed_grid.sdk.executor import EnhancedOffloadingExecutor, OffloadingMode, OffloadingRecommendation

__all__ = ["EnhancedOffloadingExecutor", "OffloadingMode", "OffloadingRecommendation"]
