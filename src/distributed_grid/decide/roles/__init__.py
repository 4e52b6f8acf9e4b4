"""Where the actors of a workload go, or why there is no room; and what is done when they fail.

Pure, and equal inputs give equal plans.
"""

from distributed_grid.decide.roles.checking import violations
from distributed_grid.decide.roles.failures import judge_failure, judge_failures
from distributed_grid.decide.roles.holdings import holdings
from distributed_grid.decide.roles.planner import plan_more, plan_workload

__all__ = ["holdings", "judge_failure", "judge_failures", "plan_more", "plan_workload", "violations"]
