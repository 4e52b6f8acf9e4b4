"""Scheduling from Python: where a task goes, how confident that is, and the place reserved for it."""

from distributed_grid.sdk import scheduler
from distributed_grid.sdk.scheduler import *  # noqa: F403 - the same names, under the documented path

__all__ = scheduler.__all__
