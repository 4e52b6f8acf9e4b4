"""`grid node ls` and `grid node show`: Ray's counts beside measured use, the last hour, and the forecast."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

import click

from distributed_grid.cli.cluster_view import demand_and_queue_lines, in_use_lines, unwell_lines
from distributed_grid.cli.columns import Canvas, Column, Form, columns, fit, fitted_table
from distributed_grid.cli.node_columns import STATES, bar, colour, curve, kinds_of, node_columns, node_styles, percent
from distributed_grid.cli.output import short
from distributed_grid.cli.tables import asked_as_boosts, bold, boost_rows, ends_at, hidden_leases, idle_among
from distributed_grid.model.resources import BUILT_IN, CPU, GB, GPU, MEMORY
from distributed_grid.model.times import parse_instant, span

if TYPE_CHECKING:
    from distributed_grid.wire.nodes import (
        History,
        ListedNode,
        MeasuredGpu,
        NodeForecast,
        NodeStatus,
        NodeTrend,
        OneNode,
    )

_KINDS: Final = (CPU, MEMORY, GPU)
_WINDOW_S: Final = 3600.0
_WIDTHS: Final = (40, 30, 24, 16, 10)


def outlook_lines(node: OneNode, canvas: Canvas) -> list[str]:
    kinds = [kind for kind in _KINDS if any(value is not None for value in node["history"]["series"].get(kind, ()))]
    if not kinds:
        return [f"{bold('Last hour:')} nothing was measured yet"]
    hour = {kind: _last_hour(node["history"], kind, max(_WIDTHS)) for kind in kinds}
    latest = [_latest(node, kind) for kind in kinds]
    ahead = next((one["horizon_seconds"] for kind in kinds if (one := node["forecast"][kind])), None)
    table: dict[str, Column] = {
        "kind": Column.of("Measured", kinds),
        "hour": Column(
            tuple(Form("Last hour", [curve(hour[kind], width, canvas.blocks) for kind in kinds]) for width in _WIDTHS)
        ),
        "now": Column.of("Now", latest, right=True),
        **{
            window: Column.of(f"{window}/min", [_slope(node["trends"][kind].get(window)) for kind in kinds], right=True)
            for window in node["trends"][kinds[0]]
        },
    }
    if ahead is not None:
        table["ahead"] = Column.of(f"In {span(ahead)}", [_expected(node["forecast"][kind]) for kind in kinds])
    fitted = fit(table, ("hour",) * (len(_WIDTHS) - 1), canvas)
    return [fitted_table(fitted), *_accuracies(node, kinds, canvas)]


def _last_hour(history: History, kind: str, points: int) -> list[float | None]:
    """The means of equal parts of the hour that ends with the newest sample, the oldest first."""
    times = [parse_instant(at).timestamp() for at in history["times"]]
    parts: list[list[float]] = [[] for _ in range(points)]
    for at, value in zip(times, history["series"][kind], strict=True):
        place = int((at - times[-1] + _WINDOW_S) / _WINDOW_S * points)
        if value is not None and 0 <= place <= points:
            parts[min(place, points - 1)].append(value)
    return [sum(part) / len(part) if part else None for part in parts]


def _latest(node: NodeStatus, kind: str) -> str:
    if node["state"] != "ok" or node["pressure"] is None:
        return "-"
    return percent(cast("Mapping[str, float | None]", node["pressure"])[kind])


def _slope(trend: NodeTrend | None) -> str:
    """In percentage points per minute."""
    if trend is None or trend["per_minute"] is None:
        return "-"
    value = trend["per_minute"] * 100
    return "0%" if abs(value) < 0.05 else f"{value:+.1f}%"


def _expected(forecast: NodeForecast | None) -> str:
    if forecast is None:
        return "-"
    says_nothing = round(forecast["low"], 2) <= 0 and round(forecast["high"], 2) >= 1
    if says_nothing or not forecast["enough_history"]:
        return "not enough history yet"
    return f"{percent(forecast['value'])} ({percent(forecast['low'])} to {percent(forecast['high'])})"


def _accuracies(node: OneNode, kinds: list[str], canvas: Canvas) -> list[str]:
    """How accurate these forecasts have been so far."""
    by_accuracy: dict[str, list[str]] = defaultdict(list)
    for kind in kinds:
        if (forecast := node["forecast"][kind]) is not None:
            by_accuracy[_accuracy(forecast)].append(kind)
    return [
        line
        for text, about in by_accuracy.items()
        for line in canvas.wrapped(f"{', '.join(about)}: {text}", indent="  ", first="")
    ]


def _accuracy(forecast: NodeForecast) -> str:
    found = forecast["accuracy"]
    if found is None:
        return "no forecast has been verified yet, so the accuracy is unknown"
    text = (
        f"{found['checked']} forecasts at {span(found['horizon_s'])} were off by {found['error'] * 100:.1f}% on "
        f"average (same-as-now: {found['error_of_now'] * 100:.1f}%)"
    )
    if found["covered"] is None:
        return text
    return f"{text}; {percent(found['covered'])} fell inside the {percent(forecast['confidence'])} interval"


_PRESSURE: Final = ("pressure", "cpu%", "mem%", "gpu%")
_GIVE_UP: Final = ("pressure", "memory", "cpu", "gpu", "age", "state", "pressure", "lent", "borrowed", "node")


def nodes_view(nodes: Sequence[ListedNode], canvas: Canvas) -> str:
    """A line for each node, then why some have no pressure."""
    kinds = kinds_of(nodes)
    custom = [kind for kind in kinds if kind not in BUILT_IN]
    found = node_columns(nodes, canvas.blocks)
    shown = ("node", "state", *_PRESSURE, *kinds, "lent", "borrowed", "age")
    fitted = fit(
        {key: found[key] for key in shown},
        (
            *(kind for kind in reversed(custom) for _ in range(3)),
            *_GIVE_UP,
            *("memory", "cpu", "gpu", "borrowed", "lent", ("gpu%", "mem%", "cpu%")),
        ),
        canvas,
    )
    return "\n".join(
        [
            fitted_table(fitted, node_styles(nodes, canvas.blocks)),
            *unwell_lines(nodes, canvas),
            *_closed_lines(nodes, canvas),
            *in_use_lines(nodes, canvas),
        ]
    )


def _closed_lines(nodes: Sequence[NodeStatus], canvas: Canvas) -> list[str]:
    """Why nodes that are well give nothing, such as those that are cordoned."""
    why = [node["closed"] for node in nodes if node["state"] == "ok" and node["closed"] is not None]
    return [click.style(line, fg="yellow") for each in why for line in canvas.wrapped(each, indent="  ", first="")]


def node_view(node: OneNode, canvas: Canvas) -> str:
    """Everything about one node."""
    sections = [
        _head(node, canvas),
        [_amounts_table(node), *_host_lines(node, canvas)],
        _gpu_lines(node, canvas),
        outlook_lines(node, canvas),
        demand_and_queue_lines(node, canvas, what="Waiting for it"),
        _boost_lines(node, canvas),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section)


def _head(node: OneNode, canvas: Canvas) -> list[str]:
    state = node["state"]
    age = "" if node["age_seconds"] is None else f", measured {span(node['age_seconds'])} ago"
    parts = [
        f"{bold(node['name'])}{' (head)' if node['is_head'] else ''}  {click.style(state, fg=STATES[state])}{age}",
        f"{bold('Pressure')} {_pressure(node, canvas)}",
    ]
    if node["pressed"]:
        parts.append(click.style(f"under pressure: {', '.join(node['pressed'])}", fg="red"))
    unwell = [*unwell_lines([node], canvas), *_closed_lines([node], canvas), *in_use_lines([node], canvas)]
    return [*canvas.flow(parts), *unwell, *canvas.flow([f"{bold('Ray node')} {node['node_id']}"])]


def _pressure(node: OneNode, canvas: Canvas) -> str:
    found = node["pressure"]
    if found is None:
        return "not known"
    if node["state"] != "ok":
        return f"not known; it was {percent(found['overall'])} {span(node['age_seconds'] or 0)} ago"
    overall = found["overall"]
    return click.style(f"{bar(overall, 10, canvas.blocks)} {percent(overall)}", fg=colour(overall))


def _amounts_table(node: NodeStatus) -> str:
    """One row for each kind: Ray's counts on the left, measured use on the right."""
    own, host = _measured(node)
    rows = []
    for kind in kinds_of([node]):
        amounts = [node[part].get(kind, 0) for part in ("base", "lent", "borrowed", "total", "used", "free")]
        name = f"{kind} GB" if kind == MEMORY else kind
        cells = [short(amount) if amount or i in (0, 3, 4, 5) else "-" for i, amount in enumerate(amounts)]
        rows.append((name, *cells, own.get(kind, "-"), host.get(kind, "-")))
    header = ("", "Base", "Lent", "Borrowed", "Total", "Used", "Free", "Its processes", "Its machine")
    return columns(header, rows, right=header[1:])


def _measured(node: NodeStatus) -> tuple[dict[str, str], dict[str, str]]:
    """Use by the node's own processes, and by the whole machine; empty where nothing was measured."""
    measured = node["measured"]
    if measured is None:
        return {}, {}
    own, host = measured["own"], measured["host"]
    return (
        {CPU: short(own["cpu_used"]), MEMORY: _gb(own["memory_used"])},
        {
            CPU: f"{short(host['cpu_used'])} of {short(host['cpus'])}",
            MEMORY: f"{_gb(host['memory_used'])} of {_gb(host['memory_total'])}",
        },
    )


def _host_lines(node: NodeStatus, canvas: Canvas) -> list[str]:
    measured = node["measured"]
    if measured is None:
        return []
    host, own = measured["host"], measured["own"]
    swap = f"{_gb(host['swap_used'])} of {_gb(host['swap_total'])} GB" if host["swap_total"] else "none"
    parts = [
        f"{bold('Load')} {' '.join(short(one) for one in host['load'])}",
        f"{bold('Swap')} {swap}",
        f"{bold('Processes')} {own['processes']}",
    ]
    if node["shares_its_host"]:
        parts.append("other nodes share its machine")
    old = [] if node["state"] == "ok" else [click.style("These measurements are old.", fg=STATES["stale"])]
    return [*canvas.flow(parts), *old]


def _gpu_lines(node: NodeStatus, canvas: Canvas) -> list[str]:
    measured = node["measured"]
    if measured is None:
        return []
    if not measured["gpus"]:
        why = measured["no_gpus_because"] or "none was found"
        return canvas.wrapped(f"GPUs: none measured: {why}", indent="  ", first="")
    return [bold("GPUs"), *(line for gpu in measured["gpus"] for line in _gpu(gpu, canvas))]


def _gpu(gpu: MeasuredGpu, canvas: Canvas) -> Iterable[str]:
    index = "?" if gpu["index"] is None else gpu["index"]
    name = f"  {index}  {gpu['name'] or 'unknown'}"
    if gpu["silent_because"]:
        return canvas.wrapped(gpu["silent_because"], indent="     ", first=f"{name}  nothing measured: ")
    parts = [name, f"busy {percent(gpu['utilisation'])}"]
    if gpu["memory_total"] is not None and gpu["memory_used"] is not None:
        parts.append(f"memory {_gb(gpu['memory_used'])} of {_gb(gpu['memory_total'])} GB")
    if gpu["temperature_c"] is not None:
        parts.append(f"{gpu['temperature_c']:.0f} {'°C' if canvas.blocks else 'C'}")
    processes = gpu["processes"]
    if processes is None:
        parts.append("processes unknown")
    elif processes:
        listed = ", ".join(
            str(one["pid"]) if one["memory_bytes"] is None else f"{one['pid']} ({_gb(one['memory_bytes'])} GB)"
            for one in processes
        )
        parts.append(f"processes {listed}")
    else:
        parts.append("no processes")
    first, *rest = canvas.flow(parts, gap="  ")
    return [first, *(f"     {line.strip()}" for line in rest)]


def _boost_lines(node: OneNode, canvas: Canvas) -> list[str]:
    boosts = asked_as_boosts(node["boosts"])
    of_programs = len(node["boosts"]) - len(boosts)
    idle = idle_among(node["boosts"]) - idle_among(boosts)
    hidden = hidden_leases(of_programs, idle, f"grid boost status --node {node['name']} --all")
    if not boosts:
        return [f"{bold('Boosts:')} none", *hidden]
    return [bold("Boosts"), *boost_rows(sorted(boosts, key=ends_at), canvas), *hidden]


def _gb(amount: float) -> str:
    return short(amount / GB)
