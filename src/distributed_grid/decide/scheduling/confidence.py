"""How likely it is that a task starts within its limit, and that its node then stays below the high threshold.

A model from what is known at the moment, on purpose a simple one: what it gets wrong in the same way every time, the
record of what happened puts right (`calibration`). It never decreases when there is more room.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from distributed_grid.decide.scheduling.table import NodeColumns
from distributed_grid.model.forecasts import Forecast
from distributed_grid.model.resources import BUILT_IN, ResourceVector

HORIZON_S: Final = 300.0
"""For so long a node is watched, where nobody said how long the task takes."""
LONGEST_HORIZON_S: Final = 3600.0
START_LIMIT_S: Final = 60.0
"""Within this a task that has a place should have started, where it has no deadline."""

_LEAST, _MOST = 0.005, 0.995
"""Nothing here is certain."""
_HAS_A_PLACE: Final = 0.98
_WAITS_FOR_UNKNOWN: Final = 0.3
_SPREAD: Final = 0.1
"""A load's standard deviation over the horizon, where no forecast tells."""
_NARROWEST, _WIDEST = 0.02, 0.15
_NINE_TENTHS: Final = 3.29
"""So many standard deviations wide is a forecast's interval."""
_WILL_BE_USED: Final = 0.5
"""Of what is spoken for and idle, and of what waits for the node, so much is expected to be used in the end."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """One kind's load on one node, 0..1, until the task's end."""

    peak: float
    """The most that is expected, with the task."""
    spread: float

    def stays_below(self, high: float) -> float:
        """The probability; of a load that wanders, the highest point counts (the reflection principle)."""
        away = (high - self.peak) / self.spread
        return min(_MOST, max(_LEAST, math.erf(away / math.sqrt(2)))) if away > 0 else _LEAST


def outlook(
    columns: NodeColumns, row: int, kind: str, added: int, forecast: Forecast | None = None, *, is_there: bool = False
) -> Outlook | None:
    """What the load may come to, with `added` units of the task; None where the node has nothing of this kind.

    `is_there`: what it takes is spoken for already, as in a boost.
    """
    total = int(columns.total[kind][row]) if kind in columns.total else 0
    if total <= 0:
        return None
    spoken_for = float(columns.used(kind)[row])
    if is_there:
        spoken_for = max(0.0, spoken_for - added / total)
    measured = float(columns.pressure[kind][row])
    now = spoken_for if math.isnan(measured) else measured
    expected, spread = now, _SPREAD
    if forecast is not None:
        expected = max(now, forecast.value)
        spread = (forecast.high - forecast.low) / _NINE_TENTHS
    waiting = int(columns.pending[kind][row]) if kind in columns.pending else 0
    idle = max(0.0, spoken_for - now)
    peak = expected + added / total + _WILL_BE_USED * (idle + min(1.0, waiting / total))
    return Outlook(peak, min(_WIDEST, max(_NARROWEST, spread)))


def stays_below(
    columns: NodeColumns,
    row: int,
    needs: ResourceVector,
    high: Mapping[str, float],
    forecasts: Mapping[str, Forecast] | None = None,
    *,
    is_there: bool = False,
) -> float:
    """The probability that no kind on the node reaches its high threshold."""
    likely = 1.0
    for kind in BUILT_IN:
        seen = outlook(columns, row, kind, needs[kind], (forecasts or {}).get(kind), is_there=is_there)
        if seen is not None:
            likely *= seen.stays_below(high[kind])
    return min(_MOST, max(_LEAST, likely))


def starts_in_time(limit_s: float | None, wait_s: float | None = 0.0) -> float:
    """The probability that a task starts within its limit. `wait_s`: until there is a place; None: nobody knows."""
    if wait_s is None:
        return _WAITS_FOR_UNKNOWN
    if wait_s <= 0 or limit_s is None:
        return _HAS_A_PLACE
    # Tasks seldom end when they were expected to: by about half of the time that was left, either way.
    away = (limit_s - wait_s) / (0.5 * wait_s + 1.0)
    return _HAS_A_PLACE * 0.5 * (1 + math.erf(away / math.sqrt(2)))


def horizon_of(duration_s: float | None) -> float:
    """For how long a task's node is watched."""
    return HORIZON_S if duration_s is None else min(duration_s, LONGEST_HORIZON_S)
