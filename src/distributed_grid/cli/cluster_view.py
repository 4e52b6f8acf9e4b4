"""The whole cluster on one page: nodes, pending demand, suggestions, and the boosts that end next."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal

import click

from distributed_grid.cli.columns import Canvas, fit, fitted_table
from distributed_grid.cli.node_columns import STATES, kinds_of, node_columns, node_styles
from distributed_grid.cli.output import labelled, short
from distributed_grid.cli.resource_sharing import waiting_lines
from distributed_grid.cli.tables import bold, boost_rows, boost_totals, ends_at, hidden_leases, without_runs
from distributed_grid.model.resources import BUILT_IN
from distributed_grid.model.times import span

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import BoostList
    from distributed_grid.wire.nodes import ClusterStatus, DemandStatus, NodeStatus, OneNode, SuggestionStatus

_MOST: Final = 8


def _demand_lines(demand: Sequence[DemandStatus], canvas: Canvas, *, what: str = "Waiting") -> list[str]:
    """A headline, then the requests that do not fit, then the rest; the longest wait first."""
    if not demand:
        return [f"{bold(f'{what}:')} nothing"]
    ordered = sorted(demand, key=lambda one: (one["reason"] != "infeasible", -one["waited_seconds"]))
    lines = [f"{bold(f'{what}:')} {waiting_in_short(demand)}"]
    lines += [line for one in ordered[:_MOST] for line in _entry(one, canvas)]
    if len(ordered) > _MOST:
        rest = sum(one["count"] for one in ordered[_MOST:])
        lines.append(click.style(f"  {rest} more of {len(ordered) - _MOST} other shapes: see --json", dim=True))
    return lines


def waiting_in_short(demand: Sequence[DemandStatus]) -> str:
    """ "5 requests, 3 do not fit"; "nothing"."""
    count = sum(one["count"] for one in demand)
    never = sum(one["count"] for one in demand if one["reason"] == "infeasible")
    text = f"{count} request{'s' * (count != 1)}" if count else "nothing"
    return f"{text}, {never} {'does' if never == 1 else 'do'} not fit" if never else text


def _entry(one: DemandStatus, canvas: Canvas) -> list[str]:
    never = one["reason"] == "infeasible"
    why = f"{'does not fit' if never else 'waits for room'}: {one['detail']}"
    text = f"{one['count']} x {one['shape']}, for {span(one['waited_seconds'])}: {why}"
    return [
        click.style(line, fg="red") if never else line for line in canvas.wrapped(text, indent="      ", first="  ")
    ]


_INDENT = "      "


def suggestion_lines(suggestions: Sequence[SuggestionStatus], canvas: Canvas) -> list[str]:
    """A headline and the suggestions, the most urgent first; no lines if there are none."""
    if not suggestions:
        return []
    return [bold("Suggestions:"), *(line for one in suggestions for line in _suggestion(one, canvas))]


def _suggestion(one: SuggestionStatus, canvas: Canvas) -> list[str]:
    by_itself = "; grid does this automatically if it lasts" if one["by_itself"] else ""
    return [
        *canvas.wrapped(one["what"], indent=_INDENT, first="  "),
        *(_dim(line) for line in canvas.wrapped(one["reason"], indent=_INDENT)),
        *(_dim(line) for line in canvas.wrapped(f"{one['how_sure']}{by_itself}", indent=_INDENT)),
        *(click.style(line, fg="cyan") for line in _command(one["command"], canvas)),
    ]


def _command(command: str | None, canvas: Canvas) -> list[str]:
    """A command that is split over lines can still be pasted."""
    if command is None:
        return []
    lines = canvas.wrapped(command, indent=_INDENT)
    if len(lines) == 1:
        return lines
    narrower = Canvas(None if canvas.width is None else canvas.width - 2, canvas.blocks)
    *first, last = narrower.wrapped(command, indent=_INDENT)
    return [*(f"{line} \\" for line in first), last]


def _dim(text: str) -> str:
    return click.style(text, dim=True)


_SHOWN: Final = ("node", "pressure", "cpu%", "mem%", "gpu%")
_GIVE_UP: Final = (("gpu%", "mem%", "cpu%"), "pressure")
_NEXT_BOOSTS: Final = 8
_MOST_NAMES: Final = 8


def cluster_view(status: ClusterStatus, canvas: Canvas | None = None) -> str:
    """The nodes with their pressure and resources, pending demand, suggestions, and the boosts that end next."""
    canvas = canvas or Canvas()
    problems = [click.style(line, fg="yellow") for each in status.get("problems", ()) for line in canvas.wrapped(each)]
    suggestions = suggestion_lines(status.get("suggestions", ()), canvas)
    return "\n".join(
        [
            *_head(status, canvas),
            "",
            *_nodes(status["nodes"], canvas),
            *cordoned_lines(status.get("cordoned", ()), canvas),
            "",
            *(*problems, "") * bool(problems),
            *demand_and_queue_lines(status, canvas),
            "",
            *(*suggestions, "") * bool(suggestions),
            *_boosts(without_runs(status["boosts"]), canvas),
        ]
    )


def _head(status: ClusterStatus, canvas: Canvas) -> list[str]:
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


def counted(nodes: Sequence[NodeStatus]) -> str:
    """ "3 nodes, 1 stale"."""
    states = Counter(node["state"] for node in nodes)
    total = f"{len(nodes)} node{'s' * (len(nodes) != 1)}"
    unwell = [state for state in STATES if states[state] and state != "ok"]
    return ", ".join([total, *(click.style(f"{states[state]} {state}", fg=STATES[state]) for state in unwell)])


def free_of(nodes: Sequence[NodeStatus]) -> str:
    """ "20 of 24 CPUs, 2 of 2 GPUs, 48 of 56 GB": of all nodes together."""

    def whole(part: Literal["free", "total"], kind: str) -> float:
        return float(sum(node[part].get(kind, 0) for node in nodes if node["alive"]))

    return ", ".join(
        f"{short(whole('free', kind))} of {labelled(kind, whole('total', kind))}"
        for kind in kinds_of(nodes)
        if whole("total", kind)
    )


def _freshness(nodes: Iterable[NodeStatus]) -> list[str]:
    ages = [node["age_seconds"] for node in nodes if node["state"] == "ok" and node["age_seconds"] is not None]
    return [f"{bold('Measured')} {span(max(ages))} ago"] if ages else []


def _nodes(nodes: Sequence[NodeStatus], canvas: Canvas) -> list[str]:
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
    hidden = f"; columns left out: {', '.join(gone)}" if gone else ""
    return [*lines, *(_dim(line) for line in canvas.wrapped(f"free / total (base){hidden}"))]


def unwell_lines(nodes: Sequence[NodeStatus], canvas: Canvas) -> list[str]:
    """Why nodes have no pressure, grouped by reason."""
    why: dict[tuple[str, str], list[str]] = defaultdict(list)
    for node in nodes:
        if node["state"] == "stale":
            why["stale", node["stale_because"] or "its probe does not answer"].append(node["name"])
        elif node["state"] == "starting":
            why["starting", "not measured yet"].append(node["name"])
        elif node["state"] == "down":
            why["down", "it is configured, but not in the cluster"].append(node["name"])
    return [
        click.style(line, fg=STATES[state])
        for (state, reason), names in why.items()
        for line in canvas.wrapped(f"{_names(names)}: {state}: {reason}", indent="  ", first="")
    ]


def in_use_lines(nodes: Sequence[NodeStatus], canvas: Canvas) -> list[str]:
    """Use that Ray does not count, grouped by warning."""
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


def cordoned_lines(names: Sequence[str], canvas: Canvas) -> list[str]:
    """A line for each cordoned node, with the command that lets it share again."""
    texts = (f"{name}: cordoned: it lends and borrows nothing until grid cooldown {name} --off" for name in names)
    return [click.style(line, fg="yellow") for text in texts for line in canvas.wrapped(text, indent="  ", first="")]


def demand_and_queue_lines(seen: ClusterStatus | OneNode, canvas: Canvas, *, what: str = "Waiting") -> list[str]:
    """The demand in Ray's queues, and the requests in grid's own queue."""
    queue = waiting_lines(seen, canvas)
    return [*(_demand_lines(seen["demand"], canvas, what=what) if seen["demand"] or not queue else ()), *queue]


def _boosts(status: BoostList, canvas: Canvas) -> list[str]:
    """The boosts that end next."""
    hidden = hidden_leases(status.get("hidden", 0), status.get("hidden_idle", 0))
    if not status["boosts"]:
        return [f"{bold('Boosts:')} none", *hidden]
    soonest = sorted(status["boosts"], key=ends_at)
    lines = [boost_totals(status, canvas), *hidden, *boost_rows(soonest[:_NEXT_BOOSTS], canvas)]
    if len(soonest) > _NEXT_BOOSTS:
        lines.append(_dim(f"{len(soonest) - _NEXT_BOOSTS} more end later: grid boost status"))
    return lines
