"""The processes of a run, whatever happens to them in which order."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from builders import place, workload
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from distributed_grid.decide.roles.planner import plan_workload
from distributed_grid.decide.roles.processes import Failing, drained, handle, recover, restarts_due, routable, unneeded
from distributed_grid.decide.roles.units import holdings
from distributed_grid.model.roles.plan import Inventory, Placement
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
    PingSent,
    PlaceMissing,
    ProcessState,
    ProcessStatus,
    Ready,
    Recalled,
    RestartDecided,
    RetireEndpoints,
    StartActor,
    StartAsked,
    StartFailed,
    StopActor,
    Unanswered,
    specs_of,
)
from distributed_grid.model.roles.spec import RoleSpec


def planned(**more: Any) -> dict[str, ProcessStatus]:
    """The processes of a workload that fits, about to start."""
    load = workload(RoleSpec("worker", **{"count": 3, "cpus": 1} | more), RoleSpec("lone", cpus=1))
    found = plan_workload(load, Inventory([place("n1", cpus=2), place("n2", cpus=4)]))
    assert isinstance(found, Placement)
    held = [Held(one, f"id of {one.node}", str(number)) for number, one in enumerate(holdings(found.units, load))]
    statuses = [ProcessStatus(spec, u, one) for one in held for u in one.holding.units for spec in specs_of("run", u)]
    return {one.name: one for one in statuses}


ONE = next(iter(planned().values()))
ELSEWHERE = Moved(ONE.unit, replace(ONE.held, group="another"))
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.sampled_from([StartAsked(), Ready(), Broke(), MatesReady(), Answered(), Unanswered(), CallFailed(), Recalled()]),
    st.sampled_from([StartFailed("slow"), PlaceMissing("full"), ELSEWHERE, PingSent(1.0), Constructed(7, (0,))]),
    st.sampled_from([LeaveAsked("less", 30.0), EndAsked("over"), CallsCounted(Load(1, 2, 3.0))]),
    st.builds(RestartDecided, st.none() | st.just(frozenset({ONE.name})), st.just(5.0), st.just("it died")),
)


def check(status: ProcessStatus) -> None:
    """What holds in every state."""
    assert (status.leaving_since is not None) == status.is_leaving
    assert status.has_actor or (status.pid is None and not status.silent and not status.routed)
    assert not status.routed or (status.is_alive and status.gang is None)
    assert status.load == Load() or status.is_alive


@given(st.lists(EVENTS, max_size=40))
@settings(max_examples=300)
def test_no_order_of_events_leads_to_an_illegal_change_or_an_actor_that_is_not_stopped(events: list[Event]) -> None:
    status, running, routed, left = ONE, False, False, False
    for now, event in enumerate([*events, EndAsked("the run ends")]):
        before = status
        status, instructions = handle(before, event, float(now))
        check(status)
        assert status.state is before.state or status.state in LEGAL[before.state]
        if before.state not in EXPECTED[type(event)]:
            assert (status, instructions) == (before, ())
        for one in instructions:
            if isinstance(one, StartActor):
                assert not running and not left, "a process has one actor at a time, and none once it left"
                running = True
            elif isinstance(one, StopActor):
                assert running and not routed, "endpoints are disconnected first"
                assert one.stuck_pid == (before.pid if before.silent else None)
                running = False
            elif isinstance(one, ConnectEndpoints):
                assert running and not routed and not left
                routed = True
            elif isinstance(one, DisconnectEndpoints | RetireEndpoints):
                routed = False
        left = status.state in (ProcessState.LEAVING, ProcessState.ENDED)
    assert status.state is ProcessState.ENDED and not running and not routed


@given(EVENTS)
def test_what_has_ended_stays_so(event: Event) -> None:
    ended, _ = handle(ONE, EndAsked("over"), 1.0)
    assert handle(ended, event, 2.0) == (ended, ())


class RunOfProcesses(RuleBasedStateMachine):
    """Processes that start, fail, leave, come back and move, as a supervisor feeds their events."""

    @initialize(
        policy=st.sampled_from(["restart", "restart_gang", "continue_with_healthy", "continue"]),
        most=st.integers(0, 3),
        budget=st.sampled_from([None, None, None, 1, 4]),
    )
    def begin(self, policy: str, most: int, budget: int | None) -> None:
        more = {"failure_policy": policy, "max_restarts": most, "failure_budget": budget}
        self.most = most
        self.workload = workload(RoleSpec("worker", count=3, cpus=1, **more), RoleSpec("lone", cpus=1))
        self.processes = planned(**more)
        self.all_processes = dict(self.processes)
        self.held = list({id(one.held): one.held for one in self.processes.values()}.values())
        self.released: list[Held] = []
        self.failures: dict[str, int] = {}
        self.actors: set[str] = set()
        self.now, self.fatal, self.moves = 0.0, "", 0
        self.send({name: StartAsked() for name in self.processes})
        self.all_up([*self.processes])

    def all_up(self, names: list[str]) -> None:
        self.send(dict.fromkeys(names, Constructed(1)))
        self.send({name: Ready() for name in names if self.processes[name].pid is not None})
        self.send(dict.fromkeys(routable(self.processes), MatesReady()))

    def send(self, events: dict[str, Event]) -> None:
        for name, event in events.items():
            gang = self.processes[name].gang or ()
            status, instructions = handle(self.processes[name], event, self.now)
            self.all_processes[name] = self.processes[name] = status
            for one in instructions:
                self.carry_out(name, one, gang)
        self.processes = {name: one for name, one in self.processes.items() if one.state is not ProcessState.ENDED}
        self.release()

    def carry_out(self, name: str, instruction: Instruction, gang: Iterable[str]) -> None:
        if isinstance(instruction, StartActor):
            assert not any(self.processes[name].held is one for one in self.released), "its place was released"
            assert name not in self.actors
            self.actors.add(name)
        elif isinstance(instruction, StopActor):
            self.actors.remove(name)
        elif isinstance(instruction, ConnectEndpoints):
            mates = [self.processes[mate] for mate in gang if mate in self.processes]
            assert all(mate.is_alive for mate in mates), "those that restart together are called once all are up"

    def release(self) -> None:
        empty = unneeded(self.held, self.processes.values())
        self.released += empty
        self.held = [one for one in self.held if all(one is not other for other in empty)]

    def some(self, data: st.DataObject) -> list[str]:
        """Often all of them, so that gangs come up."""
        names = st.sampled_from(sorted(self.all_processes))
        return data.draw(st.just([*self.processes]) | st.lists(names, min_size=1, max_size=3, unique=True))

    @rule(data=st.data())
    def come_up(self, data: st.DataObject) -> None:
        self.all_up([name for name in self.some(data) if name in self.processes])

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from(sorted(self.actors)), min_size=1, max_size=2)) if self.actors else []
        self.send({name: EndAsked("it died") for name in names if self.processes[name].is_leaving})
        failed = {name: Failing("died", "killed") for name in names if name in self.processes}
        for name in failed:
            for role in self.processes[name].spec.roles:
                self.failures[role] = self.failures.get(role, 0) + 1
        if not failed or self.fatal:
            return
        found = recover(self.processes, failed, self.failures, self.workload, self.now)
        self.fatal = found.fatal
        leaving = {name for name, one in self.processes.items() if one.is_leaving}
        assert not leaving & {name for name, event in found.events if isinstance(event, RestartDecided)}
        self.send(dict(found.events))
        if self.fatal:
            self.send({name: EndAsked(self.fatal) for name in self.processes})

    @rule(after_s=st.sampled_from([0.0, 1.0, 20.0]), accepted=st.booleans())
    def restart_what_is_due(self, after_s: float, accepted: bool) -> None:
        self.now += after_s
        for group in restarts_due(self.processes, self.now):
            names = [one.name for one in group]
            self.send(dict.fromkeys(names, StartAsked()))
            if not accepted:
                self.send(dict.fromkeys(names, StartFailed("slow")))

    @rule(data=st.data())
    def move_what_is_pending(self, data: st.DataObject) -> None:
        for name in self.some(data):
            if name in self.processes and self.processes[name].state is ProcessState.PENDING:
                unit, self.moves = self.processes[name].unit, self.moves + 1
                held = replace(self.processes[name].held, group=f"moved {self.moves}")
                self.held.append(held)
                mates = [one.name for one in self.processes.values() if one.unit == unit]
                self.send({mate: Moved(replace(unit, node="n3"), held) for mate in mates})

    @rule(name=st.sampled_from(sorted(planned())))
    def leave(self, name: str) -> None:
        if name in self.processes and (self.processes[name].routed or len(self.processes) > 3):
            self.send({name: LeaveAsked("less", 30.0)})

    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        self.send({name: Recalled() for name in self.some(data) if name in self.processes})
        self.send(dict.fromkeys(routable(self.processes), MatesReady()))

    @rule(calls=st.integers(0, 2), after_s=st.sampled_from([0.0, 2.0, 31.0]))
    def drain(self, calls: int, after_s: float) -> None:
        self.now += after_s
        leaving = [one for one in self.processes.values() if one.is_leaving]
        self.send({one.name: CallsCounted(Load(calls, 0, self.now)) for one in leaving})
        leaving = [one for one in self.processes.values() if one.is_leaving]
        for group in drained(leaving, lambda _: [calls], self.now):
            for since in [self.processes[name].leaving_since for name in group]:
                assert since is not None and (not calls or self.now - since >= 30.0), "it still had calls"
            self.send({name: EndAsked("done") for name in group})

    @invariant()
    def every_state_is_legal(self) -> None:
        for status in self.all_processes.values():
            check(status)
        assert self.actors == {name for name, one in self.all_processes.items() if one.has_actor}

    @invariant()
    def restarts_stay_within_the_policy(self) -> None:
        for status in self.all_processes.values():
            if "worker" in status.name:
                assert status.restarts <= self.most

    @invariant()
    def a_released_place_has_no_process(self) -> None:
        for status in self.processes.values():
            assert not any(status.held is one for one in self.released)

    def teardown(self) -> None:
        if not hasattr(self, "processes"):
            return
        self.send({name: EndAsked("the run ends") for name in self.processes})
        assert not self.actors and not self.held, "what was started has ended, and what was held is released"


TestRunOfProcesses = RunOfProcesses.TestCase
# Not shrunk: that takes minutes here, and sequences are short enough to read.
TestRunOfProcesses.settings = settings(max_examples=150, stateful_step_count=30, phases=[Phase.generate])


def after(status: ProcessStatus, *events: Event) -> ProcessStatus:
    for event in events:
        status, _ = handle(status, event, 1.0)
    return status


UP: tuple[Event, ...] = (StartAsked(), Constructed(1), Ready(), MatesReady())


def test_a_gang_restarts_without_the_member_that_leaves_and_is_called_once_all_of_it_is_up() -> None:
    gang = {"failure_policy": "restart_gang", "max_restarts": 2}
    load = workload(RoleSpec("worker", count=3, cpus=1, **gang), RoleSpec("lone", cpus=1))
    processes = {name: after(one, *UP) for name, one in planned(**gang).items()}
    processes["run/worker/2"] = after(processes["run/worker/2"], LeaveAsked("less", 30.0))

    found = recover(processes, {"run/worker/0": Failing("died", "killed")}, {"worker": 1}, load, 1.0)
    assert [name for name, _ in found.events] == ["run/worker/0", "run/worker/1"]
    processes |= {name: after(processes[name], event) for name, event in found.events}
    assert [{one.name for one in group} for group in restarts_due(processes, 1.0)] == [{"run/worker/0", "run/worker/1"}]

    processes["run/worker/0"] = after(processes["run/worker/0"], *UP[:3])
    processes["run/worker/1"] = after(processes["run/worker/1"], StartAsked())
    assert routable(processes) == []
    processes["run/worker/1"] = after(processes["run/worker/1"], Constructed(2), Ready())
    assert routable(processes) == ["run/worker/0", "run/worker/1"]
