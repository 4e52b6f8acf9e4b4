"""What Prometheus reads: base units, no ids, and nothing of nodes that are gone or not measured."""

from dataclasses import replace
from datetime import timedelta

from builders import NOON, amounts, lease, node, reading, waits
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from distributed_grid.controller.metrics import Seen, all_metrics, as_text, exposition
from distributed_grid.decide.monitoring.demand import explain_demand
from distributed_grid.decide.monitoring.snapshots import take_snapshots
from distributed_grid.model.demand import Bundle, Pending, Shape
from distributed_grid.model.leases import Purpose
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.resources import GB
from distributed_grid.model.series import RunTimes
from distributed_grid.model.snapshots import GpuReading, NodeSnapshot

GPU = GpuReading(0, "GPU-8f3c", "H200", 0.5, 140 * GB, 35 * GB, 61.0)
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def snapshots(*, silent: bool = False) -> dict[str, NodeSnapshot]:
    nodes = NodeTable([node("gpu1", cpus=8, gpus=1, used=amounts(cpu=4)), node("gpu2")])
    answers = {"id-of-gpu1": reading(GPU, own_cpu=1.0)}
    leases = [lease(source="gpu1", target="gpu2", amount=2)]
    taken = take_snapshots(nodes, leases, answers, {}, now=NOON, start_grace=timedelta(seconds=30))
    if silent:
        later = NOON + timedelta(seconds=10)
        taken = take_snapshots(nodes, leases, {}, taken, now=later, start_grace=timedelta(seconds=30))
    return taken


def samples(seen: Seen) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(exposition(seen).decode())
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((name, tuple(sorted(labels.items()))))


def test_capacity_is_reported_in_cores_and_bytes() -> None:
    found = samples(Seen(NOON, snapshots()))

    assert value(found, "grid_node_cpu_cores", node="gpu1", amount="total") == 8.0
    assert value(found, "grid_node_cpu_cores", node="gpu1", amount="lent") == 2.0
    assert value(found, "grid_node_cpu_cores", node="gpu2", amount="borrowed") == 2.0
    assert value(found, "grid_node_memory_bytes", node="gpu1", amount="base") == 16 * GB


def test_what_was_measured_stands_beside_it() -> None:
    found = samples(Seen(NOON + timedelta(seconds=4), snapshots()))

    assert value(found, "grid_node_pressure_ratio", node="gpu1", resource="cpu") == 0.5
    assert value(found, "grid_node_pressure_ratio", node="gpu1", resource="gpu") == 0.5
    assert value(found, "grid_node_measured_cpu_used_cores", node="gpu1", of="own") == 1.0
    assert value(found, "grid_node_measurement_age_seconds", node="gpu1") == 4.0
    assert value(found, "grid_gpu_temperature_celsius", node="gpu1", gpu="0") == 61.0
    assert value(found, "grid_resource_efficiency_ratio", node="gpu1", resource="cpu") == 0.25  # 1 core of 4 promised


def test_what_is_not_measured_has_no_series() -> None:
    found = samples(Seen(NOON, snapshots()))

    assert value(found, "grid_node_pressure_ratio", node="gpu2", resource="cpu") is None
    assert value(found, "grid_node_measurement_age_seconds", node="gpu2") is None
    assert value(found, "grid_allocation_success_ratio") is None


def test_what_is_stale_is_reported_as_stale_and_not_as_if_it_were_so_now() -> None:
    found = samples(Seen(NOON + timedelta(seconds=10), snapshots(silent=True)))

    assert value(found, "grid_node_stale", node="gpu1") == 1.0
    assert value(found, "grid_node_pressure_ratio", node="gpu1", resource="cpu") is None
    assert value(found, "grid_gpu_utilisation_ratio", node="gpu1", gpu="0") is None
    assert value(found, "grid_node_measurement_age_seconds", node="gpu1") == 10.0


def test_no_id_is_a_label_and_a_node_that_is_gone_leaves_nothing() -> None:
    seen = Seen(NOON, {"gpu2": snapshots()["gpu2"]}, leases=[lease("b7")])
    text = exposition(seen).decode()

    assert "gpu1" not in text
    assert not any(secret in text for secret in ("id-of-", "GPU-8f3c", "b7"))


def test_gpus_of_which_no_number_is_known_are_not_mixed_up() -> None:
    nameless = replace(GPU, index=None)
    answers = {"id-of-gpu1": reading(GPU, nameless, nameless)}
    taken = take_snapshots(NodeTable([node("gpu1")]), [], answers, {}, now=NOON, start_grace=timedelta(seconds=30))

    found = samples(Seen(NOON, taken))

    assert [labels for name, labels in found if name == "grid_gpu_utilisation_ratio"] == [
        (("gpu", "0"), ("node", "gpu1"))
    ]


def test_the_text_says_what_the_library_of_prometheus_would_say() -> None:
    odd = node('a "quoted" \\ name\nof two lines ä')
    taken = take_snapshots(NodeTable([odd]), [], {}, {}, now=NOON, start_grace=timedelta(seconds=30))
    runs = RunTimes()
    runs.add(5.0)
    metrics = list(all_metrics(Seen(NOON, snapshots() | taken, leases=[lease()], events={"granted": 3}, runs=runs)))

    class Given(Collector):
        def collect(self) -> list[Metric]:
            return metrics

    registry = CollectorRegistry()
    registry.register(Given())

    assert parsed(as_text(metrics)) == parsed(generate_latest(registry))


def parsed(text: bytes) -> list[Metric]:
    return list(text_string_to_metric_families(text.decode()))


def test_requests_and_their_success() -> None:
    found = samples(Seen(NOON, events={"granted": 3, "refused": 1}))

    assert value(found, "grid_boost_requests_total", outcome="refused") == 1.0
    assert value(found, "grid_allocation_success_ratio") == 0.75
    assert value(found, "grid_events_total", event="granted") == 3.0
    assert value(found, "grid_rebalancing_actions_total") == 0.0


def test_what_waits_and_for_how_long() -> None:
    shape = Shape((Bundle(amounts(cpu=100)),))
    demand = explain_demand([Pending(shape, 5)], NodeTable([node()]), {shape: NOON}, now=NOON)

    found = samples(Seen(NOON + timedelta(seconds=30), demand=demand))

    assert value(found, "grid_pending_requests", reason="infeasible") == 5.0
    assert value(found, "grid_pending_requests", reason="waiting_for_capacity") == 0.0
    assert value(found, "grid_pending_oldest_seconds") == 30.0


def test_boosts_are_counted_by_state_apart_from_leases_of_programs() -> None:
    programs = [lease("d", purpose=Purpose.RUN), lease("e", purpose=Purpose.ROLES), lease("f", purpose=Purpose.ROLES)]
    found = samples(Seen(NOON, leases=[lease("a"), lease("b"), lease("c", kind="tpu"), *programs]))

    def count(resource: str, purpose: str) -> float | None:
        labels = {"state": "active", "delivery": "transfer", "resource": resource, "purpose": purpose}
        return value(found, "grid_boosts", **labels)

    assert (count("cpu", "boost"), count("custom", "boost")) == (2.0, 1.0)
    assert (count("cpu", "run"), count("cpu", "roles")) == (1.0, 2.0)


def test_how_long_work_took_is_a_histogram() -> None:
    runs = RunTimes()
    for seconds in (0.05, 5.0, 10.0, 100_000.0):
        runs.add(seconds)

    found = samples(Seen(NOON, runs=runs))

    counts = {
        le: value(found, "grid_task_execution_seconds_bucket", le=le) for le in ("0.1", "10.0", "86400.0", "+Inf")
    }
    assert counts == {"0.1": 1.0, "10.0": 3.0, "86400.0": 3.0, "+Inf": 4.0}
    assert value(found, "grid_task_execution_seconds_count") == 4.0
    assert value(found, "grid_task_execution_seconds_sum") == 100_015.05


def test_requests_that_wait_for_a_boost_are_counted_by_priority() -> None:
    queue = [waits("w1", waited_s=60), waits("w2", waited_s=5, priority=AllocationPriority.HIGH)]
    found = samples(Seen(NOON, queue=queue))

    reported = {each: value(found, "grid_queue_requests", priority=each) for each in AllocationPriority}
    assert reported == {"low": 0, "normal": 1, "high": 1, "critical": 0}
    assert value(found, "grid_queue_oldest_seconds") == 60.0
    assert value(samples(Seen(NOON)), "grid_queue_oldest_seconds") == 0.0
