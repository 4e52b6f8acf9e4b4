"""`/metrics` for Prometheus, built from the latest snapshots on each scrape: a node that is gone leaves no series.

Base units (seconds, bytes, ratios, cores); nodes, kinds and states are labels, ids never. The text is written here:
`prometheus_client` checks every name and label of every sample again, which took a third of a second for a thousand
nodes with eight GPUs each.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Final

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from distributed_grid.decide.scheduler.confidence import Outcome, base_rate_brier, brier
from distributed_grid.model.demand import Demand, WaitReason
from distributed_grid.model.leases import Lease
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.requests import Waiting
from distributed_grid.model.resources import BUILT_IN, CPU, GPU, MEMORY, ResourceVector, scale
from distributed_grid.model.series import RunTimes
from distributed_grid.model.snapshots import GpuReading, NodeSnapshot, Reading


def as_text(metrics: Iterable[Metric]) -> bytes:
    lines = []
    for metric in metrics:
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        lines.append(f"# HELP {name} {_escaped(metric.documentation)}\n# TYPE {name} {metric.type}\n")
        for sample in metric.samples:
            labels = ",".join([f'{label}="{_quoted(value)}"' for label, value in sample.labels.items()])
            where = f"{{{labels}}}" if labels else ""
            lines.append(f"{sample.name}{where} {float(sample.value)!r}\n")
    return "".join(lines).encode()


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


@lru_cache(maxsize=4096)  # mostly the names of nodes
def _quoted(value: str) -> str:
    return _escaped(value).replace('"', r"\"")


_CAPACITY: Final = {CPU: "cpu_cores", MEMORY: "memory_bytes", GPU: "gpu_devices"}
_BOTH: Final[tuple[tuple[str, str, Callable[[Reading], float], Callable[[Reading], float]], ...]] = (
    ("cpu_used_cores", "Cores busy", lambda m: m.host.cpu_used, lambda m: m.own.cpu_used),
    ("memory_used_bytes", "Memory in use", lambda m: m.host.memory_used, lambda m: m.own.memory_used),
)
_HOST: Final[tuple[tuple[str, str, Callable[[Reading], float]], ...]] = (
    ("cpu_cores", "Cores that a node's machine may use", lambda m: m.host.cpus),
    ("memory_bytes", "Memory that a node's machine may use", lambda m: m.host.memory_total),
    ("swap_used_bytes", "Swap in use on a node's machine", lambda m: m.host.swap_used),
    ("load1", "Load average of a node's machine over a minute", lambda m: m.host.load[0]),
)
_GPU: Final[tuple[tuple[str, str, Callable[[GpuReading], float | None]], ...]] = (
    ("utilisation_ratio", "Part of the time in which a GPU ran something", lambda g: g.utilisation),
    ("memory_used_bytes", "Memory of a GPU in use", lambda g: g.memory_used),
    ("memory_bytes", "Memory of a GPU", lambda g: g.memory_total),
    ("temperature_celsius", "Temperature of a GPU", lambda g: g.temperature_c),
)
_AMOUNTS: Final = ("base", "total", "free", "lent", "borrowed")


@dataclass(frozen=True, slots=True)
class Seen:
    """The data for the metrics, at one instant."""

    now: datetime
    snapshots: Mapping[str, NodeSnapshot] = field(default_factory=dict)
    demand: Sequence[Demand] = ()
    leases: Sequence[Lease] = ()
    events: Mapping[str, int] = field(default_factory=dict)
    """How often each kind of event was noted since the controller started."""
    collecting_s: float | None = None
    """How long the last round of measuring took."""
    runs: RunTimes = field(default_factory=RunTimes)
    queue: Sequence[Waiting] = ()
    """Requests for boosts that wait for their turn."""
    windows: int = 0
    """Promises of capacity in advance."""
    decisions: Mapping[str, int] = field(default_factory=dict)
    """Decisions about tasks: accepted, queued, rejected."""
    outcomes: Sequence[Outcome] = ()
    """Predictions for placements, and their outcomes."""


def exposition(seen: Seen) -> bytes:
    """All metrics as text, in Prometheus' format."""
    return as_text(all_metrics(seen))


_PROCESS: Final = ProcessCollector(registry=None, namespace="grid_controller")


def all_metrics(seen: Seen) -> Iterator[Metric]:
    snapshots = [snapshot for _, snapshot in sorted(seen.snapshots.items())]
    yield from _capacity(snapshots)
    yield from _measured(snapshots, seen.now)
    yield from _gpus(snapshots)
    yield from _waiting(seen.demand, seen.now)
    yield from _lending(seen.leases, seen.events)
    yield from _queue(seen.queue, seen.now)
    yield GaugeMetricFamily("grid_windows", "Windows: promises of capacity in advance", seen.windows)
    missed = CounterMetricFamily("grid_windows_missed", "Windows that ended before they got their capacity")
    missed.add_metric([], seen.events.get("window_missed", 0))
    yield missed
    yield from _scheduling(seen.decisions, seen.outcomes)
    yield _gauge("grid_collecting_seconds", "Duration of the last round of measuring", [], [((), seen.collecting_s)])
    times = HistogramMetricFamily("grid_task_execution_seconds", "How long work that grid ran took, as reported")
    times.add_metric([], [*seen.runs.buckets()], seen.runs.total_s)
    yield times
    yield from _PROCESS.collect()


def _gauge(name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float | None]]) -> Metric:
    """A gauge of the known values; an unknown value has no sample, rather than a zero."""
    gauge = GaugeMetricFamily(name, text, labels=labels)
    for at, value in values:
        if value is not None:
            gauge.add_metric(at, value)
    return gauge


def _capacity(snapshots: Sequence[NodeSnapshot]) -> Iterator[Metric]:
    yield _gauge("grid_node_up", "1 for every node of the cluster", ["node"], (((s.name,), 1.0) for s in snapshots))
    for kind, unit in _CAPACITY.items():
        yield _gauge(
            f"grid_node_{unit}",
            f"Ray's {kind} of a node: what it started with, offers, has free, has lent and was lent",
            ["node", "amount"],
            (((s.name, name), _in_base_units(kind, getattr(s, name))) for s in snapshots for name in _AMOUNTS),
        )


def _in_base_units(kind: str, amounts: ResourceVector) -> float:
    return amounts[kind] / (1 if kind == MEMORY else scale(kind))


def _measured(snapshots: Sequence[NodeSnapshot], now: datetime) -> Iterator[Metric]:
    yield _gauge(
        "grid_node_stale",
        "1 if a node's probe has stopped answering, else 0",
        ["node"],
        (((s.name,), float(s.stale)) for s in snapshots),
    )
    yield _gauge(
        "grid_node_measurement_age_seconds",
        "Age of a node's last measurement",
        ["node"],
        (((s.name,), None if (age := s.age(now)) is None else age.total_seconds()) for s in snapshots),
    )
    # Stale measurements are not reported as current.
    current = [(s, s.measured) for s in snapshots if s.measured is not None and not s.stale]
    yield _gauge(
        "grid_node_pressure_ratio",
        "Pressure of a node, 0 to 1; no series without a measurement",
        ["node", "resource"],
        (
            ((s.name, kind), getattr(s.pressure, kind))
            for s, _ in current
            if s.pressure is not None
            for kind in (*BUILT_IN, "overall")
        ),
    )
    for name, text, host, own in _BOTH:
        yield _gauge(
            f"grid_node_measured_{name}",
            f"{text}: on the node's machine, and by the node's own processes",
            ["node", "of"],
            (((s.name, of), value(m)) for s, m in current for of, value in (("host", host), ("own", own))),
        )
    for name, text, value in _HOST:
        yield _gauge(f"grid_host_{name}", text, ["node"], (((s.name,), value(m)) for s, m in current))
    yield _gauge(
        "grid_resource_efficiency_ratio",
        "Of what Ray has promised to work on a node, the part that the node's own processes use",
        ["node", "resource"],
        (
            ((s.name, kind), ratio)
            for s, m in current
            for kind, used in ((CPU, m.own.cpu_used * scale(CPU)), (MEMORY, float(m.own.memory_used)))
            if (ratio := _ratio(used, s.used[kind])) is not None
        ),
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _gpus(snapshots: Sequence[NodeSnapshot]) -> Iterator[Metric]:
    # A device without a known number has no stable label.
    known = [(s.name, g) for s in snapshots if s.measured and not s.stale for g in s.measured.gpus]
    found = [((node, str(g.index)), g) for node, g in known if g.index is not None]
    for name, text, value in _GPU:
        yield _gauge(f"grid_gpu_{name}", text, ["node", "gpu"], ((at, value(gpu)) for at, gpu in found))


def _waiting(demand: Sequence[Demand], now: datetime) -> Iterator[Metric]:
    yield _gauge(
        "grid_pending_requests",
        "Tasks, actors and placement groups that wait for room",
        ["reason"],
        (((str(reason),), float(sum(d.pending.count for d in demand if d.reason is reason))) for reason in WaitReason),
    )
    oldest = max((d.waited(now).total_seconds() for d in demand), default=0.0)
    yield GaugeMetricFamily("grid_pending_oldest_seconds", "How long the oldest of them has been seen waiting", oldest)


def _kind(lease: Lease) -> str:
    return lease.kind if lease.kind in BUILT_IN else "custom"


def _lending(leases: Sequence[Lease], events: Mapping[str, int]) -> Iterator[Metric]:
    counts = Counter(
        (
            lease.state.shown,
            str(lease.delivery),
            _kind(lease),
            str(lease.purpose),
        )
        for lease in leases
        if not lease.grows
    )
    yield _gauge(
        "grid_boosts",
        "Number of leases: boosts have the purpose boost, the others belong to programs",
        ["state", "delivery", "resource", "purpose"],
        ((key, float(count)) for key, count in sorted(counts.items())),
    )
    idle = Counter(
        (str(lease.delivery), _kind(lease)) for lease in leases if lease.idle is not None and not lease.grows
    )
    yield _gauge(
        "grid_boosts_idle",
        "Number of leases that their work does not use",
        ["delivery", "resource"],
        ((key, float(count)) for key, count in sorted(idle.items())),
    )
    elastic = [lease for lease in leases if lease.elastic is not None]
    least = sum(lease.resources[CPU] for lease in elastic)
    grown = sum(lease.capacity[CPU] for lease in elastic) - least
    yield _gauge(
        "grid_elastic_cpu_cores",
        "CPUs of elastic leases: what they always have, and what they have grown by",
        ["part"],
        (((part,), units / scale(CPU)) for part, units in (("least", least), ("grown", grown))),
    )
    granted, refused = events.get("granted", 0), events.get("refused", 0)
    yield _counter("grid_boost_requests", "Requests for boosts", "outcome", {"granted": granted, "refused": refused})
    yield _gauge(
        "grid_allocation_success_ratio",
        "Of all requests since the controller started, the part that was granted; no series before the first",
        [],
        [((), _ratio(granted, granted + refused))],
    )
    yield _counter("grid_events", "Events by kind", "event", dict(sorted(events.items())))
    rebalanced = CounterMetricFamily("grid_rebalancing_actions", "Grid's automatic actions")
    rebalanced.add_metric([], events.get("rebalanced", 0))
    yield rebalanced


def _queue(queue: Sequence[Waiting], now: datetime) -> Iterator[Metric]:
    counts = {str(priority): sum(each.ask.priority is priority for each in queue) for priority in AllocationPriority}
    yield _gauge(
        "grid_queue_requests",
        "Requests for boosts that wait for their turn",
        ["priority"],
        (((priority,), float(count)) for priority, count in counts.items()),
    )
    oldest = max((max(0.0, (now - each.since).total_seconds()) for each in queue), default=0.0)
    yield GaugeMetricFamily("grid_queue_oldest_seconds", "How long the oldest of them has waited", oldest)


def _scheduling(decisions: Mapping[str, int], outcomes: Sequence[Outcome]) -> Iterator[Metric]:
    yield _counter("grid_scheduling_decisions", "Decisions about tasks", "result", decisions)
    for name, text, value in (
        ("brier", "Brier score of the confidence in tasks' places: 0 is best", brier(outcomes)),
        ("base_rate_brier", "Brier score of always predicting the base rate", base_rate_brier(outcomes)),
    ):
        yield _gauge(f"grid_scheduling_{name}_score", text, [], [((), value)])


def _counter(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    counter = CounterMetricFamily(name, text, labels=[label])
    for value, count in counts.items():
        counter.add_metric([value], count)
    return counter
