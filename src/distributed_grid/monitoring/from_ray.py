"""Measuring from this process where no controller runs, with its own probes on the cluster it is connected to."""

import asyncio

import ray

from distributed_grid.config import GridConfig
from distributed_grid.decide.monitoring.pressure import PressureCallback
from distributed_grid.decide.monitoring.snapshots import Answers
from distributed_grid.execution.ray_cluster import RayCluster
from distributed_grid.model.demand import Pending
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeName, NodeTable
from distributed_grid.model.series import ResourceTrend
from distributed_grid.model.snapshots import NodeSnapshot
from distributed_grid.monitoring.collector import Collector, settings_of
from distributed_grid.monitoring.observer import Observer
from distributed_grid.monitoring.telemetry import RayTelemetry, Telemetry

_HORIZON_S = 900.0


class RaySource:
    def __init__(self, observer: Observer, telemetry: Telemetry, config: GridConfig) -> None:
        self._observer = observer
        self._telemetry = telemetry
        self._collector = Collector(self, settings_of(config))

    @classmethod
    async def start(cls, config: GridConfig) -> "RaySource":
        address = ray.get_runtime_context().gcs_address
        source = cls(Observer(RayCluster(address), config), RayTelemetry(address), config)
        await source._collector.round(remember=False)
        source._collector.start()
        return source

    # -- what a round needs ---------------------------------------------------------------------------------

    async def nodes(self) -> NodeTable:
        return await asyncio.to_thread(self._observer.look)

    def leases(self) -> tuple[Lease, ...]:
        return ()  # without grid, nothing is lent

    async def answers(self, within_s: float) -> Answers:
        return await self._telemetry.read(dict(self._observer.naming.raylets), within_s)

    async def pending(self, nodes: NodeTable) -> tuple[Pending, ...]:
        return await self._telemetry.pending({node.node_id: node.name for node in nodes.alive})

    # -- what is known --------------------------------------------------------------------------------------

    def snapshots(self) -> dict[NodeName, NodeSnapshot]:
        return self._collector.snapshots()

    def trend(self, name: NodeName, kind: str) -> ResourceTrend:
        snapshot = self._collector.snapshots().get(name)
        known = snapshot is not None and snapshot.pressure is not None and not snapshot.stale
        return ResourceTrend(
            name,
            kind,
            current=snapshot.pressure.own(kind) if known and snapshot and snapshot.pressure else None,
            per_minute={window: one.per_minute for window, one in self._collector.trends(name, kind).items()},
            forecast=self._collector.forecast(name, kind, _HORIZON_S),
        )

    def waiting(self) -> int:
        return sum(demand.pending.count for demand in self._collector.demand)

    async def changes(self, tell: PressureCallback) -> None:
        stop = self._collector.on_pressure(tell)
        try:
            await asyncio.Event().wait()
        finally:
            stop()

    async def close(self) -> None:
        await self._collector.stop()
        await self._telemetry.leave()
