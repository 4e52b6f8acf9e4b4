"""The state machine of a run's processes: events in, new states and instructions out.

`handle` is for one process; the other functions decide which events concern several: failures, gangs, restarts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from distributed_grid.decide.roles.failures import judge_failures, restart_at
from distributed_grid.decide.roles.scaling import may_end
from distributed_grid.model.roles.plan import Unit
from distributed_grid.model.roles.processes import (
    EXPECTED,
    LEGAL,
    Answered,
    Broke,
    CallFailed,
    CallsCounted,
    ConnectEndpoints,
    Constructed,
    DisconnectEndpoints,
    EndAsked,
    Event,
    Held,
    Instruction,
    LeaveAsked,
    Load,
    MatesReady,
    Moved,
    OpenEndpoints,
    PingSent,
    PlaceMissing,
    ProcessState,
    ProcessStatus,
    Ready,
    Recalled,
    RelocateEndpoints,
    RestartDecided,
    RetireEndpoints,
    StartActor,
    StartAsked,
    StartFailed,
    StopActor,
    Unanswered,
)
from distributed_grid.model.roles.runs import Act, Failure
from distributed_grid.model.roles.workload import Workload

PING_S: Final = 1.0
Processes = Mapping[str, ProcessStatus]
"""All processes of a run, by name."""
Handled = tuple[ProcessStatus, tuple[Instruction, ...]]


def handle(status: ProcessStatus, event: Event, now: float) -> Handled:
    """The next state, and what to do. An event that comes too late for the state changes nothing."""
    if status.state not in EXPECTED[type(event)]:
        return status, ()
    after, instructions = _handled(status, event, now)
    assert after.state is status.state or after.state in LEGAL[status.state], (status.state, event, after.state)
    return after, instructions


def _handled(status: ProcessStatus, event: Event, now: float) -> Handled:
    match event:
        case StartAsked():
            return replace(status, state=ProcessState.STARTING, started_at=now), (StartActor(),)
        case Constructed(pid, gpus):
            return replace(status, pid=pid, gpus=gpus), ()
        case Ready():
            return replace(status, state=ProcessState.UP, why="", was_up=True, ping_due=now + PING_S), ()
        case Broke():
            return replace(status, state=ProcessState.BROKEN), ()
        case MatesReady():
            return (status, ()) if status.routed else (replace(status, routed=True, gang=None), (ConnectEndpoints(),))
        case PingSent(next_s):
            return replace(status, pinged_at=now, ping_due=now + next_s), ()
        case Answered():
            return replace(status, silent=False), ()
        case Unanswered():
            return replace(status, silent=True), ()
        case CallFailed():
            return replace(status, ping_due=now), ()
        case CallsCounted(load):
            return replace(status, load=load), ()
        case StartFailed(why):
            return _without_actor(status, why, DisconnectEndpoints(why))
        case RestartDecided(gang, not_before, why):
            after, instructions = _without_actor(status, why, DisconnectEndpoints(why))
            return replace(after, restarts=status.restarts + 1, gang=gang, not_before=not_before), instructions
        case PlaceMissing(why):
            return replace(status, why=why), ()
        case Moved(unit, held):
            spec = replace(status.spec, node=unit.node)
            return replace(status, spec=spec, unit=unit, held=held), (RelocateEndpoints(unit.node),)
        case LeaveAsked(why, finish_s):
            if not status.routed:
                return _ended(status, why)  # it cannot be called now, so it has nothing to finish
            left = replace(status, state=ProcessState.LEAVING, leaving_since=now, finish_s=finish_s, why=why)
            return left, (RetireEndpoints(why),)
        case Recalled():
            back = replace(status, state=ProcessState.UP, leaving_since=None, finish_s=0.0, why="", routed=False)
            return back, (OpenEndpoints(),)
        case EndAsked(why):
            return _ended(status, why)


def _ended(status: ProcessStatus, why: str) -> Handled:
    after, instructions = _without_actor(status, why, RetireEndpoints(why or status.why or "its process ended"))
    return replace(after, state=ProcessState.ENDED), instructions


def _without_actor(status: ProcessStatus, why: str, endpoints: Instruction) -> Handled:
    """Endpoints come first: while the actor ends, none may still be routed to it."""
    after = replace(
        status,
        state=ProcessState.PENDING,
        pid=None,
        silent=False,
        routed=False,
        load=Load(),
        leaving_since=None,
        finish_s=0.0,
        why=why or status.why,
    )
    stop = (StopActor(status.pid if status.silent else None),) if status.has_actor else ()
    return after, (endpoints, *stop)


# -- several processes -------------------------------------------------------------------------------------------


def of_roles(processes: Iterable[ProcessStatus], roles: Iterable[str]) -> list[ProcessStatus]:
    """The processes that host one of these roles, by index, without those that are being removed."""
    wanted = set(roles)
    found = [one for one in processes if not one.is_leaving and wanted & {*one.spec.roles}]
    return sorted(found, key=lambda one: one.spec.index)


def routable(processes: Processes) -> list[str]:
    """The processes that are up and may be called from now on: each at once, but those of a gang together."""
    up = {name for name, one in processes.items() if one.is_alive}
    return [
        name
        for name, one in processes.items()
        if one.state is ProcessState.UP
        and not one.routed
        and up.issuperset(mate for mate in one.gang or (name,) if mate in processes)
    ]


def restarts_due(processes: Processes, now: float) -> list[list[ProcessStatus]]:
    """The processes whose restart may begin, grouped: those of a gang restart together."""
    groups: dict[frozenset[str], list[ProcessStatus]] = {}
    for name, one in processes.items():
        if one.state is ProcessState.PENDING and one.restarts:
            groups.setdefault(one.gang or frozenset({name}), []).append(one)
    return [group for group in groups.values() if all(now >= one.not_before for one in group)]


def unneeded(held: Iterable[Held], processes: Iterable[ProcessStatus]) -> list[Held]:
    """The places that no process of the run is in or restarts in. They can be released."""
    needed = {id(one.held) for one in processes}
    return [one for one in held if id(one) not in needed]


def drained(leaving: Iterable[ProcessStatus], calls: Callable[[str], Iterable[int]], now: float) -> list[list[str]]:
    """The processes that may end now, of those that are being removed. Processes that share a place end together.

    `calls`: counts of the calls that a process still has, from different sources. Later ones are asked only if needed.
    """
    units: dict[Unit, list[ProcessStatus]] = {}
    for one in leaving:
        units.setdefault(one.unit, []).append(one)

    def is_drained(one: ProcessStatus) -> bool:
        assert one.leaving_since is not None
        counted_at, finish_s = one.load.counted_at, one.finish_s
        return all(
            may_end(leaving_since=one.leaving_since, counted_at=counted_at, calls=many, now=now, finish_s=finish_s)
            for many in calls(one.name)
        )

    return [[one.name for one in group] for group in units.values() if all(map(is_drained, group))]


@dataclass(frozen=True, slots=True)
class Failing:
    """How a process failed, for people."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Recovery:
    """The consequences of failures."""

    notes: tuple[str, ...]
    fatal: str = ""
    """Why the run cannot continue."""
    events: tuple[tuple[str, Event], ...] = ()
    """By name of the process."""


def recover(
    processes: Processes, failed: Mapping[str, Failing], failures: Mapping[str, int], workload: Workload, now: float
) -> Recovery:
    """The consequences when these processes fail at the same time. `failures`: how many each role has had, with
    these."""
    reports = [_failure(processes, processes[name], failing, failed, failures) for name, failing in failed.items()]
    verdicts = judge_failures(reports, workload)
    notes = tuple(verdict.reason for verdict in verdicts)
    if ends := next((one.reason for one in verdicts if one.act is Act.END), ""):
        return Recovery(notes, fatal=ends)
    events: dict[str, Event] = {}
    for verdict in verdicts:
        concerned = of_roles(processes.values(), verdict.roles)
        if verdict.act is not Act.RESTART_GANG:
            concerned = [one for one in concerned if one.spec.index == verdict.index and one.name in failed]
        if verdict.act is Act.GO_ON:
            events |= {one.name: EndAsked(verdict.reason) for one in concerned}
        else:
            gang = frozenset(one.name for one in concerned) if verdict.act is Act.RESTART_GANG else None
            restart = _restart(concerned, gang, now)
            events |= {one.name: restart for one in concerned}
    return Recovery(notes, events=tuple(events.items()))


def _restart(processes: Sequence[ProcessStatus], gang: frozenset[str] | None, now: float) -> RestartDecided:
    begins = [restart_at(one.restarts + 1, began=one.started_at, now=now) for one in processes]
    not_before = max(begins, default=now)
    why = f"it restarts{f' after {not_before - now:g} s' if not_before > now else ''}"
    return RestartDecided(gang, not_before, why)


def _failure(
    processes: Processes,
    process: ProcessStatus,
    failing: Failing,
    failed: Mapping[str, Failing],
    failures: Mapping[str, int],
) -> Failure:
    spec = process.spec
    left = [mate for mate in of_roles(processes.values(), spec.roles) if mate.name not in failed]
    return Failure(
        role=spec.roles[0],
        index=spec.index,
        restarts=process.restarts,
        failures={role: failures.get(role, 0) for role in spec.roles},
        left=len(left),
        node=spec.node,
        what=failing.what,
        why=failing.why,
    )
