"""What a person could do before something runs short: from what is measured, expected and waiting."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from distributed_grid.decide.demand import only_node
from distributed_grid.decide.helping import who_helps
from distributed_grid.decide.likelihood import how_sure
from distributed_grid.decide.rebalancing.observed import Observed
from distributed_grid.decide.shortage import MOVABLE, fits_on_one_node, gap, short_by
from distributed_grid.decide.trends import Trend
from distributed_grid.model.demand import Demand, WaitReason
from distributed_grid.model.forecasts import Forecast
from distributed_grid.model.leases import Cause
from distributed_grid.model.nodes import Node, NodeName
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import GPU, describe, scale
from distributed_grid.model.rules import RulesFor
from distributed_grid.model.since import span

HORIZONS_S: Final = (300.0, 600.0, 900.0, 1200.0, 1800.0, 3600.0)
MOST: Final = 5
_LEAST_SURE: Final = 0.3
_WAITED: Final = timedelta(seconds=30)
"""What waits for less is not worth a word yet."""
_MOST_CANDIDATES: Final = 4
_WORDS: Final = {"cpu": "CPUs", "memory": "memory", "gpu": "GPUs"}

Ahead = Mapping[tuple[NodeName, str], Sequence[Forecast]]
"""By node and kind: what is expected, the nearest time first."""
Trends = Mapping[tuple[NodeName, str], Trend]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One thing that would help one node, why, and how sure that is."""

    node: NodeName
    kind: str
    cause: Cause
    what: str
    reason: str
    confidence: float
    """0..1: that the node is, or will be, short of it."""
    how_sure: str
    ask: Ask | None = None
    command: str | None = None
    by_itself: bool = False
    """The policy does such a thing by itself, if it lasts."""
    in_s: float | None = None
    """When; None: it is so now."""

    @property
    def key(self) -> tuple[NodeName, str, Cause]:
        """What makes it the same as one made before."""
        return self.node, self.kind, self.cause


def suggest(seen: Observed, ahead: Ahead, trends: Trends, rules_for: RulesFor) -> tuple[Suggestion, ...]:
    """The most urgent few: who is short now, what waits, who will be short; each with who could help."""
    found: dict[tuple[NodeName, str, Cause], Suggestion] = {}
    for suggestion in _all(seen, ahead, trends, rules_for):
        found.setdefault(suggestion.key, suggestion)
        if len(found) == MOST:
            break
    return tuple(found.values())


def _all(seen: Observed, ahead: Ahead, trends: Trends, rules_for: RulesFor) -> Iterator[Suggestion]:
    values = [(seen.value(name, kind), name, kind) for name, kind in seen.pressed]
    pressed = [(value, name, kind) for value, name, kind in values if value is not None]
    for value, name, kind in sorted(pressed, key=lambda one: (-one[0], one[1], one[2])):
        yield _is_short(seen, name, kind, value, trends.get((name, kind)), rules_for)
    for demand in seen.demand:
        yield from _waits(seen, demand, rules_for)
    calm = (key for key in ahead if key not in seen.pressed and seen.is_there(key[0]) and key[0] in seen.snapshots)
    coming = [one for key in calm for one in _crossing(seen, key, ahead[key])]
    for forecast, sure, words, (name, kind) in sorted(coming, key=lambda one: (one[0].horizon_s, -one[1], one[3])):
        yield _will_be_short(seen, name, kind, forecast, (sure, words), trends.get((name, kind)), rules_for)


# -- use ----------------------------------------------------------------------------------------------------------


def _is_short(
    seen: Observed, name: NodeName, kind: str, value: float, trend: Trend | None, rules_for: RulesFor
) -> Suggestion:
    helped = who_helps(seen, _ask_for_use(seen, name, kind, value), rules_for, least=scale(kind))
    limit = seen.thresholds[kind]
    state = f"at {value:.0%}, above the limit of {limit.high:.0%}"
    if value < limit.high:
        state = f"at {value:.0%}; it was above {limit.high:.0%}, and has not come down to {limit.low:.0%}"
    return Suggestion(
        node=name,
        kind=kind,
        cause=Cause.PRESSURE,
        what=f"{name} is short of {_WORDS[kind]}; {helped.told}",
        reason=_joined(f"{kind} is {state}{_heading(trend)}", helped.because),
        confidence=1.0,
        how_sure="certain: measured",
        ask=helped.ask,
        command=helped.command,
        by_itself=seen.acts_by_itself and kind in MOVABLE,
    )


def _crossing(
    seen: Observed, key: tuple[NodeName, str], ahead: Sequence[Forecast]
) -> Iterator[tuple[Forecast, float, str, tuple[NodeName, str]]]:
    """The first time at which more than the limit is expected, if that is more than a guess."""
    high = seen.thresholds[key[1]].high
    for forecast in ahead:
        if forecast.value >= high:
            sure, words = how_sure(forecast, high)
            if sure >= _LEAST_SURE:
                yield forecast, sure, words, key
            return


def _will_be_short(
    seen: Observed,
    name: NodeName,
    kind: str,
    forecast: Forecast,
    sure: tuple[float, str],
    trend: Trend | None,
    rules_for: RulesFor,
) -> Suggestion:
    helped = who_helps(seen, _ask_for_use(seen, name, kind, forecast.value), rules_for, least=scale(kind))
    now = seen.value(name, kind)
    is_now = "" if now is None else f" (now {now:.0%}{_heading(trend)})"
    minutes = math.ceil(forecast.horizon_s / 60 - 0.5)
    return Suggestion(
        node=name,
        kind=kind,
        cause=Cause.FORECAST,
        what=f"{name} will run out of {_WORDS[kind]} in about {minutes} minutes; {helped.told}",
        reason=_joined(
            f"{kind} at {forecast.value:.0%} is expected then, the limit is {seen.thresholds[kind].high:.0%}{is_now}",
            helped.because,
        ),
        confidence=round(sure[0], 4),
        how_sure=sure[1],
        ask=helped.ask,
        command=helped.command,
        by_itself=seen.acts_by_itself and seen.numbers.foresees and kind in MOVABLE,
        in_s=forecast.horizon_s,
    )


def _ask_for_use(seen: Observed, name: NodeName, kind: str, use: float) -> Ask:
    total = seen.snapshots[name].total[kind]
    return Ask(name, kind, short_by(kind, use, total, seen.thresholds[kind]), delivery=None if kind == GPU else "auto")


def _heading(trend: Trend | None) -> str:
    """ ", rising by 1.2 points a minute": what its last quarter of an hour shows."""
    points = None if trend is None or trend.per_minute is None else round(100 * trend.per_minute, 1)
    if not points:
        return ""
    return f", {'rising' if points > 0 else 'falling'} by {abs(points):g} points a minute"


# -- what waits ---------------------------------------------------------------------------------------------------


def _waits(seen: Observed, demand: Demand, rules_for: RulesFor) -> Iterator[Suggestion]:
    """For each kind that the work lacks on the node that would serve it."""
    if demand.waited(seen.now) < _WAITED or not fits_on_one_node(demand.pending.shape):
        return
    pinned = only_node(demand)
    for node in _where(seen, demand, pinned):
        found = [_lacks(seen, demand, node, kind, rules_for) for kind in gap(demand.pending.shape, node)]
        if pinned is not None or all(one.ask is not None for one in found):
            yield from found
            return


def _where(seen: Observed, demand: Demand, pinned: NodeName | None) -> list[Node]:
    """The node that it waits for; for what fits nowhere, those that lack least of it."""
    if pinned is not None:
        return [seen.nodes[pinned]] if seen.is_there(pinned) else []
    if demand.reason is not WaitReason.INFEASIBLE:
        return []  # it waits for work to end, and moving capacity about would make room for nobody
    shape = demand.pending.shape
    allowed = [node for node in seen.nodes.alive if not demand.wanted_on or node.name in demand.wanted_on]

    def lacking(node: Node) -> float:
        return sum(units / shape.needs[kind] for kind, units in gap(shape, node).items())

    return sorted(allowed, key=lambda node: (lacking(node), node.name))[:_MOST_CANDIDATES]


def _lacks(seen: Observed, demand: Demand, node: Node, kind: str, rules_for: RulesFor) -> Suggestion:
    shape, count = demand.pending.shape, demand.pending.count
    # Work that is to run elsewhere needs all of it there; for what stays, what is missing is enough.
    lacking = shape.needs[kind] if kind == GPU else gap(shape, node)[kind]
    units = -(-lacking // scale(kind)) * scale(kind)
    delivery = None if kind == GPU else "transfer"
    helped = who_helps(seen, Ask(node.name, kind, units, delivery=delivery), rules_for, least=units)
    what = "placement group" if shape.is_group else "task"
    waiting = f"{count} {what}s have" if count != 1 else f"{count} {what} has"
    waited = span(demand.waited(seen.now).total_seconds())
    elsewhere = "GPUs cannot move between nodes: the work has to be started in the reservation" if kind == GPU else ""
    return Suggestion(
        node=node.name,
        kind=kind,
        cause=Cause.DEMAND,
        what=f"{waiting} waited {waited} for {describe(kind, shape.needs[kind])} on {node.name}; {helped.told}",
        reason=_joined(demand.detail, elsewhere, helped.because),
        confidence=1.0,
        how_sure="certain: it waits in Ray's queues",
        ask=helped.ask,
        command=helped.command,
        by_itself=seen.acts_by_itself and kind in MOVABLE and only_node(demand) == node.name,
    )


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
