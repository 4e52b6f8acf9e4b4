"""The suggestions of the moment: made anew in every round of rebalancing, told once when they come up."""

import asyncio
from datetime import datetime, timedelta
from typing import Any, Final

from distributed_grid.decide.rebalancing import Observed
from distributed_grid.decide.suggestions import HORIZONS_S, Suggestion, suggest
from distributed_grid.decide.trends import Trend
from distributed_grid.model.forecasts import Forecast
from distributed_grid.model.leases import Cause
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import BUILT_IN, amount_of
from distributed_grid.model.rules import RulesFor
from distributed_grid.monitoring.collector import Collector
from distributed_grid.orchestration.parts import Parts

_FIRST_S: Final = (900.0, 3600.0)
"""Who is not expected to be pressed at one of these is not asked about the others: a short peak is no need."""
_AT_ONCE: Final = 50
"""So many nodes are looked at before somebody else may go on: a forecast takes a thirtieth of a millisecond."""
_TREND: Final = "15m"
_FORGOTTEN_AFTER: Final = timedelta(minutes=10)
"""One that was away for less is not news."""


class Suggestions:
    """What would help, as of the last round."""

    def __init__(self, parts: Parts, collector: Collector) -> None:
        self._p = parts
        self._collector = collector
        self.current: tuple[Suggestion, ...] = ()
        self._told: dict[tuple[NodeName, str, Cause], datetime] = {}

    async def renew(self, seen: Observed, rules_for: RulesFor) -> None:
        ahead = await self._ahead(seen)
        self.current = suggest(seen, ahead, self._trends(seen, ahead), rules_for)
        self._tell(seen.now)

    async def _ahead(self, seen: Observed) -> dict[tuple[NodeName, str], tuple[Forecast, ...]]:
        found: dict[tuple[NodeName, str], tuple[Forecast, ...]] = {}
        for number, name in enumerate(seen.snapshots):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            for kind in BUILT_IN:
                high = seen.thresholds[kind].high
                if any(one.value >= high for one in self._forecasts(name, kind, _FIRST_S)):
                    found[name, kind] = self._forecasts(name, kind, HORIZONS_S)
        return found

    def _forecasts(self, name: NodeName, kind: str, horizons_s: tuple[float, ...]) -> tuple[Forecast, ...]:
        found = (self._collector.forecast(name, kind, horizon_s) for horizon_s in horizons_s)
        return tuple(one for one in found if one is not None)

    def _trends(
        self, seen: Observed, ahead: dict[tuple[NodeName, str], tuple[Forecast, ...]]
    ) -> dict[tuple[NodeName, str], Trend]:
        return {key: self._collector.trends(*key)[_TREND] for key in {*seen.pressed, *ahead}}

    def _tell(self, now: datetime) -> None:
        for one in self.current:
            if one.key not in self._told:
                told = f"{one.what}: {one.command}" if one.command else one.what
                self._p.journal.note("suggested", told, node=one.node, suggestion=suggestion_dict(one))
            self._told[one.key] = now
        self._told = {key: at for key, at in self._told.items() if now - at < _FORGOTTEN_AFTER}


def suggestion_dict(one: Suggestion) -> dict[str, Any]:
    """As the API and `--json` show it."""
    return {
        "node": one.node,
        "resource_type": one.kind,
        "cause": str(one.cause),
        "what": one.what,
        "reason": one.reason,
        "confidence": round(one.confidence, 3),
        "how_sure": one.how_sure,
        "in_seconds": one.in_s,
        "amount": None if one.ask is None else amount_of(one.kind, one.ask.units),
        "source_node": None if one.ask is None else one.ask.source,
        "command": one.command,
        "by_itself": one.by_itself,
    }
