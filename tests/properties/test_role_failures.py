"""What is done about any failure in any workload: the spec's limits hold, and stricter specs are never laxer."""

from builders import failure, workload
from hypothesis import assume, given
from hypothesis import strategies as st

from distributed_grid.decide.roles import judge_failure, judge_failures
from distributed_grid.decide.roles.failures import STRICTEST_FIRST
from distributed_grid.model.roles.runs import Act, Failure
from distributed_grid.model.roles.spec import FailurePolicy, RoleSpec
from distributed_grid.model.roles.workload import Workload

HARDEST_FIRST = (Act.END, Act.RESTART_GANG, Act.RESTART, Act.GO_ON)
LIMITS = {
    "failure_policy": st.sampled_from(FailurePolicy),
    "max_restarts": st.integers(-1, 4),
    "failure_budget": st.none() | st.integers(0, 6),
}


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Up to three roles in one process, or in one bundle, and one beside them."""
    shared = {"colocation_group": "g", "colocation": draw(st.sampled_from(["process", "bundle"])), "count": 4}
    group = [
        RoleSpec(f"r{number}", **shared, **{name: draw(values) for name, values in LIMITS.items()})
        for number in range(draw(st.integers(1, 3)))
    ]
    return workload(*group, RoleSpec("other"))


@st.composite
def failures(draw: st.DrawFn) -> Failure:
    had = {f"r{number}": draw(st.integers(1, 8)) for number in range(3)}
    return failure(
        "r0", draw(st.integers(0, 3)), restarts=draw(st.integers(0, 6)), left=draw(st.integers(0, 3)), failures=had
    )


def hosted(load: Workload) -> tuple[RoleSpec, ...]:
    """What fails with r0."""
    return load.together[0] if load.roles[0].colocation == "process" else load.roles[:1]


@given(workloads(), failures())
def test_the_limits_of_every_role_that_failed_hold(load: Workload, died: Failure) -> None:
    found = judge_failure(died, load)

    assert found.reason.startswith("+".join(role.name for role in hosted(load)))
    if found.act is Act.END:
        return
    for role in hosted(load):
        assert role.failure_policy != FailurePolicy.FAIL
        assert role.failure_budget is None or died.failures[role.name] <= role.failure_budget
        if role.failure_policy in (FailurePolicy.RESTART, FailurePolicy.RESTART_GANG):
            assert role.max_restarts == -1 or died.restarts < role.max_restarts
    if found.act is Act.GO_ON:
        policies = {role.failure_policy for role in hosted(load)}
        assert policies <= {FailurePolicy.CONTINUE_WITH_HEALTHY, FailurePolicy.CONTINUE}
        assert died.left or policies == {FailurePolicy.CONTINUE}


@given(workloads(), failures(), st.sampled_from(FailurePolicy))
def test_a_stricter_policy_is_never_followed_less_strictly(load: Workload, died: Failure, other: FailurePolicy) -> None:
    """But for who is left: that is asked only where no member is restarted."""
    first = load.roles[0]
    changed = RoleSpec(
        first.name,
        count=4,
        colocation_group="g",
        colocation=first.colocation,
        failure_policy=other,
        max_restarts=first.max_restarts,
        failure_budget=first.failure_budget,
    )
    died = failure(died.role, died.index, restarts=died.restarts, failures=died.failures, left=max(1, died.left))
    policies = sorted([FailurePolicy(first.failure_policy), other], key=STRICTEST_FIRST.index)
    strict, lax = (
        judge_failure(died, workload(changed if other is policy else first, *load.roles[1:])) for policy in policies
    )

    assert HARDEST_FIRST.index(strict.act) <= HARDEST_FIRST.index(lax.act)


@given(workloads(), failures())
def test_one_restart_more_never_makes_it_milder(load: Workload, died: Failure) -> None:
    later = failure(died.role, died.index, restarts=died.restarts + 1, failures=died.failures, left=died.left)

    assume(judge_failure(died, load).act is Act.END)
    assert judge_failure(later, load).act is Act.END


@given(workloads(), st.lists(failures(), max_size=4))
def test_of_several_at_once_each_is_done_with_once(load: Workload, died: list[Failure]) -> None:
    found = judge_failures(died, load)

    alone = [judge_failure(one, load) for one in died]
    if any(one.act is Act.END for one in alone):
        assert [one.act for one in found] == [Act.END]
    else:
        touched = [(role, one.index) for one in found if one.act is not Act.RESTART_GANG for role in one.roles]
        gangs = [role for one in found if one.act is Act.RESTART_GANG for role in one.roles]
        assert len({*touched}) == len(touched) and len({*gangs}) == len(gangs)
        assert not {role for role, _ in touched} & {*gangs}
        assert {role for one in alone for role in one.roles} <= {*gangs} | {role for role, _ in touched}
