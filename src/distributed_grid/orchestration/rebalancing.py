"""The loop that shares when nobody asks: it observes, decides, and does a few things, each of which says why."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import datetime

from distributed_grid.decide.rebalancing import OWN_LEASE_S, Forecasts, Observed, Streaks, rebalance
from distributed_grid.errors import GridError
from distributed_grid.model.actions import Action
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.resources import BUILT_IN
from distributed_grid.monitoring.collector import Collector
from distributed_grid.orchestration.boost_service import BoostService
from distributed_grid.orchestration.logs import logger
from distributed_grid.orchestration.parts import Parts
from distributed_grid.orchestration.rebalancing_acts import Hands
from distributed_grid.orchestration.rules_in_force import numbers, rules_of_one_look
from distributed_grid.orchestration.suggesting import Suggestions

log = logger()

_HORIZON_S = OWN_LEASE_S / 2
"""What is expected for the middle of a lease that would be made now."""

_ALIKE_S = 300.0


class Rebalancing:
    """Runs beside the upkeep and the measuring, on the same parts."""

    def __init__(self, parts: Parts, service: BoostService, collector: Collector) -> None:
        self._p = parts
        self._collector = collector
        self._hands = Hands(parts, service)
        self._streaks: Streaks = {}
        self._seen_at: datetime | None = None
        self.suggestions = Suggestions(parts, collector)
        self._stopping = asyncio.Event()
        self._one_round = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._p.config.resource_sharing.enabled:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End after the present round."""
        self._stopping.set()
        if self._task is not None:
            await self._task

    @contextlib.asynccontextmanager
    async def at_rest(self) -> AsyncIterator[None]:
        """While everything is given back, nothing new is lent; nor ever after, if that went well."""
        async with self._one_round:
            yield
            self._stopping.set()

    async def _run(self) -> None:
        interval_s = float(self._p.config.resource_sharing.rebalance_interval_seconds)
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._stopping.wait()
                    return
            try:
                await self.round()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next round looks again
                log.error("a round of rebalancing failed; the next one tries again", error=repr(error))

    async def round(self) -> tuple[Action, ...]:
        """Look, decide, act. What was measured once counts as one round, however often it is looked at."""
        async with self._one_round:
            return () if self._stopping.is_set() else await self._round()

    async def _round(self) -> tuple[Action, ...]:
        measured = max((one.taken_at for one in self._collector.snapshots().values()), default=None)
        if measured is None or measured == self._seen_at:
            return ()
        self._seen_at = measured
        nodes = await self._p.look_to_decide()
        rules = rules_of_one_look(self._p)
        seen = self._observe(nodes)
        actions, self._streaks = rebalance(seen, self._streaks, rules)
        await self.suggestions.renew(seen, rules)
        for action in actions:
            await self._try(action)
        return actions

    def _observe(self, nodes: NodeTable) -> Observed:
        p, collector = self._p, self._collector
        return Observed(
            nodes=nodes,
            snapshots=collector.snapshots(),
            pressed=collector.pressed,
            demand=collector.demand,
            leases=p.ledger.snapshot(),
            loans=p.ledger.loans,
            thresholds=collector.thresholds,
            numbers=numbers(p),
            mode=p.sharing.mode,
            now=p.now(),
            forecasts=self._forecasts(nodes) if numbers(p).foresees else {},
            queued=frozenset(waiting.ask.kind for waiting in p.sharing.waiting.values()),
            teams=p.teams,
        )

    def _forecasts(self, nodes: NodeTable) -> Forecasts:
        found = {(name, kind): self._collector.forecast(name, kind, _HORIZON_S) for name in nodes for kind in BUILT_IN}
        return {key: forecast for key, forecast in found.items() if forecast is not None}

    async def _try(self, action: Action) -> None:
        """One that fails is told, and keeps nobody from the others."""
        try:
            await self._hands.do(action)
        except GridError as error:
            self._not_done(action, error, "; ".join([error.message, *error.because]))
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are done
            self._not_done(action, error, repr(error))

    def _not_done(self, action: Action, error: Exception, told: str) -> None:
        what = type(action).__name__.lower()
        log.warning("rebalancing could not do what it wanted", action=what, reason=action.reason, error=told)
        self._p.journal.note("not_rebalanced", f"{what}: {told}", action=what, reason=action.reason, error=repr(error))
