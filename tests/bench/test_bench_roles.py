"""The workloads whose planning is measured are what they are said to be."""

from dataclasses import replace

from bench.effort import QUICK
from bench.roles import inventory, many_roles, run, scaling, workload
from distributed_grid.decide.roles import plan_workload, violations
from distributed_grid.model.roles.plan import DoesNotFit, Placement


def test_the_measured_workloads_fit_or_not_as_said() -> None:
    there = inventory(100)

    for load in (workload(1000), many_roles(1000), scaling(1000)):
        found = plan_workload(load, there)
        assert isinstance(found, Placement) and violations(found, load, there) == []
    assert isinstance(plan_workload(workload(1000, cpus=8), there), DoesNotFit)


def test_all_that_is_promised_is_measured() -> None:
    found = run(None, replace(QUICK, sizes=(10, 30)))

    assert len(found.lines) == 4 and all(line.limits.below == 2000.0 for line in found.lines)
