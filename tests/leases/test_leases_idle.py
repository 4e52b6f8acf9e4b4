"""An idle lease is reported, and is lent on when a request waits; one that is used is left alone."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from builders import NOON, ask, lease, reading, waits
from fake_telemetry import FakeTelemetry
from hook_server import HookServer
from whole_grid import WholeGrid, at_home

from distributed_grid.errors import NoCapacity
from distributed_grid.leases.programs import leave, report_program, report_use
from distributed_grid.leases.reclaim import take_what_is_noticed, why_it_yields
from distributed_grid.model.endings import EndCause
from distributed_grid.model.leases import Idle, Lease, LeaseState, Purpose
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.requests import Occurrence
from distributed_grid.model.resources import GB, GPU, scale
from distributed_grid.model.snapshots import GpuProcess, GpuReading, Reading, WorkerUse
from distributed_grid.model.validators import NEVER_S

LOW, CRITICAL = AllocationPriority.LOW, AllocationPriority.CRITICAL
IDLE_AFTER_S, GRACE_S, EVERY_S = 60, 10, 5
Make = Callable[..., WholeGrid]

pytestmark = pytest.mark.filterwarnings("ignore")


def measured(utilisation: float | None = 0.0, **workers: float) -> Reading:
    """`_7=0.5`: the worker with pid 7 used half a core."""
    gpu = GpuReading(0, "GPU-1", "H200", utilisation, 140 * GB, 100 * GB)
    used = tuple(WorkerUse(int(pid.removeprefix("_")), cores) for pid, cores in workers.items())
    return replace(reading(gpu), workers=used)


@pytest.fixture
def telemetry() -> FakeTelemetry:
    return FakeTelemetry()


@pytest.fixture
def lab(make_grid: Make, telemetry: FakeTelemetry) -> WholeGrid:
    return idle_lab(make_grid, telemetry)


def idle_lab(make_grid: Make, telemetry: FakeTelemetry, **sharing: Any) -> WholeGrid:
    rules = {
        "idle_after": IDLE_AFTER_S,
        "idle_action": "reclaim",
        "monitoring_interval_seconds": EVERY_S,
        "grace_seconds": GRACE_S,
        "min_hold_seconds": 0,
    }
    return make_grid(telemetry=telemetry, **rules | sharing)


def gpu_of(lab: WholeGrid, source: str = "a", **changes: Any) -> Lease:
    return lab.run(lab.service.request(ask("b", GPU, 1, source=source, priority=CRITICAL, **changes)))


def asks_for_a_gpu(lab: WholeGrid, source: str = "a", **changes: Any) -> Any:
    """A request of the lowest priority, from another team."""
    return lab.run(lab.service.enqueue(ask("c" if source == "a" else "a", GPU, 1, source=source, priority=LOW)))


def is_lent_on(lab: WholeGrid, before: Lease) -> bool:
    return before.id not in lab.leases and any(lease.kind == GPU for lease in lab.leases.values())


def test_an_idle_gpu_is_lent_on_whatever_the_priorities(lab: WholeGrid) -> None:
    held = gpu_of(lab)
    lab.wait(IDLE_AFTER_S + 2 * EVERY_S)
    assert lab.leases[held.id].idle is not None
    (event,) = lab.events("idle")
    assert event.startswith("1 GPU from a to b: idle, its work has not used it for 60 s")

    asks_for_a_gpu(lab)
    lab.wait(GRACE_S / 2)
    noticed = lab.leases[held.id]
    assert noticed.state is LeaseState.ACTIVE
    assert noticed.ending is not None
    assert noticed.ending.cause is EndCause.IDLE
    lab.wait(GRACE_S + EVERY_S)

    assert is_lent_on(lab, held)
    assert not lab.failures


def test_a_gpu_that_an_actor_holds_is_idle_while_the_device_and_the_actor_do_nothing(
    lab: WholeGrid, telemetry: FakeTelemetry
) -> None:
    held = gpu_of(lab)
    assert held.held_by is not None
    pid = lab.cluster.start_in_group(held.held_by)
    telemetry.answers["a"] = measured(0.0, **{f"_{pid}": 0.01})
    lab.wait(IDLE_AFTER_S + 4 * EVERY_S)
    assert lab.leases[held.id].idle is not None

    asks_for_a_gpu(lab)
    lab.wait(GRACE_S + 4 * EVERY_S)

    assert is_lent_on(lab, held)
    assert pid not in lab.cluster.running()


@pytest.mark.parametrize("busy", [{"utilisation": None}, {"cores": 0.5}, {"cores": None}])
def test_a_gpu_that_is_used_or_cannot_be_measured_is_not_touched(
    lab: WholeGrid, telemetry: FakeTelemetry, busy: dict[str, Any]
) -> None:
    held = gpu_of(lab)
    assert held.held_by is not None
    pid = lab.cluster.start_in_group(held.held_by)
    cores = busy.get("cores", 0.0)
    workers = {} if cores is None else {f"_{pid}": cores}
    telemetry.answers["a"] = measured(busy.get("utilisation", 0.0), **workers)
    if "utilisation" in busy:
        telemetry.answers["a"] = "its probe does not answer"
    asks_for_a_gpu(lab)
    lab.wait(3 * IDLE_AFTER_S)
    assert lab.leases[held.id].idle is None
    assert lab.leases[held.id].notice is None
    assert pid in lab.cluster.running()


def test_short_work_now_and_then_keeps_a_lease(lab: WholeGrid) -> None:
    held = gpu_of(lab)
    assert held.held_by is not None
    asks_for_a_gpu(lab)
    for _ in range(6):
        lab.wait(IDLE_AFTER_S / 2)
        pid = lab.cluster.start_in_group(held.held_by)
        lab.wait(2)
        assert pid is not None
        lab.cluster.finish(pid)
    assert lab.leases[held.id].notice is None
    assert not lab.events("idle")


def test_work_that_starts_during_the_grace_period_keeps_its_lease_and_the_request_waits_on(lab: WholeGrid) -> None:
    held = gpu_of(lab)
    assert held.held_by is not None
    lab.wait(IDLE_AFTER_S + 2 * EVERY_S)
    waiting = asks_for_a_gpu(lab)
    lab.wait(GRACE_S / 2)
    assert lab.leases[held.id].notice is not None

    pid = lab.cluster.start_in_group(held.held_by)
    lab.wait(3 * GRACE_S)

    kept = lab.leases[held.id]
    assert (kept.state, kept.notice, kept.ending, kept.idle) == (LeaseState.ACTIVE, None, None, None)
    assert pid in lab.cluster.running()
    assert waiting.id in {one.id for one in lab.service.queue.in_order()}
    assert lab.events("reclaim_withdrawn")
    assert lab.on_disk()[held.id].notice is None


def test_a_program_that_enters_during_the_grace_period_keeps_its_lease(lab: WholeGrid) -> None:
    held = gpu_of(lab)
    lab.wait(IDLE_AFTER_S + 2 * EVERY_S)
    asks_for_a_gpu(lab)
    lab.wait(GRACE_S - 2)
    lab.run(report_program(lab.parts, held, "p1", "train.py"))
    lab.wait(GRACE_S)
    assert lab.leases[held.id].notice is None


class ProgramInside:
    """What `grid run` reports of a program, every second."""

    def __init__(self, lab: WholeGrid, held: Lease, *, cores: float | None = 0.0) -> None:
        self.lab, self.held, self.cores = lab, held, cores
        self.cpu_s = 0.0

    def runs_for(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            if (lease := self.lab.leases.get(self.held.id)) is None:
                return
            self.lab.run(self._report(lease))
            self.lab.wait(1)

    async def _report(self, lease: Lease) -> None:
        await report_program(self.lab.parts, lease, "p1", "train.py")
        if self.cores is not None:
            self.cpu_s += self.cores
            report_use(self.lab.parts, lease, "p1", self.cpu_s)


def run_with_a_gpu(lab: WholeGrid, telemetry: FakeTelemetry, cores: float | None = 0.0) -> ProgramInside:
    telemetry.answers["a"] = measured(0.0)
    return ProgramInside(lab, gpu_of(lab, purpose=Purpose.RUN, duration_s=100 * IDLE_AFTER_S), cores=cores)


def test_a_run_that_does_nothing_is_reported_and_lent_on_after_its_notice_and_grace(
    lab: WholeGrid, telemetry: FakeTelemetry
) -> None:
    program = run_with_a_gpu(lab, telemetry, cores=0.01)
    program.runs_for(IDLE_AFTER_S + 4 * EVERY_S)
    assert lab.leases[program.held.id].idle is not None
    assert lab.leases[program.held.id].notice is None
    assert len(lab.events("idle")) == 1

    asks_for_a_gpu(lab)
    program.runs_for(GRACE_S - 2)
    noticed = lab.leases[program.held.id]
    assert noticed.notice is not None
    assert noticed.state is LeaseState.ACTIVE
    program.runs_for(3 * GRACE_S)

    assert is_lent_on(lab, program.held)


@pytest.mark.parametrize("case", ["the program computes", "it is not measured", "its GPU computes without Ray"])
def test_a_run_that_works_or_is_not_measured_is_not_touched(
    lab: WholeGrid, telemetry: FakeTelemetry, case: str
) -> None:
    program = run_with_a_gpu(lab, telemetry)
    match case:
        case "the program computes":
            program.cores = 0.5
        case "it is not measured":
            program.cores = None
        case _:
            busy = measured(0.9)
            telemetry.answers["a"] = replace(busy, gpus=(replace(busy.gpus[0], processes=(GpuProcess(9, 1, False),)),))
    asks_for_a_gpu(lab)
    program.runs_for(3 * IDLE_AFTER_S)
    assert lab.leases[program.held.id].idle is None
    assert lab.leases[program.held.id].notice is None


def test_a_run_that_works_for_a_moment_now_and_then_keeps_its_lease(lab: WholeGrid, telemetry: FakeTelemetry) -> None:
    program = run_with_a_gpu(lab, telemetry)
    asks_for_a_gpu(lab)
    for _ in range(6):
        program.cores = 0.0
        program.runs_for(IDLE_AFTER_S / 2)
        program.cores = 0.5
        program.runs_for(2)
    assert lab.leases[program.held.id].notice is None
    assert not lab.events("idle")


def test_a_run_that_works_again_in_its_grace_period_keeps_its_lease(lab: WholeGrid, telemetry: FakeTelemetry) -> None:
    program = run_with_a_gpu(lab, telemetry)
    program.runs_for(IDLE_AFTER_S + 4 * EVERY_S)
    asks_for_a_gpu(lab)
    program.runs_for(GRACE_S - 2)
    assert lab.leases[program.held.id].notice is not None

    program.cores = 1.0
    program.runs_for(3 * GRACE_S)

    assert lab.leases[program.held.id].state is LeaseState.ACTIVE
    assert lab.leases[program.held.id].notice is None
    assert lab.events("reclaim_withdrawn")


def test_work_that_a_quiet_program_has_in_its_lease_is_use(lab: WholeGrid, telemetry: FakeTelemetry) -> None:
    program = run_with_a_gpu(lab, telemetry)
    assert program.held.held_by is not None
    pid = lab.cluster.start_in_group(program.held.held_by)
    telemetry.answers["a"] = measured(0.0, **{f"_{pid}": 0.5})
    asks_for_a_gpu(lab)
    program.runs_for(3 * IDLE_AFTER_S)
    assert lab.leases[program.held.id].idle is None
    assert pid in lab.cluster.running()


def test_a_program_that_was_there_for_a_moment_has_used_the_lease(lab: WholeGrid) -> None:
    held = gpu_of(lab)

    async def enter_and_leave() -> None:
        inside = await report_program(lab.parts, held, "p1", "date")
        await leave(lab.parts, inside, "p1")

    lab.run(enter_and_leave())
    lab.wait(IDLE_AFTER_S / 2)
    lab.run(enter_and_leave())
    lab.wait(IDLE_AFTER_S / 2 + 2 * EVERY_S)
    assert lab.leases[held.id].idle is None
    lab.wait(IDLE_AFTER_S)
    assert lab.leases[held.id].idle is not None


def test_a_transfer_is_shrunk_by_what_is_needed(make_grid: Make, telemetry: FakeTelemetry) -> None:
    lab = idle_lab(make_grid, telemetry)
    held = lab.run(lab.service.request(ask("b", amount=4, source="a", priority=CRITICAL)))
    lab.wait(IDLE_AFTER_S + 3 * EVERY_S)
    lab.run(lab.service.enqueue(ask("c", amount=1, source="a", priority=LOW)))
    lab.wait(GRACE_S + 4 * EVERY_S)
    assert sorted((lease.target, lease.units // scale("cpu")) for lease in lab.leases.values()) == [("b", 3), ("c", 1)]
    assert held.id in lab.leases
    assert not lab.cluster.violations


def test_a_transfer_that_its_target_uses_is_not_touched(lab: WholeGrid) -> None:
    held = lab.run(lab.service.request(ask("b", amount=4, source="a", priority=CRITICAL)))
    pid = lab.cluster.start("b", 5)
    lab.run(lab.service.enqueue(ask("c", amount=1, source="a", priority=LOW)))
    lab.wait(3 * IDLE_AFTER_S)
    assert lab.leases[held.id].units == 4 * scale("cpu")
    assert lab.leases[held.id].idle is None
    assert pid in lab.cluster.running()


def test_by_default_an_idle_lease_is_only_reported(make_grid: Make, telemetry: FakeTelemetry) -> None:
    lab = idle_lab(make_grid, telemetry, idle_action="warn")
    held = gpu_of(lab)
    lab.wait(IDLE_AFTER_S + 2 * EVERY_S)
    with pytest.raises(NoCapacity):
        lab.run(lab.service.request(ask("c", GPU, 1, source="a", priority=LOW)))
    assert lab.leases[held.id].idle is not None
    assert lab.leases[held.id].notice is None


def test_off_looks_for_none(make_grid: Make, telemetry: FakeTelemetry) -> None:
    lab = idle_lab(make_grid, telemetry, idle_action="off")
    held = gpu_of(lab)
    lab.wait(2 * IDLE_AFTER_S)
    assert lab.leases[held.id].idle is None


def test_a_request_may_say_when_its_lease_is_idle_or_that_it_never_is(lab: WholeGrid) -> None:
    soon, never = gpu_of(lab, idle_after=IDLE_AFTER_S / 2), gpu_of(lab, "c", idle_after=NEVER_S)
    lab.wait(IDLE_AFTER_S / 2 + 2 * EVERY_S)
    assert lab.leases[soon.id].idle is not None
    asks_for_a_gpu(lab)
    asks_for_a_gpu(lab, "c")
    lab.wait(3 * IDLE_AFTER_S)
    assert soon.id not in lab.leases
    assert lab.leases[never.id].idle is None
    assert lab.on_disk()[never.id].idle_after == NEVER_S


@pytest.mark.parametrize(
    ("priority", "ends_before", "cause"),
    [
        ("low", False, EndCause.PREEMPTED),
        ("normal", True, EndCause.PREEMPTED),
        ("normal", False, EndCause.IDLE),
        ("high", True, EndCause.IDLE),
        ("high", False, EndCause.IDLE),
    ],
)
def test_a_window_takes_an_idle_lease_that_is_used_again_only_if_it_would_take_any_such_lease(
    priority: str, ends_before: bool, cause: EndCause
) -> None:
    begin = NOON + timedelta(hours=1)
    expires_at = begin - timedelta(minutes=1) if ends_before else begin + timedelta(hours=1)
    victim = lease(priority=AllocationPriority(priority), expires_at=expires_at, idle=Idle(NOON, yields=True))
    window = Occurrence("training", begin, begin + timedelta(hours=3), NOON)
    _, ending = why_it_yields(victim, replace(waits(), occurrence=window), "the window begins", NOON)
    assert ending.cause is cause


def test_an_idle_lease_has_its_minimum_hold(make_grid: Make, telemetry: FakeTelemetry) -> None:
    lab = idle_lab(make_grid, telemetry, min_hold_seconds=4 * IDLE_AFTER_S)
    held = gpu_of(lab)
    asks_for_a_gpu(lab)
    lab.wait(2 * IDLE_AFTER_S)
    assert lab.leases[held.id].idle is not None
    assert lab.leases[held.id].notice is None
    lab.wait(2 * IDLE_AFTER_S + GRACE_S + 2 * EVERY_S)
    assert is_lent_on(lab, held)


def test_a_restart_measures_anew(lab: WholeGrid) -> None:
    held = gpu_of(lab)
    lab.wait(IDLE_AFTER_S + 2 * EVERY_S)
    asks_for_a_gpu(lab)
    lab.wait(1)
    assert lab.leases[held.id].notice is not None

    lab.crash()

    assert lab.leases[held.id].notice is None
    assert lab.leases[held.id].idle is None
    lab.wait(GRACE_S + EVERY_S)
    assert held.id in lab.leases
    lab.wait(IDLE_AFTER_S + GRACE_S + 2 * EVERY_S)
    assert is_lent_on(lab, held)


def test_the_holder_hears_by_its_hook_that_the_lease_is_idle_and_may_give_it_up(lab: WholeGrid) -> None:
    with HookServer({"release": True}) as holder:
        held = gpu_of(lab, reclaim_hook=holder.url)
        lab.wait(IDLE_AFTER_S + 3 * EVERY_S)

    (told,) = holder.asked
    assert (told["cause"], told["boost_id"], told["amount"], told["deadline"]) == ("idle", held.id, 1, None)
    assert told["idle_since"]
    lab.wait(EVERY_S)
    at_home(lab)


def test_a_hook_hears_of_the_reclaim_of_an_idle_lease_as_of_any_other(lab: WholeGrid) -> None:
    with HookServer() as holder:
        gpu_of(lab, reclaim_hook=holder.url)
        lab.wait(IDLE_AFTER_S + 3 * EVERY_S)
        asks_for_a_gpu(lab)
        lab.wait(2)

    told = holder.asked[-1]
    assert (told["cause"], told["amount"]) == ("idle", 1)
    assert told["deadline"] == told["ends_at"]


def test_work_that_begins_at_the_very_end_on_an_idle_transfer_is_not_ended(lab: WholeGrid) -> None:
    held = lab.run(lab.service.request(ask("b", amount=4, source="a", priority=CRITICAL, grace_s=GRACE_S)))
    lab.wait(IDLE_AFTER_S + 3 * EVERY_S)
    lab.run(lab.service.enqueue(ask("c", amount=4, source="a", priority=LOW)))
    lab.wait(1)
    noticed = lab.leases[held.id]
    assert noticed.notice is not None
    pid = lab.cluster.start("b", 6)

    async def taking() -> None:
        take_what_is_noticed(lab.parts, noticed, is_idle=True)
        await lab.parts.try_commit()

    lab.run(taking())
    lab.wait(10 * GRACE_S)
    assert pid in lab.cluster.running()
