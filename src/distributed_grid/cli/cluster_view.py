"""The whole cluster on one page: nodes, what waits, what would help, which boosts end next."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import click

from distributed_grid.cli.amounts import labelled, short
from distributed_grid.cli.canvas import Canvas
from distributed_grid.cli.columns import fit, fitted_table
from distributed_grid.cli.demand_view import demand_lines
from distributed_grid.cli.node_columns import STATES, kinds_of, node_columns, node_styles
from distributed_grid.cli.sharing_view import waiting_lines
from distributed_grid.cli.suggestion_view import suggestion_lines
from distributed_grid.cli.tables import bold, boost_rows, boost_totals, ends_at
from distributed_grid.model.resources import BUILT_IN
from distributed_grid.model.since import span

_SHOWN: Final = ("node", "pressure", "cpu%", "mem%", "gpu%")
_GIVE_UP: Final = (("gpu%", "mem%", "cpu%"), "pressure")
_NEXT_BOOSTS: Final = 8
_MOST_NAMES: Final = 8


def cluster_view(status: Mapping[str, Any], canvas: Canvas | None = None) -> str:
    """Who is there, how pressed, with what; what waits for room; what would help; which boosts end next."""
    canvas = canvas or Canvas()
    problems = [click.style(line, fg="yellow") for each in status.get("problems", ()) for line in canvas.wrapped(each)]
    suggestions = suggestion_lines(status.get("suggestions", ()), canvas)
    return "\n".join(
        [
            *_head(status, canvas),
            "",
            *_nodes(status["nodes"], canvas),
            "",
            *(*problems, "") * bool(problems),
            *_waiting(status, canvas),
            "",
            *(*suggestions, "") * bool(suggestions),
            *_boosts(status["boosts"], canvas),
        ]
    )


def _head(status: Mapping[str, Any], canvas: Canvas) -> list[str]:
    controller = status["controller"]
    return [
        *canvas.flow(
            [
                f"{bold(status['cluster'])}  {counted(status['nodes'])}",
                f"{bold('Ray')} {status['ray_address']}",
                f"{bold('Controller')} {controller['state']} at {controller['url']}",
            ]
        ),
        *canvas.flow([f"{bold('Free')} {free_of(status['nodes'])}", *_freshness(status["nodes"])]),
    ]


def counted(nodes: Sequence[Mapping[str, Any]]) -> str:
    """ "3 nodes, 1 stale"."""
    states = Counter(node["state"] for node in nodes)
    total = f"{len(nodes)} node{'s' * (len(nodes) != 1)}"
    unwell = [state for state in STATES if states[state] and state != "ok"]
    return ", ".join([total, *(click.style(f"{states[state]} {state}", fg=STATES[state]) for state in unwell)])


def free_of(nodes: Sequence[Mapping[str, Any]]) -> str:
    """ "20 of 24 CPUs, 2 of 2 GPUs, 48 of 56 GB": of all nodes together."""

    def whole(part: str, kind: str) -> float:
        return float(sum(node[part].get(kind, 0) for node in nodes if node["alive"]))

    return ", ".join(
        f"{short(whole('free', kind))} of {labelled(kind, whole('total', kind))}"
        for kind in kinds_of(nodes)
        if whole("total", kind)
    )


def _freshness(nodes: Iterable[Mapping[str, Any]]) -> list[str]:
    ages = [node["age_seconds"] for node in nodes if node["state"] == "ok" and node["age_seconds"] is not None]
    return [f"{bold('Measured')} {span(max(ages))} ago"] if ages else []


def _nodes(nodes: Sequence[Mapping[str, Any]], canvas: Canvas) -> list[str]:
    kinds = kinds_of(nodes)
    custom = [kind for kind in kinds if kind not in BUILT_IN]
    found = node_columns(nodes, canvas.blocks)
    fitted = fit(
        {key: found[key] for key in (*_SHOWN, *kinds, "lent", "borrowed")},
        (
            *_GIVE_UP,
            *("memory", "cpu", "gpu", "lent", "borrowed", "node", "pressure"),
            *(kind for kind in reversed(custom) for _ in range(3)),
            *("gpu", "memory", "cpu", "borrowed", "lent"),
        ),
        canvas,
    )
    styles = node_styles(nodes, canvas.blocks)
    lines = [fitted_table(fitted, styles), *unwell_lines(nodes, canvas), *in_use_lines(nodes, canvas)]
    gone = [heading for heading in fitted.left_out if heading not in ("cpu%", "mem%", "gpu%")]
    hidden = f"; no room for {', '.join(gone)}" if gone else ""
    return [*lines, *(_dim(line) for line in canvas.wrapped(f"free / total (base){hidden}"))]


def unwell_lines(nodes: Sequence[Mapping[str, Any]], canvas: Canvas) -> list[str]:
    """Why a node has no pressure: those with the same reason together."""
    why: dict[tuple[str, str], list[str]] = defaultdict(list)
    for node in nodes:
        if node["state"] == "stale":
            why["stale", node["stale_because"] or "its probe does not answer"].append(node["name"])
        elif node["state"] == "starting":
            why["starting", "not measured yet"].append(node["name"])
        elif node["state"] == "down":
            why["down", "it is configured, and not in the cluster"].append(node["name"])
    return [
        click.style(line, fg=STATES[state])
        for (state, reason), names in why.items()
        for line in canvas.wrapped(f"{_names(names)}: {state}: {reason}", indent="  ", first="")
    ]


def in_use_lines(nodes: Sequence[Mapping[str, Any]], canvas: Canvas) -> list[str]:
    """What is in use on nodes that Ray does not count; those of which the same is told together."""
    found: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        for warning in node["warnings"]:
            found[warning].append(node["name"])
    return [
        click.style(line, fg="yellow")
        for warning, names in found.items()
        for line in canvas.wrapped(f"{_names(names)}: {warning}", indent="  ", first="")
    ]


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _waiting(status: Mapping[str, Any], canvas: Canvas) -> list[str]:
    """What waits in Ray's queues, and which requests wait in grid's own."""
    queue = waiting_lines(status, canvas)
    return [*(demand_lines(status["demand"], canvas) if status["demand"] or not queue else ()), *queue]


def _boosts(status: Mapping[str, Any], canvas: Canvas) -> list[str]:
    """Those that end next."""
    if not status["boosts"]:
        return [f"{bold('Boosts:')} none"]
    soonest = sorted(status["boosts"], key=ends_at)
    lines = [boost_totals(status, canvas), *boost_rows(soonest[:_NEXT_BOOSTS], canvas)]
    if len(soonest) > _NEXT_BOOSTS:
        lines.append(_dim(f"{len(soonest) - _NEXT_BOOSTS} more end later: grid boost status"))
    return lines


def _dim(text: str) -> str:
    return click.style(text, dim=True)
