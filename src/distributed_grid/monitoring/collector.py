"""Collects in rounds: read every probe, build snapshots, record them, and report changes of pressure."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from distributed_grid import threads
from distributed_grid.config import GpuInUse, GridConfig
from distributed_grid.decide.monitoring.demand import explain_demand, seen_since
from distributed_grid.decide.monitoring.measured import measured_use
from distributed_grid.decide.monitoring.pressure import (
    Pressed,
    PressureCallback,
    PressureChange,
    Threshold,
    pressure_changes,
)
from distributed_grid.decide.monitoring.snapshots import Answers, take_snapshots
from distributed_grid.decide.monitoring.trends import WINDOWS, Trend, trend
from distributed_grid.loops import Loop
from distributed_grid.model.demand import Demand, Pending, Shape
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import Hardware, MeasuredUse, NodeId, NodeName, NodeTable
from distributed_grid.model.resources import BUILT_IN
from distributed_grid.model.series import Recorded
from distributed_grid.model.snapshots import NodeSnapshot
from distributed_grid.monitoring.forecasting import Forecast, NodeForecasts, forecaster_maker
from distributed_grid.monitoring.history import History, Sample
from distributed_grid.monitoring.views import aged

# While a probe is starting, the next round comes soon. After a probe did not answer, a few rounds come soon. After
# that, rounds follow the normal interval.
_SOON_S: Final = 1.0
_SOON_TIMES: Final = 5
_EARLY_S: Final = 0.01  # timers may fire a moment early
_LEAST_S: Final = 2.0  # a probe on a busy machine needs that long, whatever the interval is
_LATE: Final = 2.5  # after so many intervals, a measured value is no longer shown as current


class Sources(Protocol):
    """Where a round gets its facts."""

    async def nodes(self) -> NodeTable: ...
    def leases(self) -> tuple[Lease, ...]: ...
    async def answers(self, within_s: float) -> Answers: ...
    async def pending(self, nodes: NodeTable) -> tuple[Pending, ...]: ...


@dataclass(frozen=True, slots=True)
class Settings:
    interval_s: float
    thresholds: Mapping[str, Threshold]
    forecaster: str = "built-in"
    withholds_gpus: bool = True
    """Whether a GPU that other programs use is not lent."""
    one_machine: bool = False
    """All nodes run on one machine, as in an embedded cluster. Also true while only the first node is up."""

    @property
    def within_s(self) -> float:
        """How long a round waits for the slowest probe."""
        return min(5.0, max(_LEAST_S, self.interval_s / 2))

    @property
    def keeps_for_s(self) -> float:
        """How long a measurement counts."""
        return _LATE * max(_LEAST_S, self.interval_s)

    @property
    def start_grace(self) -> timedelta:
        return timedelta(seconds=max(30.0, 3 * self.interval_s))


def settings_of(config: GridConfig) -> Settings:
    sharing = config.resource_sharing
    limits = sharing.thresholds
    return Settings(
        float(sharing.monitoring_interval_seconds),
        {
            kind: Threshold(
                low=float(getattr(limits, f"{kind}_pressure_low")), high=float(getattr(limits, f"{kind}_pressure_high"))
            )
            for kind in BUILT_IN
        },
        forecaster=str(sharing.forecaster),
        withholds_gpus=sharing.gpu_in_use is GpuInUse.REFUSE,
        one_machine=config.embedded,
    )


class Collector:
    """The latest snapshots, their history, and pending demand. `start` keeps all current; `round` updates them once."""

    def __init__(
        self, sources: Sources, settings: Settings, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._sources = sources
        self._settings = settings
        self._now = now
        self._snapshots: dict[NodeName, NodeSnapshot] = {}
        self._since: dict[Shape, datetime] = {}
        self._pressed: Pressed = frozenset()
        self._callbacks: list[PressureCallback] = []
        self._maker = forecaster_maker(settings.forecaster)
        self._forecasts = NodeForecasts(self._maker)
        self._learning: asyncio.Task[None] | None = None
        self.history = History(settings.interval_s)
        self.demand: tuple[Demand, ...] = ()
        self.took_s: float | None = None
        """How long the last round took."""
        self._loop = Loop("measuring", self._turn, self._pause)
        self._due = -math.inf
        """When the next regular round is due, by the event loop's clock."""
        self._rounds = 0
        """How many rounds there were since the last regular one, including it."""

    # -- rounds ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Make rounds at the interval until `stop`. A round that fails is logged, and the next one tries again."""
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()
        if self._learning is not None:
            self._learning.cancel()

    async def _turn(self) -> None:
        now = asyncio.get_running_loop().time()
        regular = now >= self._due - _EARLY_S
        if regular:
            self._due, self._rounds = now + self._settings.interval_s, 0
        self._rounds += 1
        await self.round(remember=regular)

    def _pause(self) -> float:
        pause = max(0.0, self._due - asyncio.get_running_loop().time())
        return min(pause, _SOON_S) if self._is_unsure() else pause

    def _is_unsure(self) -> bool:
        """Whether the next round should come before the normal interval has passed."""
        states = {snapshot.state for snapshot in self._snapshots.values()}
        return "starting" in states or (self._rounds <= _SOON_TIMES and (not states or "stale" in states))

    async def round(self, *, remember: bool = True) -> None:
        """Measure everything once. `remember`: add the result to the history."""
        began = time.perf_counter()
        nodes = await self._sources.nodes()
        answers = await self._sources.answers(self._settings.within_s)
        now = self._now()
        self._take(nodes, answers, now)
        if remember:
            self._remember(now)
        changes, self._pressed = pressure_changes(self._snapshots.values(), self._pressed, self._settings.thresholds)
        try:
            await self._ask_what_waits(nodes)  # last: if this fails, the nodes have been measured all the same
        finally:
            self.took_s = time.perf_counter() - began
            self._tell(changes)

    def _tell(self, changes: tuple[PressureChange, ...]) -> None:
        """Call every callback, even after one has failed, then raise the failures together."""
        failures: list[Exception] = []
        for change in changes:
            for callback in tuple(self._callbacks):
                try:
                    callback(change)
                except Exception as error:  # noqa: BLE001 - user code
                    failures.append(error)
        if failures:
            raise ExceptionGroup("pressure callbacks failed", failures)

    def _take(self, nodes: NodeTable, answers: Answers, now: datetime) -> None:
        self._snapshots = take_snapshots(
            nodes,
            self._sources.leases(),
            answers,
            self._snapshots,
            now=now,
            start_grace=self._settings.start_grace,
            one_machine=self._settings.one_machine,
        )

    async def _ask_what_waits(self, nodes: NodeTable) -> None:
        pending = await self._sources.pending(nodes)
        now = self._now()
        self._since = seen_since(pending, self._since, now=now)
        self.demand = explain_demand(pending, nodes, self._since, now=now)

    def _remember(self, now: datetime) -> None:
        samples = {name: _sample(snapshot) for name, snapshot in self._snapshots.items()}
        for kept in (self.history, self._forecasts):
            kept.keep_only(samples)
        self.history.record(now.timestamp(), samples)
        if self._learning is None or self._learning.done():  # else they learn it from the history
            self._forecasts.observe(now.timestamp(), samples)

    def restore(self, past: Recorded) -> None:
        """Begin with the measurements of an earlier process, before the first round.

        The forecasts learn from them in a thread, which takes seconds for hundreds of nodes.
        """
        recent = self.history.restore(past, now=self._now().timestamp())
        if recent.times.size:
            self._learning = asyncio.create_task(self._learn(recent))

    async def _learn(self, past: Recorded) -> None:
        learnt = NodeForecasts(self._maker)
        await threads.ENGINE.run(learnt.learn, past)
        learnt.learn(self.history.recorded().after(float(past.times[-1])))  # what was measured meanwhile
        self._forecasts = learnt

    # -- what is known --------------------------------------------------------------------------------------

    def snapshots(self) -> dict[NodeName, NodeSnapshot]:
        """The latest snapshot of every live node. One that is too old by now is stale."""
        now = self._now()
        return {name: aged(snapshot, now, self._settings.keeps_for_s) for name, snapshot in self._snapshots.items()}

    def silent(self) -> dict[str, str]:
        """Node id -> why there is no recent measurement. These nodes lend nothing."""
        return {s.node_id: s.stale_because for s in self.snapshots().values() if s.stale}

    def in_use(self) -> dict[NodeId, MeasuredUse]:
        """Measured use on nodes beyond what Ray counts. Nodes without any are left out."""
        found = {
            s.node_id: measured_use(s, self._settings.thresholds, withholds_gpus=self._settings.withholds_gpus)
            for s in self.snapshots().values()
        }
        return {node_id: use for node_id, use in found.items() if use.warnings}

    def hardware(self) -> dict[NodeId, Hardware]:
        """The hardware of every node whose probe has ever answered."""
        measured = {s.node_id: s.measured.host for s in self._snapshots.values() if s.measured is not None}
        return {node_id: Hardware(host.cpus, host.memory_total) for node_id, host in measured.items()}

    def trends(self, name: NodeName, kind: str) -> dict[str, Trend]:
        """By window: the last 5 minutes, 15 minutes and hour."""
        series, now = self.history.of(name, kind), self._now().timestamp()
        return {
            window: trend(series, seconds, now=now, interval_s=self._settings.interval_s)
            for window, seconds in WINDOWS.items()
        }

    def forecast(self, name: NodeName, kind: str, horizon_s: float) -> Forecast | None:
        """None if there is no measurement yet."""
        return self._forecasts.of(name, kind, now=self._now().timestamp(), horizon_s=horizon_s)

    @property
    def pressed(self) -> Pressed:
        return self._pressed

    @property
    def thresholds(self) -> Mapping[str, Threshold]:
        return self._settings.thresholds

    def is_pressed(self, name: NodeName, kind: str) -> bool:
        return (name, kind) in self._pressed

    def on_pressure(self, callback: PressureCallback) -> Callable[[], None]:
        """Call `callback` when a node comes under pressure and when it is relieved. Returns a function that ends
        this."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)


def _sample(snapshot: NodeSnapshot) -> Sample:
    """The sample that one round adds to a node's series. A stale snapshot adds nothing: its values were recorded
    before."""
    logical = {f"logical_{kind}": _used_part(snapshot, kind) for kind in BUILT_IN}
    if snapshot.pressure is None or snapshot.stale:
        return logical
    return {kind: snapshot.pressure.own(kind) for kind in BUILT_IN} | logical


def _used_part(snapshot: NodeSnapshot, kind: str) -> float | None:
    total = snapshot.total[kind]
    return snapshot.used[kind] / total if total else None
