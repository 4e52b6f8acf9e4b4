"""Measuring, beside the boosts: rounds of the collector on the engine's own look at the cluster."""

import asyncio
from typing import Any

from distributed_grid.decide.hysteresis import PressureChange
from distributed_grid.decide.snapshots import Answers
from distributed_grid.model.demand import Pending
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeTable
from distributed_grid.monitoring.collector import Collector, settings_of
from distributed_grid.monitoring.senses import Senses
from distributed_grid.orchestration.logs import logger
from distributed_grid.orchestration.parts import Parts

log = logger()


class Watching:
    """The collector at work for one engine; it tells the journal about pressure, and the observer what it knows."""

    def __init__(self, parts: Parts, senses: Senses) -> None:
        self._p = parts
        self._senses = senses
        self.collector = Collector(_EngineSources(parts, senses), settings_of(parts.config), parts.now)
        self.collector.on_pressure(self._note)
        parts.observer.silent = self.collector.silent
        parts.observer.hardware = lambda _: self.collector.hardware()
        parts.observer.in_use = self.collector.in_use
        parts.forecast = self.collector.forecast
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self.collector.run(self._stopping, self._failed))

    async def stop(self) -> None:
        self._stopping.set()
        if self._task is not None:
            await self._task

    async def leave(self) -> None:
        """Grid goes, and so do its probes."""
        await self.stop()
        await self._senses.leave()

    def _note(self, change: PressureChange) -> None:
        details: dict[str, Any] = {"node": change.node, "resource_type": change.kind, "value": change.value}
        if change.is_high:
            self._p.journal.note("pressure_high", change.describe(), **details)
        else:
            self._p.journal.note("pressure_low", change.describe(), **details)

    def _failed(self, error: Exception) -> None:
        log.error("a round of measuring failed; the next one tries again", error=repr(error))


class _EngineSources:
    def __init__(self, parts: Parts, senses: Senses) -> None:
        self._p = parts
        self._senses = senses

    async def nodes(self) -> NodeTable:
        return await self._p.look()

    def leases(self) -> tuple[Lease, ...]:
        return self._p.ledger.snapshot()

    async def answers(self, nodes: NodeTable, within_s: float) -> Answers:
        return await self._senses.read(dict(self._p.observer.naming.raylets), within_s)

    async def pending(self, nodes: NodeTable) -> tuple[Pending, ...]:
        return await self._senses.pending({node.node_id: node.name for node in nodes.alive})
