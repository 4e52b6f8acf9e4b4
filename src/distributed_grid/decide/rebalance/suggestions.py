"""Suggestions: what a person could do before something runs short.

They come from measurements, forecasts and pending demand. Each has the request to make, or what would have to change,
and a likelihood.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from distributed_grid.decide.capacity.devices import on_idle_devices
from distributed_grid.decide.capacity.feasibility import would_lend
from distributed_grid.decide.monitoring.demand import only_node
from distributed_grid.decide.monitoring.trends import Trend
from distributed_grid.decide.rebalance.borrowing import may_not_lend
from distributed_grid.decide.rebalance.observed import (
    MOVABLE,
    Observed,
    find_lender,
    fits_on_one_node,
    gap,
    own_part_of,
    short_by,
)
from distributed_grid.model.demand import Demand, WaitReason
from distributed_grid.model.leases import Cause, Delivery
from distributed_grid.model.nodes import LIMIT_KEYS, Node, NodeName
from distributed_grid.model.plans import Grant, Refusal, Refused, Rules, RulesFor
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.requests import Ask, command
from distributed_grid.model.resources import GPU, describe, scale
from distributed_grid.model.series import CONFIDENCE, Forecast
from distributed_grid.model.times import span

_HALF_WIDTH: Final = 1.645
"""This many standard deviations either side hold nine tenths of a normal distribution."""
_FEW: Final = 10
"""With this many checked forecasts, a track record counts three quarters."""
_IN_WORDS: Final = ((0.85, "very likely"), (0.65, "likely"), (0.45, "possible"), (0.0, "a guess"))


def how_sure(forecast: Forecast, threshold: float) -> tuple[float, str]:
    """The likelihood (0..1) that the value is at or above the threshold then; and in words, with the data behind it."""
    likely = passes(forecast, threshold)
    accuracy = forecast.accuracy
    if accuracy is None:
        sure = likely / 2
        return sure, f"{in_words(sure)} ({sure:.0%}): no such forecast has been verified yet"
    sure = likely * (1 - _FEW / 2 / (_FEW + accuracy.checked))
    if accuracy.covered is not None:  # intervals that were too narrow promised too much
        sure *= min(1.0, accuracy.covered / CONFIDENCE)
    checked = f"{accuracy.checked} such forecast{'s' * (accuracy.checked != 1)}"
    return sure, f"{in_words(sure)} ({sure:.0%}): {checked} verified, off by {accuracy.error:.0%} on average"


def passes(forecast: Forecast, threshold: float) -> float:
    """The part of the forecast's distribution that is not below the threshold.

    Either side of the forecast value is half a normal distribution.
    """
    away = threshold - forecast.value
    reach = forecast.high - forecast.value if away > 0 else forecast.value - forecast.low
    if reach <= 0:
        return 0.0 if away > 0 else 1.0
    return 0.5 * (1 - math.erf(away * _HALF_WIDTH / reach / math.sqrt(2)))


def in_words(sure: float) -> str:
    return next(word for least, word in _IN_WORDS if sure >= least)


_MOST_REASONS: Final = 3


@dataclass(frozen=True, slots=True)
class Help:
    """A remedy in words; and the request for it, if there is one."""

    text: str
    ask: Ask | None = None
    command: str | None = None
    because: str = ""
    """Why no node helps, by node."""


def find_help(seen: Observed, ask: Ask, rules_for: RulesFor, *, least: int) -> Help:
    """The node that can lend the requested amount, or part of it; else the change that would let one lend."""
    rules = rules_for(ask)
    if ask.delivery == Delivery.TRANSFER and rules.no_transfers_because is not None:
        return Help(f"capacity cannot be moved to {ask.target}", because=rules.no_transfers_because)
    short = may_not_lend(seen, ask.kind) - {ask.target}
    plan = find_lender(ask, seen.without(short), rules, least=least)
    if isinstance(plan, Refused):
        return _no_lender(seen, plan, short, rules, least)
    request = replace(plan.ask, sources=(plan.source,), delivery=_said(plan))
    verb = "lend" if plan.delivery.moves_totals else "reserve"
    text = f"{plan.source} can {verb} {describe(request.kind, request.units)}"
    return Help(text, request, command(request))


def _said(plan: Grant) -> str | None:
    """The delivery, where a plain request would be delivered otherwise."""
    return None if plan.delivery.moves_totals or plan.ask.kind == GPU else str(plan.delivery)


def _no_lender(seen: Observed, refused: Refused, short: set[NodeName], rules: Rules, least: int) -> Help:
    ask = refused.ask
    others = [one for one in refused.refusals if one.code is not RefusalCode.IS_TARGET]
    reasons = [f"{one.node} {'needs it itself' if one.node in short else one.detail}" for one in others]
    more = f"; {len(reasons) - _MOST_REASONS} more" if len(reasons) > _MOST_REASONS else ""
    because = "; ".join(reasons[:_MOST_REASONS]) + more
    if refused.team_limit is not None:
        return Help(f"no node may lend it: {refused.team_limit.detail}", because=because)
    remedy = _remedy(seen, replace(ask, units=least), rules, [one for one in others if one.node not in short])
    even = "even " if least < ask.units else ""
    return Help(f"no node can lend {even}{describe(ask.kind, least)}: {remedy}", because=because)


def _remedy(seen: Observed, ask: Ask, rules: Rules, refusals: list[Refusal]) -> str:
    """The easiest change that would let a node lend the requested amount."""
    limit = LIMIT_KEYS.get(ask.kind, "limit")
    for code in RefusalCode:
        if remedy := code.reason.remedy:
            for one in refusals:
                if one.code is code and would_lend(code, seen.nodes[one.node], ask, seen.nodes, seen.usage, rules):
                    is_target = code is RefusalCode.CORDONED and one.node not in rules.cordoned
                    return remedy.format(node=ask.target if is_target else one.node, limit_key=limit)
    return "freeing capacity on another node would help, or adding a node"


HORIZONS_S: Final = (300.0, 600.0, 900.0, 1200.0, 1800.0, 3600.0)
MOST: Final = 5
_LEAST_SURE: Final = 0.3
_WAITED: Final = timedelta(seconds=30)
"""A shorter wait is not worth mentioning yet."""
_MOST_CANDIDATES: Final = 4
_WORDS: Final = {"cpu": "CPUs", "memory": "memory", "gpu": "GPUs"}

Ahead = Mapping[tuple[NodeName, str], Sequence[Forecast]]
"""By node and kind: the forecasts, the nearest time first."""
Trends = Mapping[tuple[NodeName, str], Trend]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One thing that would help one node, why, and how likely it is needed."""

    node: NodeName
    kind: str
    cause: Cause
    what: str
    reason: str
    confidence: float
    """0..1: the likelihood that the node is, or will be, short of the kind."""
    how_sure: str
    ask: Ask | None = None
    command: str | None = None
    by_itself: bool = False
    """The policy does this by itself if the shortage lasts."""
    in_s: float | None = None
    """In how many seconds; None: now."""

    @property
    def key(self) -> tuple[NodeName, str, Cause]:
        """Equal for suggestions that count as the same."""
        return self.node, self.kind, self.cause


def suggest(seen: Observed, ahead: Ahead, trends: Trends, rules_for: RulesFor) -> tuple[Suggestion, ...]:
    """The most urgent few: nodes short now, work that waits, nodes short later; each with the node that could help."""
    found: dict[tuple[NodeName, str, Cause], Suggestion] = {}
    for suggestion in _all(seen, ahead, trends, rules_for):
        found.setdefault(suggestion.key, suggestion)
        if len(found) == MOST:
            break
    return tuple(found.values())


def _all(seen: Observed, ahead: Ahead, trends: Trends, rules_for: RulesFor) -> Iterator[Suggestion]:
    values = [(seen.value(name, kind), name, kind) for name, kind in seen.pressed]
    pressed = [
        (value, name, kind)
        for value, name, kind in values
        if value is not None and _needs_it_itself(seen, name, kind, value)
    ]
    for value, name, kind in sorted(pressed, key=lambda one: (-one[0], one[1], one[2])):
        yield _is_short(seen, name, kind, value, trends.get((name, kind)), rules_for)
    for demand in seen.demand:
        yield from _waits(seen, demand, rules_for)
    calm = (key for key in ahead if key not in seen.pressed and seen.is_there(key[0]) and key[0] in seen.snapshots)
    coming = [one for key in calm for one in _crossing(seen, key, ahead[key])]
    for forecast, sure, words, (name, kind) in sorted(coming, key=lambda one: (one[0].horizon_s, -one[1], one[3])):
        yield _will_be_short(seen, name, kind, forecast, (sure, words), trends.get((name, kind)), rules_for)


# -- use ----------------------------------------------------------------------------------------------------------


def _needs_it_itself(seen: Observed, name: NodeName, kind: str, use: float) -> bool:
    """Whether a use is the node's own: a lender is not short because its borrowers use what it lent."""
    for_others = seen.usage.reserved_for_others(name)[kind]
    return not for_others or own_part_of(use, seen.snapshots[name], kind, for_others) >= seen.thresholds[kind].high


def _is_short(
    seen: Observed, name: NodeName, kind: str, value: float, trend: Trend | None, rules_for: RulesFor
) -> Suggestion:
    helped = find_help(seen, _ask_for_use(seen, name, kind, value), rules_for, least=scale(kind))
    limit = seen.thresholds[kind]
    state = f"at {value:.0%}, above the limit of {limit.high:.0%}"
    if value < limit.high:
        state = f"at {value:.0%}; it was above {limit.high:.0%}, and has not come down to {limit.low:.0%}"
    return Suggestion(
        node=name,
        kind=kind,
        cause=Cause.PRESSURE,
        what=f"{name} is short of {_WORDS[kind]}; {helped.text}",
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
    """The first time at which the forecast reaches the limit, if that is at least `_LEAST_SURE` likely.

    A forecast without enough history has no interval, so its likelihood is unknown.
    """
    high = seen.thresholds[key[1]].high
    for forecast in (one for one in ahead if one.enough_history):
        if forecast.value >= high and _needs_it_itself(seen, *key, forecast.value):
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
    helped = find_help(seen, _ask_for_use(seen, name, kind, forecast.value), rules_for, least=scale(kind))
    now = seen.value(name, kind)
    is_now = "" if now is None else f" (now {now:.0%}{_heading(trend)})"
    minutes = math.ceil(forecast.horizon_s / 60 - 0.5)
    return Suggestion(
        node=name,
        kind=kind,
        cause=Cause.FORECAST,
        what=f"{name} will run out of {_WORDS[kind]} in about {minutes} minutes; {helped.text}",
        reason=_joined(
            f"{kind} is expected to reach {forecast.value:.0%} then; "
            f"the limit is {seen.thresholds[kind].high:.0%}{is_now}",
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
    """ ", rising by 1.2 points a minute": the trend of the last quarter of an hour."""
    points = None if trend is None or trend.per_minute is None else round(100 * trend.per_minute, 1)
    if not points:
        return ""
    return f", {'rising' if points > 0 else 'falling'} by {abs(points):g} points a minute"


# -- pending demand -----------------------------------------------------------------------------------------------


def _waits(seen: Observed, demand: Demand, rules_for: RulesFor) -> Iterator[Suggestion]:
    """One suggestion for each kind that the work lacks on the node that would serve it."""
    if demand.waited(seen.now) < _WAITED or not fits_on_one_node(demand.pending.shape):
        return
    pinned = only_node(demand)
    for node in _where(seen, demand, pinned):
        found = [_lacks(seen, demand, node, kind, rules_for) for kind in gap(demand.pending.shape, node)]
        if pinned is not None or all(one.ask is not None for one in found):
            yield from found
            return


def _where(seen: Observed, demand: Demand, pinned: NodeName | None) -> list[Node]:
    """The node that the work waits for; for work that fits nowhere, the nodes that lack least of it."""
    if pinned is not None:
        return [seen.nodes[pinned]] if seen.is_there(pinned) else []
    if demand.reason is not WaitReason.INFEASIBLE:
        return []  # it waits for work to end, and moving capacity about would make no room
    shape = demand.pending.shape
    allowed = [node for node in seen.nodes.alive if not demand.wanted_on or node.name in demand.wanted_on]

    def lacking(node: Node) -> float:
        return sum(units / shape.needs[kind] for kind, units in gap(shape, node).items())

    return sorted(allowed, key=lambda node: (lacking(node), node.name))[:_MOST_CANDIDATES]


def _lacks(seen: Observed, demand: Demand, node: Node, kind: str, rules_for: RulesFor) -> Suggestion:
    shape, count = demand.pending.shape, demand.pending.count
    # Work that runs elsewhere needs all of it there; work that stays needs only what is missing.
    lacking = on_idle_devices(*shape.all_needs) if kind == GPU else gap(shape, node)[kind]
    units = -(-lacking // scale(kind)) * scale(kind)
    delivery = None if kind == GPU else "transfer"
    helped = find_help(seen, Ask(node.name, kind, units, delivery=delivery), rules_for, least=units)
    what = "placement group" if shape.is_group else "task"
    waiting = f"{count} {what}s have" if count != 1 else f"{count} {what} has"
    waited = span(demand.waited(seen.now).total_seconds())
    elsewhere = "GPUs cannot move between nodes: the work has to be started in the reservation" if kind == GPU else ""
    return Suggestion(
        node=node.name,
        kind=kind,
        cause=Cause.DEMAND,
        what=f"{waiting} waited {waited} for {describe(kind, shape.needs[kind])} on {node.name}; {helped.text}",
        reason=_joined(demand.detail, elsewhere, helped.because),
        confidence=1.0,
        how_sure="certain: it waits in Ray's queues",
        ask=helped.ask,
        command=helped.command,
        by_itself=seen.acts_by_itself and kind in MOVABLE and only_node(demand) == node.name,
    )


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
