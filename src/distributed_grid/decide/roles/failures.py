"""The verdict on failed actors of a run.

The actor restarts, alone or with its gang; the run continues without it; or the run ends. If a process hosts several
roles, all of them fail with it. The strictest of their policies applies, and each role's budget is charged.
"""

from collections.abc import Iterable
from typing import Final

from distributed_grid.model.roles.runs import Act, Failure, Verdict
from distributed_grid.model.roles.spec import FOR_EVER, Colocation, FailurePolicy, RoleSpec
from distributed_grid.model.roles.workload import Workload

STRICTEST_FIRST: Final = (
    FailurePolicy.FAIL,
    FailurePolicy.RESTART_GANG,
    FailurePolicy.RESTART,
    FailurePolicy.CONTINUE_WITH_HEALTHY,
    FailurePolicy.CONTINUE,
)
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 10.0
_LIVED_LONG_S: Final = 60.0
"""An actor that lived this long is not in a crash loop."""
_RESTARTS: Final = (FailurePolicy.RESTART_GANG, FailurePolicy.RESTART)


def judge_failures(failures: Iterable[Failure], workload: Workload) -> tuple[Verdict, ...]:
    """The verdicts on actors that failed at the same time, for example because their node died.

    Each failure is judged by the state before all of them, so a gang that lost several members restarts once. If one
    failure ends the workload, nothing else is done.
    """
    verdicts = [judge_failure(failure, workload) for failure in failures]
    if ends := [one for one in verdicts if one.act is Act.END]:
        return (ends[0],)
    gangs: dict[tuple[str, ...], Verdict] = {}
    for one in verdicts:
        if one.act is Act.RESTART_GANG:
            gangs.setdefault(one.roles, one)
    anew = {role for roles in gangs for role in roles}
    # Members of a process fail as one, even if a failure was reported for each of its roles.
    alone = {(one.roles, one.index): one for one in verdicts if not anew & {*one.roles}}
    return (*gangs.values(), *alone.values())


def judge_failure(failure: Failure, workload: Workload) -> Verdict:
    """The verdict on one failed actor."""
    group = next(group for group in workload.together if failure.role in [role.name for role in group])
    process = group[0].colocation_group is not None and group[0].colocation == Colocation.PROCESS
    hosted = group if process else tuple(role for role in group if role.name == failure.role)
    who = f"{'+'.join(role.name for role in hosted)} {failure.index}"
    policy = min((FailurePolicy(role.failure_policy) for role in hosted), key=STRICTEST_FIRST.index)
    if why := _why_it_ends(failure, hosted, policy, who):
        all_roles = tuple(role.name for role in workload.roles)
        return Verdict(Act.END, all_roles, failure.index, f"{why}{_last_words(failure)}")
    if policy is FailurePolicy.RESTART_GANG:
        names = tuple(role.name for role in group)
        then = f"all of {'+'.join(names)} restart{_nth_restart(failure, hosted)}"
        return Verdict(Act.RESTART_GANG, names, failure.index, f"{_what_failed(failure, who)}; {then}")
    names = tuple(role.name for role in hosted)
    if policy is FailurePolicy.RESTART:
        message = f"{_what_failed(failure, who)}; it restarts{_nth_restart(failure, hosted)}"
        return Verdict(Act.RESTART, names, failure.index, message)
    message = f"{_what_failed(failure, who)}; the run continues with {failure.left or 'none'} of {hosted[0].name}"
    return Verdict(Act.GO_ON, names, failure.index, message)


def restart_at(nth: int, *, began: float, now: float) -> float:
    """When the nth restart may begin, for an actor that started at `began` and failed `now`.

    The first restart is immediate. Each later one waits twice as long as the one before, to slow down a crash loop.
    """
    if nth <= 1 or now - began >= _LIVED_LONG_S:
        return now
    return now + min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(nth - 2, 10))


def _why_it_ends(failure: Failure, hosted: tuple[RoleSpec, ...], policy: FailurePolicy, who: str) -> str:
    """Why the workload ends; empty if it continues."""
    for role in hosted:
        if role.failure_policy == FailurePolicy.FAIL:
            return f"{who} {failure.what}, and {role.name} allows no failures"
    for role in hosted:
        had = failure.failures.get(role.name, 1)
        if role.failure_budget is not None and had > role.failure_budget:
            return (
                f"{who} {failure.what}: the {_nth(had)} failure of {role.name}, and its budget is {role.failure_budget}"
            )
    if policy is FailurePolicy.CONTINUE:
        return ""
    if policy is FailurePolicy.CONTINUE_WITH_HEALTHY:
        return "" if failure.left > 0 else f"{who} {failure.what}, and no member of {hosted[0].name} is left"
    may = _may_restart(hosted)
    if may is None or failure.restarts < may:
        return ""
    if not may:
        return f"{who} {failure.what} and may not be restarted"
    if policy is FailurePolicy.RESTART_GANG:
        return f"{who} {failure.what} after its gang was restarted {_times(failure.restarts)}, the maximum"
    return f"{who} {failure.what} for the {_nth(failure.restarts + 1)} time, and its max_restarts is {may}"


def _may_restart(hosted: tuple[RoleSpec, ...]) -> int | None:
    """The smallest limit of the hosted roles; None: no limit. Roles that continue without their members set none."""
    said = [role.max_restarts for role in hosted if role.failure_policy in _RESTARTS]
    return min((most for most in said if most != FOR_EVER), default=None)


def _what_failed(failure: Failure, who: str) -> str:
    where = f" on {failure.node}" if failure.node else ""
    return f"{who} {failure.what}{where}{': ' if failure.why else ''}{failure.why}"


def _last_words(failure: Failure) -> str:
    said = ": ".join(part for part in (failure.node, failure.why) if part)
    return f" ({said})" if said else ""


def _nth_restart(failure: Failure, hosted: tuple[RoleSpec, ...]) -> str:
    may = _may_restart(hosted)
    return "" if may is None else f" (restart {failure.restarts + 1} of {may})"


def _nth(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")
