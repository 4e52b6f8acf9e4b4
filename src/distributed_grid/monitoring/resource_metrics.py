"""The use of every node and its trend, from Python.

Where a controller runs, this is its client, and the controller has the probes, the history and the forecasts. Where
none runs, this process starts the probes; it must then be connected to Ray, and `stop` ends them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol, TypedDict

from distributed_grid.client import GridClient
from distributed_grid.config import ConfigLike, loaded_config
from distributed_grid.decide.monitoring.pressure import PressureCallback, PressureChange
from distributed_grid.errors import GridError, NoCluster
from distributed_grid.loops import Loop
from distributed_grid.model.codec import ANSWERS, PLAIN
from distributed_grid.model.nodes import NodeName, node_named
from distributed_grid.model.resources import BUILT_IN, CPU, kind_of, total
from distributed_grid.model.series import Accuracy, Forecast, ResourceTrend
from distributed_grid.model.snapshots import NodeSnapshot, Pressure
from distributed_grid.model.times import parse_instant
from distributed_grid.monitoring.views import snapshots_from
from distributed_grid.store.home import GridHome

if TYPE_CHECKING:
    from distributed_grid.wire.audit import Event
    from distributed_grid.wire.nodes import NodeForecast, NodePressure
    from distributed_grid.wire.values import Amounts

__all__ = ["ClusterSummary", "NodeSnapshot", "PressureChange", "ResourceMetricsCollector", "ResourceTrend"]


class ClusterSummary(TypedDict):
    nodes: int
    stale_nodes: list[str]
    total: Amounts
    used: Amounts
    free: Amounts
    lent: Amounts
    pressure: dict[str, float | None]
    """The mean over the measured nodes: overall, cpu, memory, gpu."""
    most_pressed: str | None
    pending_requests: int


class MetricsSource(Protocol):
    """Where the data comes from: a running controller, or this process."""

    def snapshots(self) -> dict[NodeName, NodeSnapshot]: ...
    def trend(self, name: NodeName, kind: str) -> ResourceTrend: ...
    def waiting(self) -> int: ...
    async def changes(self, tell: PressureCallback) -> None:
        """Report every change of pressure, until cancelled."""

    async def close(self) -> None: ...


class ResourceMetricsCollector:
    """Snapshots, trends, a summary, and callbacks when nodes come under pressure.

    `cluster_config` is a loaded configuration or a path. It is used only where no controller runs.
    """

    def __init__(self, cluster_config: ConfigLike = None, *, home: GridHome | None = None) -> None:
        self._config = cluster_config
        self._home = home
        self._source: MetricsSource | None = None
        self._callbacks: list[PressureCallback] = []
        self._telling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start measuring; returns after the first measurement. A second call changes nothing."""
        if self._source is None:
            self._source = await _source(self._config, self._home or GridHome.find())
            self._telling = asyncio.create_task(self._source.changes(self._tell))

    async def stop(self) -> None:
        source, self._source = self._source, None
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
        if source is not None:
            await source.close()

    async def __aenter__(self) -> ResourceMetricsCollector:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def get_all_latest_snapshots(self) -> dict[NodeName, NodeSnapshot]:
        """The snapshot of every live node. A node that has stopped answering is stale, and says since when."""
        return self._started.snapshots()

    def get_latest_snapshot(self, node_id: NodeName) -> NodeSnapshot | None:
        """One node's snapshot, by its name or its Ray id; None if it is not in the cluster."""
        found = self._started.snapshots()
        return found.get(node_id) or next((s for s in found.values() if s.node_id == node_id), None)

    def get_resource_trend(self, node_id: NodeName, resource_type: str) -> ResourceTrend:
        """How one kind of pressure (cpu, memory or gpu) on one node develops."""
        kind = kind_of(str(resource_type))
        snapshot = self.get_latest_snapshot(node_id) or node_named(self._started.snapshots(), node_id)
        return self._started.trend(snapshot.name, kind)

    def get_cluster_summary(self) -> ClusterSummary:
        """The whole cluster at a glance: capacity, usage, pressure on the nodes, and pending demand."""
        snapshots = self._started.snapshots()
        measured = {name: s.pressure for name, s in snapshots.items() if s.pressure is not None and not s.stale}
        nodes = snapshots.values()
        return {
            "nodes": len(snapshots),
            "stale_nodes": sorted(name for name, s in snapshots.items() if s.stale),
            "total": total([s.total for s in nodes]).to_amounts(),
            "used": total([s.used for s in nodes]).to_amounts(),
            "free": total([s.free for s in nodes]).to_amounts(),
            "lent": total([s.lent for s in nodes]).to_amounts(),
            "pressure": {
                kind: _mean([value for p in measured.values() if (value := getattr(p, kind)) is not None])
                for kind in ("overall", *BUILT_IN)
            },
            # Nodes on one machine all show the machine's load: of these, the one that does the most itself counts.
            "most_pressed": max(measured, key=lambda n: (measured[n].overall, measured[n].own(CPU), n), default=None),
            "pending_requests": self._started.waiting(),
        }

    def add_pressure_callback(self, callback: PressureCallback) -> None:
        """Call this when a node comes under pressure (high threshold) and when it is relieved (low threshold)."""
        self._callbacks.append(callback)

    def remove_pressure_callback(self, callback: PressureCallback) -> None:
        self._callbacks.remove(callback)

    def _tell(self, change: PressureChange) -> None:
        for callback in tuple(self._callbacks):
            try:
                callback(change)
            except Exception as error:  # noqa: BLE001 - user code, and the other callbacks still run
                said = {"message": f"a pressure callback failed: {change.describe()}", "exception": error}
                asyncio.get_running_loop().call_exception_handler(said)

    @property
    def _started(self) -> MetricsSource:
        if self._source is None:
            raise NoCluster("The collector was not started", try_next="await collector.start()")
        return self._source


def _mean(values: list[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


async def _source(config: ConfigLike, home: GridHome) -> MetricsSource:
    if home.controller.exists() or home.login.exists():
        client = GridClient(home)
        try:
            return await ControllerSource.start(client)
        except NoCluster:  # a record of a cluster that is gone
            client.close()
        except GridError:
            client.close()
            raise
    import ray

    if not ray.is_initialized():
        raise NoCluster(
            "No cluster is running",
            because=["no controller answers, and this process is not connected to Ray"],
            try_next="Start one with `grid cluster start`, or call ray.init(address=...) first.",
        )
    from distributed_grid.monitoring.from_ray import RaySource

    return await RaySource.start(loaded_config(config))


LOOK_EVERY_S: Final = 1.0
_EVENTS: Final = {"pressure_high": True, "pressure_low": False}


class ControllerSource:
    """The measurements of a running controller, read over HTTP."""

    def __init__(self, client: GridClient, after: int) -> None:
        """`after`: the number of the last event that need not be reported."""
        self._client = client
        self._after = after

    @classmethod
    async def start(cls, client: GridClient) -> ControllerSource:
        """Events from now on are reported."""
        events = await asyncio.to_thread(client.events)
        return cls(client, events[-1]["number"] if events else 0)

    def snapshots(self) -> dict[NodeName, NodeSnapshot]:
        return snapshots_from(self._client.nodes())

    def trend(self, name: NodeName, kind: str) -> ResourceTrend:
        found = self._client.node(name)
        pressure = found["pressure"] if found["state"] == "ok" else None
        return ResourceTrend(
            name,
            kind,
            current=None if pressure is None else _own(pressure, kind),
            per_minute={window: one["per_minute"] for window, one in found["trends"].get(kind, {}).items()},
            forecast=_forecast(found["forecast"].get(kind), found["measured_at"]),
        )

    def waiting(self) -> int:
        return sum(one["count"] for one in self._client.demand()["demand"])

    async def changes(self, tell: PressureCallback) -> None:
        await Loop("looking for changes of pressure", lambda: self._tell_news(tell), lambda: LOOK_EVERY_S).run()

    async def _tell_news(self, tell: PressureCallback) -> None:
        # Ask for one event more than is new. A controller that does not have it is a new one, and numbers from the
        # beginning.
        try:
            events = await asyncio.to_thread(self._client.events, max(0, self._after - 1))
        except GridError:
            return  # the controller may be restarting
        if not events:
            self._after = 0
        for event in events:
            if event["number"] > self._after:
                self._after = event["number"]
                self._tell(event, tell)

    def _tell(self, event: Event, tell: PressureCallback) -> None:
        if event["event"] in _EVENTS and event["node"] is not None:
            kind, value = event["details"]["resource_type"], event["details"]["value"]
            assert isinstance(kind, str) and isinstance(value, float | int), "what `pressure_events` notes"
            tell(PressureChange(event["node"], kind, value, is_high=_EVENTS[event["event"]]))

    async def close(self) -> None:
        self._client.close()


def _forecast(data: NodeForecast | None, measured_at: str | None) -> Forecast | None:
    if data is None or measured_at is None:
        return None
    accuracy = data["accuracy"]
    return Forecast(
        made_at=parse_instant(measured_at).timestamp(),
        horizon_s=data["horizon_seconds"],
        value=data["value"],
        low=data["low"],
        high=data["high"],
        confidence=data["confidence"],
        accuracy=None if accuracy is None else PLAIN.decode(Accuracy, accuracy),
        enough_history=data["enough_history"],
    )


def _own(pressure: NodePressure, kind: str) -> float | None:
    """The value that trends are computed from; see `Pressure.own`."""
    return ANSWERS.decode(Pressure, pressure).own(kind)
