"""`grid node ls` and `grid node show`: what Ray counts beside what was measured, and where it is heading."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import click

from distributed_grid.cli.amounts import short
from distributed_grid.cli.bars import bar, colour, percent
from distributed_grid.cli.canvas import Canvas
from distributed_grid.cli.cluster_view import in_use_lines, unwell_lines
from distributed_grid.cli.columns import columns, fit, fitted_table
from distributed_grid.cli.demand_view import demand_lines
from distributed_grid.cli.node_columns import STATES, kinds_of, node_columns, node_styles
from distributed_grid.cli.outlook_view import outlook_lines
from distributed_grid.cli.tables import bold, boost_rows, ends_at
from distributed_grid.model.resources import BUILT_IN, CPU, GB, MEMORY
from distributed_grid.model.since import span

_PRESSURE: Final = ("pressure", "cpu%", "mem%", "gpu%")
_GIVE_UP: Final = ("pressure", "memory", "cpu", "gpu", "age", "state", "pressure", "lent", "borrowed", "node")


def nodes_view(nodes: Sequence[Mapping[str, Any]], canvas: Canvas) -> str:
    """A line for each node, then why some are not well."""
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
            *in_use_lines(nodes, canvas),
        ]
    )


def node_view(node: Mapping[str, Any], canvas: Canvas) -> str:
    """Everything about one node."""
    sections = [
        _head(node, canvas),
        [_amounts_table(node), *_host_lines(node, canvas)],
        _gpu_lines(node, canvas),
        outlook_lines(node, canvas),
        demand_lines(node["demand"], canvas, what="Waiting for it"),
        _boost_lines(node["boosts"], canvas),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section)


def _head(node: Mapping[str, Any], canvas: Canvas) -> list[str]:
    state = node["state"]
    age = "" if node["age_seconds"] is None else f", measured {span(node['age_seconds'])} ago"
    parts = [
        f"{bold(node['name'])}{' (head)' if node['is_head'] else ''}  {click.style(state, fg=STATES[state])}{age}",
        f"{bold('Pressure')} {_pressure(node, canvas)}",
    ]
    if node["pressed"]:
        parts.append(click.style(f"under pressure: {', '.join(node['pressed'])}", fg="red"))
    unwell = [*unwell_lines([node], canvas), *in_use_lines([node], canvas)]
    return [*canvas.flow(parts), *unwell, *canvas.flow([f"{bold('Ray node')} {node['node_id']}"])]


def _pressure(node: Mapping[str, Any], canvas: Canvas) -> str:
    found = node["pressure"]
    if found is None:
        return "not known"
    if node["state"] != "ok":
        return f"not known; it was {percent(found['overall'])} {span(node['age_seconds'])} ago"
    overall = found["overall"]
    return click.style(f"{bar(overall, 10, canvas.blocks)} {percent(overall)}", fg=colour(overall))


def _amounts_table(node: Mapping[str, Any]) -> str:
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


def _measured(node: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """What its own processes use, and what is used of the machine; nothing where nothing was measured."""
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


def _host_lines(node: Mapping[str, Any], canvas: Canvas) -> list[str]:
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
    old = [] if node["state"] == "ok" else [click.style("What was measured is old.", fg=STATES["stale"])]
    return [*canvas.flow(parts), *old]


def _gpu_lines(node: Mapping[str, Any], canvas: Canvas) -> list[str]:
    measured = node["measured"]
    if measured is None:
        return []
    if not measured["gpus"]:
        why = measured["no_gpus_because"] or "none was found"
        return canvas.wrapped(f"GPUs: none measured: {why}", indent="  ", first="")
    return [bold("GPUs"), *(line for gpu in measured["gpus"] for line in _gpu(gpu, canvas))]


def _gpu(gpu: Mapping[str, Any], canvas: Canvas) -> Iterable[str]:
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
        parts.append("processes not told")
    elif processes:
        told = ", ".join(
            str(one["pid"]) if one["memory_bytes"] is None else f"{one['pid']} ({_gb(one['memory_bytes'])} GB)"
            for one in processes
        )
        parts.append(f"processes {told}")
    else:
        parts.append("no processes")
    first, *rest = canvas.flow(parts, gap="  ")
    return [first, *(f"     {line.strip()}" for line in rest)]


def _boost_lines(boosts: Sequence[Mapping[str, Any]], canvas: Canvas) -> list[str]:
    if not boosts:
        return [f"{bold('Boosts:')} none"]
    return [bold("Boosts"), *boost_rows(sorted(boosts, key=ends_at), canvas)]


def _gb(amount: float) -> str:
    return short(amount / GB)
