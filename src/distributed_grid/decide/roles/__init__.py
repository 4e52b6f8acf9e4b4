"""Decisions about workloads: where actors go, what is held for them, what follows a failure, how many there should be.

All of them are pure: equal inputs give equal plans.
"""

from distributed_grid.decide.roles.checks import violations
from distributed_grid.decide.roles.failures import judge_failure, judge_failures
from distributed_grid.decide.roles.planner import plan_more, plan_workload
from distributed_grid.decide.roles.scaling import NoReading, Scaled, ScalingState, follow_signal
from distributed_grid.decide.roles.units import holdings

__all__ = [
    "NoReading",
    "Scaled",
    "ScalingState",
    "follow_signal",
    "holdings",
    "judge_failure",
    "judge_failures",
    "plan_more",
    "plan_workload",
    "violations",
]
