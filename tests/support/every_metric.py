"""Everything that `/metrics` can tell: at least one sample of every series."""

from collections.abc import Iterator
from datetime import timedelta

from builders import NOON, amounts, lease, node, reading, waits
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from distributed_grid.controller.metrics import Seen, exposition
from distributed_grid.decide.monitoring.demand import explain_demand
from distributed_grid.decide.monitoring.snapshots import take_snapshots
from distributed_grid.decide.scheduler.confidence import Outcome, Predicted
from distributed_grid.model.demand import Bundle, Pending, Shape
from distributed_grid.model.leases import Idle, LeaseState
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.resources import GB
from distributed_grid.model.snapshots import GpuReading


def every_metric() -> Iterator[Metric]:
    gpu = GpuReading(0, "GPU-8f3c", "H200", 0.5, 140 * GB, 35 * GB, 61.0)
    nodes = NodeTable([node("gpu1", gpus=1, used=amounts(cpu=4, memory=8))])
    grace = timedelta(seconds=30)
    seen = Seen(
        NOON,
        take_snapshots(nodes, [], {"id-of-gpu1": reading(gpu)}, {}, now=NOON, start_grace=grace),
        explain_demand([Pending(Shape((Bundle(amounts(cpu=100)),)), 5)], nodes, {}, now=NOON),
        [lease("idle", idle=Idle(NOON, yields=False)), *(lease(str(state), state=state) for state in LeaseState)],
        {"granted": 1, "refused": 1},
        collecting_s=0.1,
        queue=[waits()],
        decisions={"accepted": 3, "queued": 1, "rejected": 1},
        outcomes=[Outcome(Predicted(0.8, 0.7), happened=True), Outcome(Predicted(0.3, 0.4), happened=False)],
    )
    yield from text_string_to_metric_families(exposition(seen).decode())
