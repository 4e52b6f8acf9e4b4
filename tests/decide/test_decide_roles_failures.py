"""What is done when an actor of a run fails, and how that is told."""

from typing import Any

import pytest
from builders import failure, workload

from distributed_grid.decide.roles import judge_failure, judge_failures
from distributed_grid.decide.roles.failures import restart_at
from distributed_grid.model.roles.runs import Act, Failure, Verdict
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.roles.workload import Workload

ONCE_MORE = {"failure_policy": "restart"}
GANG = {"failure_policy": "restart_gang"}
WITHOUT = {"failure_policy": "continue_with_healthy"}
FAIL = {"failure_policy": "fail"}


def judged(died: Failure, **role: Any) -> Verdict:
    return judge_failure(died, workload(RoleSpec("worker", count=4, **role), RoleSpec("other")))


@pytest.mark.parametrize(
    ("role", "died", "act", "reason"),
    [
        (ONCE_MORE, failure(), Act.RESTART, "worker 0 died; it restarts (restart 1 of 3)"),
        (
            ONCE_MORE,
            failure(index=3, node="cpu1", why="killed by signal 9"),
            Act.RESTART,
            "worker 3 died on cpu1: killed by signal 9; it restarts (restart 1 of 3)",
        ),
        (ONCE_MORE, failure(restarts=2), Act.RESTART, "worker 0 died; it restarts (restart 3 of 3)"),
        (ONCE_MORE, failure(restarts=3), Act.END, "worker 0 died for the 4th time, and its max_restarts is 3"),
        (
            ONCE_MORE,
            failure(restarts=3, node="cpu1", why="out of memory"),
            Act.END,
            "worker 0 died for the 4th time, and its max_restarts is 3 (cpu1: out of memory)",
        ),
        (
            ONCE_MORE | {"max_restarts": 1},
            failure(restarts=1, what="was silent"),
            Act.END,
            "worker 0 was silent for the 2nd time, and its max_restarts is 1",
        ),
        (ONCE_MORE | {"max_restarts": 0}, failure(), Act.END, "worker 0 died and may not be restarted"),
        (ONCE_MORE | {"max_restarts": -1}, failure(restarts=900), Act.RESTART, "worker 0 died; it restarts"),
        (GANG, failure(index=1), Act.RESTART_GANG, "worker 1 died; all of worker restart (restart 1 of 3)"),
        (
            GANG | {"max_restarts": 2},
            failure(restarts=2),
            Act.END,
            "worker 0 died after its gang was restarted twice, the maximum",
        ),
        (WITHOUT, failure(left=2), Act.GO_ON, "worker 0 died; the run continues with 2 of worker"),
        (WITHOUT, failure(left=0), Act.END, "worker 0 died, and no member of worker is left"),
        (WITHOUT | {"max_restarts": 0}, failure(), Act.GO_ON, "worker 0 died; the run continues with 3 of worker"),
        (FAIL, failure(), Act.END, "worker 0 died, and worker allows no failures"),
    ],
)
def test_each_policy_has_its_act_and_says_why(role: dict[str, Any], died: Failure, act: Act, reason: str) -> None:
    found = judged(died, **role)

    assert (found.act, found.reason) == (act, reason)


@pytest.mark.parametrize("policy", [ONCE_MORE, GANG, WITHOUT])
def test_one_failure_more_than_the_budget_ends_the_workload_whatever_the_policy(policy: dict[str, Any]) -> None:
    inside = judged(failure(failures={"worker": 5}), failure_budget=5, **policy)
    beyond = judged(failure(failures={"worker": 6}), failure_budget=5, **policy)

    assert inside.act is not Act.END
    assert beyond.act is Act.END
    assert beyond.reason == "worker 0 died: the 6th failure of worker, and its budget is 5"


def test_a_budget_of_nothing_allows_no_failure() -> None:
    assert judged(failure(), failure_budget=0).reason == "worker 0 died: the 1st failure of worker, and its budget is 0"


def test_a_verdict_names_whom_it_is_about() -> None:
    assert judged(failure(index=2)).roles == ("worker",)
    assert judged(failure(index=2)).index == 2
    assert judged(failure(), **GANG).roles == ("worker",)
    assert judged(failure(), **FAIL).roles == ("worker", "other")


# -- colocated roles -----------------------------------------------------------------------------------------


def together(a: dict[str, Any], b: dict[str, Any], colocation: str = "process") -> Workload:
    group = {"colocation_group": "g", "colocation": colocation, "count": 4}
    return workload(RoleSpec("a", **group, **a), RoleSpec("b", **group, **b), RoleSpec("c"))


@pytest.mark.parametrize(
    ("a", "b", "act"),
    [
        (WITHOUT, ONCE_MORE, Act.RESTART),
        (ONCE_MORE, GANG, Act.RESTART_GANG),
        (WITHOUT, GANG, Act.RESTART_GANG),
        (GANG, FAIL, Act.END),
        (WITHOUT, FAIL, Act.END),
        (WITHOUT, WITHOUT, Act.GO_ON),
    ],
)
@pytest.mark.parametrize("role", ["a", "b"])
def test_of_roles_in_one_process_the_strictest_policy_wins(
    a: dict[str, Any], b: dict[str, Any], act: Act, role: str
) -> None:
    assert judge_failure(failure(role), together(a, b)).act is act
    assert judge_failure(failure(role), together(b, a)).act is act


def test_a_process_is_named_by_all_its_roles_and_restarted_with_them() -> None:
    found = judge_failure(failure("b", 2), together(ONCE_MORE, ONCE_MORE))

    assert found == Verdict(Act.RESTART, ("a", "b"), 2, "a+b 2 died; it restarts (restart 1 of 3)")


def test_of_roles_in_one_process_the_budget_of_each_counts() -> None:
    load = together(ONCE_MORE, ONCE_MORE | {"failure_budget": 1})

    found = judge_failure(failure("a", failures={"a": 2, "b": 2}), load)

    assert found.reason == "a+b 0 died: the 2nd failure of b, and its budget is 1"


def test_of_roles_in_one_process_the_one_that_may_be_restarted_least_counts() -> None:
    load = together(ONCE_MORE | {"max_restarts": -1}, ONCE_MORE | {"max_restarts": 1})

    assert judge_failure(failure("a", restarts=1), load).act is Act.END


def test_a_role_that_goes_on_without_its_members_does_not_limit_the_restarts_of_others() -> None:
    load = together(ONCE_MORE, WITHOUT | {"max_restarts": 0})

    assert judge_failure(failure("a"), load).act is Act.RESTART


def test_in_a_bundle_each_process_fails_for_itself() -> None:
    load = together(ONCE_MORE, FAIL, "bundle")

    assert judge_failure(failure("a"), load) == Verdict(
        Act.RESTART, ("a",), 0, "a 0 died; it restarts (restart 1 of 3)"
    )
    assert judge_failure(failure("b"), load).act is Act.END


def test_a_gang_has_all_of_its_colocation_group() -> None:
    assert judge_failure(failure("a"), together(GANG, ONCE_MORE, "bundle")).roles == ("a", "b")


# -- several at once -----------------------------------------------------------------------------------------


def test_a_gang_that_loses_several_members_at_once_is_restarted_once() -> None:
    load = workload(RoleSpec("worker", count=4, **GANG), RoleSpec("loader"))

    found = judge_failures([failure(index=0), failure(index=1), failure("loader")], load)

    assert [(one.act, one.roles) for one in found] == [(Act.RESTART_GANG, ("worker",)), (Act.RESTART, ("loader",))]


def test_what_a_gang_restarts_is_not_restarted_a_second_time() -> None:
    load = together(GANG, ONCE_MORE, "bundle")

    found = judge_failures([failure("b", 1), failure("a", 1)], load)

    assert [one.act for one in found] == [Act.RESTART_GANG]


def test_a_process_that_is_told_of_by_each_of_its_roles_is_restarted_once() -> None:
    found = judge_failures([failure("a", 1), failure("b", 1), failure("a", 2)], together(ONCE_MORE, ONCE_MORE))

    assert [one.index for one in found] == [1, 2]


def test_if_one_failure_ends_the_workload_nothing_else_is_done() -> None:
    load = workload(RoleSpec("worker", count=4), RoleSpec("trainer", **FAIL))

    found = judge_failures([failure(), failure("trainer"), failure(index=1)], load)

    assert [(one.act, one.reason) for one in found] == [(Act.END, "trainer 0 died, and trainer allows no failures")]


def test_nothing_failed_nothing_is_done() -> None:
    assert judge_failures([], workload(RoleSpec("worker"))) == ()


def test_the_first_restart_is_at_once_and_each_other_after_a_pause_twice_as_long_up_to_ten_seconds() -> None:
    pauses = [restart_at(nth, began=99.0, now=100.0) - 100.0 for nth in range(1, 8)]

    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert restart_at(10**6, began=99.0, now=100.0) == 110.0


def test_an_actor_that_lived_long_is_restarted_at_once_however_often_it_was() -> None:
    assert restart_at(9, began=40.0, now=100.0) == 100.0
