"""A plan as data and as text: a map of the nodes and their actors; or what is missing, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypedDict

import click

from distributed_grid.cli.columns import Canvas, Column, columns, fit, fitted_table
from distributed_grid.cli.node_columns import bar
from distributed_grid.cli.output import listed, short
from distributed_grid.cli.tables import bold
from distributed_grid.model.resources import BUILT_IN, CPU, GPU, MEMORY, unit_label

if TYPE_CHECKING:
    from distributed_grid.wire.values import Amounts

_MOST: Final = 50
_MOST_REASONS: Final = 10
_BAR: Final = 8
_GAP: Final = "  "


class PlannedMember(TypedDict):
    role: str
    index: int


class PlannedUnit(TypedDict):
    """Members that share a process or a bundle, or one member."""

    kind: str
    members: list[PlannedMember]
    resources: Amounts
    pool: str | None


class PlannedNode(TypedDict):
    name: str
    closed: str | None
    """Why it takes none; None: it is open."""
    total: Amounts
    free: Amounts
    planned: Amounts
    units: list[PlannedUnit]


class PlannedRole(TypedDict):
    role: str
    min: int
    max: int
    placed: int
    nodes: int
    each: Amounts
    pool: str | None
    colocation_group: str | None
    colocation: str | None


class PlannedPool(TypedDict):
    name: str
    quota: Amounts
    nodes: list[str]
    planned: Amounts


class WhyNotPlaced(TypedDict):
    roles: list[str]
    asked: int
    placed: int
    detail: str


class MissingAmount(TypedDict):
    node: str | None
    pool: str | None
    resource_type: str
    amount: float | int


class PlannedRemedy(TypedDict):
    kind: str
    text: str
    commands: list[str]
    missing: list[MissingAmount]
    counts: dict[str, int]


class RolesPlan(TypedDict):
    """The content of `grid roles plan --json`."""

    workload: str
    cluster: str
    fits: bool
    actors: int
    units: int
    roles: list[PlannedRole]
    pools: list[PlannedPool]
    nodes: list[PlannedNode]
    certain: bool
    reasons: list[WhyNotPlaced]
    remedies: list[PlannedRemedy]


def plan_view(plan: RolesPlan, canvas: Canvas) -> str:
    return "\n".join(_map(plan, canvas) if plan["fits"] else _refusal(plan, canvas))


# -- it fits -------------------------------------------------------------------------------------------------


def _map(plan: RolesPlan, canvas: Canvas) -> list[str]:
    used = [node for node in plan["nodes"] if node["units"]]
    head = [
        f"{bold(plan['workload'])}  {click.style('fits', fg='green')}",
        f"{_counted(plan['actors'], 'actor')} in {_counted(plan['units'], 'unit')}",
        f"on {len(used)} of {_counted(len(plan['nodes']), 'node')}",
        _sums(plan["nodes"]),
    ]
    pools = _pool_lines(plan["pools"])
    return [
        *canvas.flow(part for part in head if part),
        "",
        *_node_lines(used, canvas),
        "",
        _roles_table(plan["roles"], canvas),
        *(["", *pools] if pools else []),
    ]


def _sums(nodes: Sequence[PlannedNode]) -> str:
    parts = []
    for kind in _kinds(nodes):
        planned = sum(node["planned"].get(kind, 0) for node in nodes)
        free = sum(node["free"].get(kind, 0) for node in nodes)
        parts.append(f"{short(planned)} of {short(free)} {unit_label(kind)}")
    return ", ".join(parts)


def _kinds(nodes: Iterable[PlannedNode], always: Iterable[str] = ()) -> list[str]:
    """The kinds that the plan uses, the built-in ones first."""
    found = {*always, *(kind for node in nodes for kind, amount in node["planned"].items() if amount)}
    return [*(kind for kind in (CPU, GPU, MEMORY) if kind in found), *sorted(found - set(BUILT_IN))]


def _node_lines(nodes: Sequence[PlannedNode], canvas: Canvas) -> list[str]:
    """Planned of free for each kind, then the actors on the node."""
    shown, kinds = nodes[:_MOST], _kinds(nodes, BUILT_IN if canvas.width is None else ())
    cells = [[_share(node, kind) for kind in kinds] for node in shown]
    headings = [f"{unit_label(kind)}" for kind in kinds]
    widths = [max(map(len, [heading, *(row[i] for row in cells)])) for i, heading in enumerate(headings)]
    name_width = max(map(len, ("Node", *(node["name"] for node in shown))))
    bars = [_bar(node, canvas) for node in shown]
    room = " " * (_BAR + len(_GAP))
    header = ["Node".ljust(name_width), *(h.rjust(w) for h, w in zip(headings, widths, strict=True))]
    lines = [bold(f"{_GAP.join(header)}{_GAP}{room}Actors")]
    for node, row, drawn in zip(shown, cells, bars, strict=True):
        amounts = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        first = _GAP.join([node["name"].ljust(name_width), *amounts, drawn, ""])
        lines += canvas.wrapped(_actors(node), indent=" " * len(first), first=first)
    if len(nodes) > _MOST:
        lines.append(click.style(f"and {len(nodes) - _MOST} more nodes: see --json", dim=True))
    return lines


def _share(node: PlannedNode, kind: str) -> str:
    planned, free = node["planned"].get(kind, 0), node["free"].get(kind, 0)
    return f"{short(planned)}/{short(free)}" if planned or free else "-"


def _bar(node: PlannedNode, canvas: Canvas) -> str:
    """How full the node will be, by its fullest kind."""
    shares = [amount / node["free"][kind] for kind, amount in node["planned"].items() if amount]
    return bar(max(shares, default=0.0), _BAR, canvas.blocks)


def _actors(node: PlannedNode) -> str:
    """ "8 rollout_worker, 1 trainer+trajectory_pool": actors that share a process or a bundle are joined by "+"."""
    found = Counter("+".join(member["role"] for member in unit["members"]) for unit in node["units"])
    return ", ".join(f"{count} {name}" for name, count in found.items())


def _roles_table(roles: Sequence[PlannedRole], canvas: Canvas) -> str:
    spans = [str(r["min"]) if r["min"] == r["max"] else f"{r['min']} to {r['max']}" for r in roles]
    together = [
        "-" if role["colocation_group"] is None else f"{role['colocation_group']} ({role['colocation']})"
        for role in roles
    ]
    found = {
        "role": Column.of("Role", [role["role"] for role in roles]),
        "asked": Column.of("Requested", spans, right=True),
        "placed": Column.of("Placed", [str(role["placed"]) for role in roles], right=True),
        "nodes": Column.of("Nodes", [str(role["nodes"]) for role in roles], right=True),
        "each": Column.of("Per actor", [listed(role["each"]) for role in roles]),
        "pool": Column.of("Pool", [role["pool"] or "-" for role in roles], optional=True),
        "together": Column.of("Colocated", together, optional=True),
    }
    return fitted_table(fit(found, ("together", "pool", "each"), canvas))


def _pool_lines(pools: Sequence[PlannedPool]) -> list[str]:
    def planned(pool: PlannedPool) -> str:
        parts = ((short(pool["planned"].get(kind, 0)), short(most), kind) for kind, most in pool["quota"].items())
        return ", ".join(f"{part} of {most} {unit_label(kind)}" for part, most, kind in parts) or "-"

    rows = [(pool["name"], planned(pool), ", ".join(pool["nodes"]) or "all nodes") for pool in pools]
    return columns(("Pool", "Planned", "Where"), rows).splitlines() if rows else []


# -- it does not ---------------------------------------------------------------------------------------------


def _refusal(plan: RolesPlan, canvas: Canvas) -> list[str]:
    sure = "" if plan["certain"] else "   no placement was found, but one may exist"
    lines = [f"{bold(plan['workload'])}  {click.style('does not fit', fg='red')}{sure}"]
    for reason in plan["reasons"][:_MOST_REASONS]:
        text = f"{'+'.join(reason['roles'])}: {reason['placed']} of {reason['asked']} placed: {reason['detail']}"
        lines += canvas.wrapped(text, indent="    ", first="  - ")
    if (more := len(plan["reasons"]) - _MOST_REASONS) > 0:
        lines.append(click.style(f"  and {more} more: see --json", dim=True))
    if plan["remedies"]:
        lines += ["", bold("What would help:")]
    for remedy in plan["remedies"]:
        lines += canvas.wrapped(remedy["text"], indent="    ", first="  - ")
        lines += [f"      {command}" for command in remedy["commands"]]
    return lines


def _counted(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count:,} {what}s"
