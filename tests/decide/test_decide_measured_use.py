"""What is in use on nodes that Ray does not count, and what that means for lending."""

from dataclasses import replace
from datetime import timedelta

import pytest
from builders import NOON, amounts, ask, cpu, lease, node, reading, sought, waits
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.decide.capacity.feasibility import lendable
from distributed_grid.decide.capacity.lending import counter_offer, plan_grant
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.monitoring.measured import gpus_in_use, measured_use
from distributed_grid.decide.monitoring.pressure import Threshold
from distributed_grid.decide.queue.admission import plan_queue
from distributed_grid.decide.scheduler.placing import refusals
from distributed_grid.model.leases import Delivery
from distributed_grid.model.nodes import MeasuredUse, Node, NodeTable
from distributed_grid.model.plans import NO_RULES, Grant, Refused
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.requests import Waiting
from distributed_grid.model.resources import GB, ResourceVector
from distributed_grid.model.snapshots import GpuProcess, GpuReading, NodeSnapshot

LIMITS = {kind: Threshold(low=0.3, high=0.8) for kind in ("cpu", "memory", "gpu")}
BUSY = "its machine is busy: 2.0 of 2 CPUs in use, load 17.0"
USED = "GPU 0 is in use outside Ray: 100.0 of 140.0 GB, 100% busy, pid 7"


def device(index: int = 0, used: int = 0, busy: float = 0.0, *processes: GpuProcess) -> GpuReading:
    return GpuReading(index, f"GPU-{index}", "H200", busy, 140 * GB, used * GB, processes=processes)


def process(pid: int, ours: bool | None) -> GpuProcess:
    return GpuProcess(pid, 100 * GB, ours)


def snapshot(*gpus: GpuReading, given_out: int = 0, stale: bool = False, **host: float) -> NodeSnapshot:
    total = amounts(cpu=16, gpu=len(gpus))
    free = total - ResourceVector({"gpu": given_out})
    return NodeSnapshot("gpu1", "id", NOON, total, total, free, measured=reading(*gpus, **host), stale=stale)


# -- GPUs ----------------------------------------------------------------------------------------------------


def test_a_gpu_that_another_program_fills_is_in_use_and_not_lent() -> None:
    found = measured_use(snapshot(device(0, 100, 1.0, process(7, ours=False))), LIMITS)

    assert found.gpus == (USED,)
    assert found.withheld == amounts(gpu=1)


def test_with_warn_it_is_told_and_lent() -> None:
    found = measured_use(snapshot(device(0, 100, 1.0, process(7, ours=False))), LIMITS, withholds_gpus=False)

    assert (found.gpus, found.withheld) == ((USED,), ResourceVector())


def test_a_gpu_that_computes_with_little_memory_is_in_use_too() -> None:
    assert gpus_in_use([device(0, 1, 0.9, process(7, ours=False))], 0)
    assert not gpus_in_use([device(0, 1, 0.1, process(7, ours=False))], 0)  # a desktop


def test_work_of_the_nodes_own_is_no_other_program() -> None:
    assert not gpus_in_use([device(0, 100, 1.0, process(7, ours=True))], 1)
    assert not gpus_in_use([device(0, 100, 1.0, process(7, ours=True))], 0)  # Ray was asked a moment later


def test_where_processes_cannot_be_told_apart_as_many_devices_as_ray_gave_out_are_its_own() -> None:
    both = [device(index, 100, 1.0, process(7 + index, ours=None)) for index in (0, 1)]
    untold = [replace(one, processes=None) for one in both]

    for gpus in (both, untold):
        assert [len(gpus_in_use(gpus, given_out)) for given_out in (0, 1, 2)] == [2, 1, 0]


def test_a_stale_reading_says_nothing() -> None:
    assert not measured_use(snapshot(device(0, 100, 1.0), stale=True, cpu_used=16.0), LIMITS).warnings


@given(
    st.lists(st.tuples(st.integers(0, 140), st.floats(0, 1), st.sampled_from([None, True, False])), max_size=8),
    st.integers(0, 8),
)
def test_no_idle_device_and_none_with_own_work_counts_as_used(
    devices: list[tuple[int, float, bool | None]], given_out: int
) -> None:
    gpus = [device(i, used, busy, process(i, ours)) for i, (used, busy, ours) in enumerate(devices)]

    found = gpus_in_use(gpus, given_out)

    for gpu, (used, busy, ours) in ((gpu, devices[gpu.index or 0]) for gpu in found):
        assert used >= 14 or busy >= 0.5, gpu
        assert ours is not True
    certain = {i for i, (used, busy, ours) in enumerate(devices) if ours is False and (used >= 14 or busy >= 0.5)}
    assert certain <= {gpu.index for gpu in found}


# -- machines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "crowded"),
    [
        ({"cpu_used": 16.0}, {"cpu": "its machine is busy: 16.0 of 16 CPUs in use, load 8.0"}),
        ({"cpu_used": 12.0}, {}),
        ({"memory_used": 60 * GB}, {"memory": "its machine is short of memory: 60.0 of 64.0 GB in use"}),
    ],
)
def test_a_machine_at_its_limit_is_told_of_with_its_load(host: dict[str, float], crowded: dict[str, str]) -> None:
    found = measured_use(snapshot(**host), LIMITS)

    assert found.crowded == crowded
    assert found.warnings == tuple(crowded.values())


# -- lending -------------------------------------------------------------------------------------------------


def lender(name: str = "gpu1", **use: object) -> Node:
    crowded = {"cpu": BUSY} if use.pop("busy", False) else {}
    gpus = (USED,) if use.pop("used_gpus", 0) else ()
    withheld = amounts(gpu=use.pop("withheld", len(gpus)))
    return replace(node(name, **use), in_use=MeasuredUse(crowded, gpus, withheld))


def plan(kind: str, amount: float, *nodes: Node, **changes: object) -> Grant | Refused:
    return plan_grant(ask("head", kind, amount, **changes), NodeTable(nodes), Usage())


HEAD = node("head", cpus=4, ip="10.0.0.1")


def test_a_node_whose_only_gpu_is_in_use_outside_ray_refuses_it_and_says_why() -> None:
    refused = plan("gpu", 1, HEAD, lender(gpus=1, used_gpus=1, ip="10.0.0.2"))

    assert isinstance(refused, Refused)
    (found,) = [one for one in refused.refusals if one.node == "gpu1"]
    assert found.code is RefusalCode.GPU_IN_USE
    assert found.detail == f"1 of 1 GPU free for Ray, but {USED}; 1 requested"


def test_of_two_gpus_one_of_which_is_in_use_one_is_lent_with_a_warning() -> None:
    nodes = (HEAD, lender(gpus=2, used_gpus=1, ip="10.0.0.2"))
    granted, refused = plan("gpu", 1, *nodes), plan("gpu", 2, *nodes)

    assert isinstance(granted, Grant) and isinstance(refused, Refused)
    (warning,) = granted.warnings
    assert USED in warning and "Ray chooses the device" in warning
    assert str(counter_offer(refused)).startswith("1 GPU can be lent by gpu1")


@given(st.integers(1, 8), st.integers(0, 8), st.integers(0, 8), st.integers(1, 8))
def test_no_more_is_lent_than_is_free_of_other_programs(gpus: int, used: int, withheld: int, asked: int) -> None:
    one = lender(gpus=gpus, cpus=64, used=amounts(gpu=min(used, gpus)), used_gpus=1, withheld=withheld, ip="10.0.0.2")

    found = plan("gpu", asked, HEAD, one)

    left = max(0, gpus - used) - withheld
    assert isinstance(found, Grant) == (asked <= left)
    if isinstance(found, Refused):
        (refusal,) = [one for one in found.refusals if one.node == "gpu1"]
        assert refusal.could_lend == max(0, left) * 10_000
        assert (refusal.code is RefusalCode.GPU_IN_USE) == (asked <= max(0, gpus - used))


def test_a_node_whose_gpus_are_free_lends_before_one_whose_are_in_use() -> None:
    nodes = (lender("gpu1", gpus=1, used_gpus=1, ip="10.0.0.2"), lender("gpu2", gpus=1, ip="10.0.0.3"))

    granted = plan("gpu", 1, HEAD, *nodes)

    assert isinstance(granted, Grant)
    assert (granted.source, granted.warnings) == ("gpu2", ())


def test_work_is_reserved_on_a_busy_machine_only_if_there_is_no_other() -> None:
    busy = lender("gpu1", cpus=8, busy=True, ip="10.0.0.2")
    calm = lender("gpu2", cpus=4, ip="10.0.0.3")

    first = plan("cpu", 2, HEAD, busy, calm, delivery="reserve")
    only = plan("cpu", 2, HEAD, busy, delivery="reserve")

    assert isinstance(first, Grant) and isinstance(only, Grant)
    assert (first.source, first.warnings) == ("gpu2", ())
    assert (only.source, only.warnings) == ("gpu1", (f"gpu1: {BUSY}. The work will be slow there.",))


def test_behind_a_request_that_waits_work_is_kept_off_a_busy_machine_as_it_is_at_any_time() -> None:
    busy = lender("gpu1", cpus=8, busy=True, ip="10.0.0.2")
    calm = lender("gpu2", cpus=4, ip="10.0.0.3")
    loan = lease("x", "gpu3", "gpu1", amount=4, expires_at=NOON + timedelta(minutes=30))
    lent_out = lender("gpu3", cpus=16, used=cpu(4), ip="10.0.0.4")
    queue = (
        waits("large", 16, target="head", delivery="reserve"),
        waits("small", 2, target="head", delivery="reserve"),
    )

    nodes = NodeTable([HEAD, busy, calm, lent_out])
    large, small = plan_queue(queue, nodes, [loan], Usage.of([loan]), lambda _: NO_RULES, NOON)

    assert (large.grant, large.expected_source) == (None, "gpu3")
    assert small.grant is not None and small.grant.source == "gpu2"


def test_nothing_is_reserved_on_a_machine_short_of_memory_if_there_is_another() -> None:
    short = replace(
        node("gpu1", memory=64, ip="10.0.0.2"), in_use=MeasuredUse({"memory": "its machine is short of memory"})
    )
    calm = lender("gpu2", memory=16, ip="10.0.0.3")

    for kind in ("memory", "cpu"):
        first = plan(kind, 2, HEAD, short, calm, delivery="reserve")
        only = plan(kind, 2, HEAD, short, delivery="reserve")

        assert isinstance(first, Grant) and isinstance(only, Grant)
        assert (first.source, first.warnings) == ("gpu2", ())
        assert only.warnings == ("gpu1: its machine is short of memory. The work may run out of memory there.",)


def test_auto_moves_no_capacity_onto_a_busy_machine_where_another_could_do_the_work() -> None:
    head = lender("head", cpus=4, busy=True, ip="10.0.0.1")
    calm = lender("gpu1", cpus=8, ip="10.0.0.2")

    auto, explicit = plan("cpu", 2, head, calm, delivery="auto"), plan("cpu", 2, head, calm, delivery="transfer")

    assert isinstance(auto, Grant) and isinstance(explicit, Grant)
    assert (auto.delivery, auto.delivery_reason) == (Delivery.RESERVE, f"auto: head: {BUSY}")
    assert explicit.delivery is Delivery.TRANSFER
    assert BUSY in explicit.warnings[0] and "--delivery reserve" in explicit.warnings[0]


@given(
    st.sampled_from(["auto", "transfer", "reserve", None]),
    st.lists(st.booleans(), min_size=2, max_size=4),
    st.integers(1, 8),
)
def test_between_nodes_of_one_machine_its_load_changes_nothing(
    delivery: str | None, busy: list[bool], amount: int
) -> None:
    names = ["head", *(f"gpu{i}" for i in range(1, len(busy)))]
    calm = [node(name, cpus=8, ip="10.0.0.1", host="box") for name in names]
    loaded = [
        replace(one, in_use=MeasuredUse({"cpu": BUSY} if is_busy else {}))
        for one, is_busy in zip(calm, busy, strict=True)
    ]

    assert plan("cpu", amount, *loaded, delivery=delivery) == plan("cpu", amount, *calm, delivery=delivery)


# -- disks ---------------------------------------------------------------------------------------------------

FULL = "its disk is nearly full: 96.0 of 100.0 GB in use"


@pytest.mark.parametrize(("used", "refuses"), [(96, True), (95, True), (94, False), (0, False)])
def test_a_disk_counts_as_full_where_ray_creates_no_more_objects(used: int, refuses: bool) -> None:
    found = measured_use(snapshot(disk_total=100 * GB, disk_used=used * GB), LIMITS)
    assert bool(found.refuses) == refuses == bool(found.warnings)


def test_a_node_whose_disk_is_full_lends_nothing_to_boosts_tasks_or_roles_and_says_why() -> None:
    full = replace(
        node("gpu1"), in_use=measured_use(snapshot(disk_total=100 * GB, disk_used=96 * GB), LIMITS), ip="10.0.0.2"
    )
    refused = plan("cpu", 1, HEAD, full)
    assert isinstance(refused, Refused)
    (found,) = [one for one in refused.refusals if one.node == "gpu1"]
    assert (found.code, found.detail) == (RefusalCode.DISK_FULL, FULL)

    assert refusals(sought(HEAD, full, target="head", cpu=8))["gpu1"] == FULL
    assert lendable(full, Usage(), NO_RULES) == ResourceVector()
    assert lendable(node("gpu1"), Usage(), NO_RULES) == amounts(cpu=4, memory=16)


def test_a_full_disk_does_not_keep_a_node_from_its_own_capacity() -> None:
    full = replace(HEAD, in_use=MeasuredUse(refuses={RefusalCode.DISK_FULL: FULL}))
    assert isinstance(plan("cpu", 1, full, own_too=True, delivery="reserve"), Grant)


def test_a_later_slot_goes_to_the_lender_that_is_left_with_most_beside_what_other_programs_use() -> None:
    crowded = lender("a", gpus=4, cpus=8, used=amounts(gpu=2), used_gpus=1, withheld=2)
    calm = node("b", gpus=4, cpus=8, used=amounts(gpu=4))
    held = [
        lease(source, source, "gpu-master", kind="gpu", amount=amount, delivery=Delivery.RESERVE)
        for source, amount in (("a", 2), ("b", 3))
    ]
    waiting = Waiting("w", ask("gpu-master", "gpu", 2), NOON)
    nodes = NodeTable([node("gpu-master"), crowded, calm])
    (verdict,) = plan_queue([waiting], nodes, held, Usage.of(held), lambda _: NO_RULES, NOON)
    assert (verdict.grant, verdict.expected_source) == (None, "b")
