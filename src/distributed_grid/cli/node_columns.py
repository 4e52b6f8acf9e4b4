"""Nodes as table rows for `grid cluster status`, `grid node ls` and `grid top`; fractions as bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from distributed_grid.cli.columns import Column, Form
from distributed_grid.cli.output import first_of, listed, short
from distributed_grid.model.resources import BUILT_IN, CPU, GPU, MEMORY, unit_label
from distributed_grid.model.times import span

if TYPE_CHECKING:
    from distributed_grid.wire.nodes import ListedNode, NodeStatus, OneNode

_EIGHTHS = " ▏▎▍▌▋▊▉"
_LEVELS = "▁▂▃▄▅▆▇█"
_PLAIN_LEVELS = "_.-:=+*#"
_HIGH, _VERY_HIGH = 0.6, 0.85


def bar(fraction: float, width: int, blocks: bool = True) -> str:
    """ "███▌░░": exactly `width` wide. A fraction above zero is always visible."""
    inside = min(1.0, max(0.0, fraction))
    if not blocks:
        full = round(inside * width)
        return "#" * full + "." * (width - full)
    eighths = max(round(inside * width * 8), 1 if inside > 0 else 0)
    full, part = divmod(eighths, 8)
    drawn = "█" * full + (_EIGHTHS[part] if part else "")
    return drawn + "░" * (width - len(drawn))


def curve(values: Sequence[float | None], width: int, blocks: bool = True) -> str:
    """ "▁▂▅█": fractions from the oldest to the newest. A missing value is a gap, never a low value."""
    levels = _LEVELS if blocks else _PLAIN_LEVELS
    return "".join(
        " " if value is None else levels[min(7, max(0, int(value * 8)))] for value in _thinned(values, width)
    )


def _thinned(values: Sequence[float | None], width: int) -> list[float | None]:
    """As many values as there is room for, each the mean of the known values in its part."""
    count = len(values)
    if count <= width:
        return list(values)
    groups = [values[i * count // width : (i + 1) * count // width] for i in range(width)]
    known = [[value for value in group if value is not None] for group in groups]
    return [sum(group) / len(group) if group else None for group in known]


def colour(fraction: float) -> str:
    return "red" if fraction >= _VERY_HIGH else "yellow" if fraction >= _HIGH else "green"


def percent(fraction: float | None) -> str:
    """ "45%"; "-" if unknown."""
    return "-" if fraction is None else f"{fraction * 100:.0f}%"


Node: TypeAlias = "ListedNode | NodeStatus | OneNode"

STATES: Final = {"ok": "green", "starting": "cyan", "stale": "yellow", "down": "red"}
POINTS: Final = 30
"""Points of history in a table's curve."""
_HEADINGS: Final = {CPU: "CPUs", GPU: "GPUs", MEMORY: "Memory GB"}
_SHORT: Final = {MEMORY: "GB"}
_PARTS: Final = {"cpu%": CPU, "mem%": MEMORY, "gpu%": GPU}


def kinds_of(nodes: Sequence[Node]) -> list[str]:
    """The built-in kinds, then the other kinds that nodes have."""
    return [*BUILT_IN, *sorted({kind for node in nodes for kind in (*node["base"], *node["total"])} - {*BUILT_IN})]


def node_columns(nodes: Sequence[Node], blocks: bool = True) -> dict[str, Column]:
    """All columns by key; the key of an amount is its kind."""
    plain = [str(node["name"]) for node in nodes]
    age = [_age(node) for node in nodes]
    pressed = [_pressures(node, blocks) for node in nodes]
    found = {
        "node": Column.of("Node", [_name(node) for node in nodes], Form("Node", plain)),
        "state": Column.of("State", [str(node["state"]) for node in nodes]),
        "pressure": Column(
            tuple(
                Form(heading, [forms[i] for forms in pressed])
                for i, heading in enumerate(("Pressure", "Pressure", "all%"))
            )
        ),
        **{
            key: Column.of(key, [percent(_pressure(node, kind)) for node in nodes], right=True)
            for key, kind in _PARTS.items()
        },
        **{kind: _amounts(nodes, kind) for kind in kinds_of(nodes)},
        "lent": _usage("Lent", [node["lent"] for node in nodes]),
        "borrowed": _usage("Borrowed", [node["borrowed"] for node in nodes]),
        "age": Column.of("Age", age, right=True),
    }
    return found


def history_column(series: Sequence[Sequence[float | None]], blocks: bool, heading: str = "Last hour") -> Column:
    """The last hour of every node, as a curve."""
    return Column(
        tuple(
            Form(heading, [curve(one, width, blocks).rjust(width) for one in series])
            for width in (POINTS, POINTS // 2, POINTS // 3)
        )
    )


def node_styles(nodes: Sequence[Node], blocks: bool = True) -> dict[str, str]:
    """The colours of cells: a measured node by its pressure, any other by its state."""
    found: dict[str, str] = {}
    for node in nodes:
        overall = _pressure(node, "overall")
        style = STATES[node["state"]] if overall is None else colour(overall)
        found |= dict.fromkeys(_pressures(node, blocks), style)
        if node["state"] == "down":
            found |= {_name(node): "red", str(node["name"]): "red"}
    return found | STATES


def _name(node: Node) -> str:
    return f"{node['name']} (head)" if node.get("is_head") else str(node["name"])


def _pressure(node: Node, kind: str) -> float | None:
    """The measured pressure; None if the node has no recent measurement."""
    if node["state"] != "ok" or node["pressure"] is None:
        return None
    return cast("Mapping[str, float | None]", node["pressure"])[kind]


def _pressures(node: Node, blocks: bool) -> tuple[str, str, str]:
    """With a long bar, a short bar and none; a node without a pressure shows its state instead."""
    overall = _pressure(node, "overall")
    if overall is None:
        state, age = str(node["state"]), _age(node)
        aged = f"{state} {age}" if state == "stale" and age != "-" else state
        return aged, aged, state
    text = percent(overall).rjust(4)
    return f"{bar(overall, 10, blocks)} {text}", f"{bar(overall, 5, blocks)} {text}", text


def _age(node: Node) -> str:
    return "-" if node["age_seconds"] is None else span(node["age_seconds"])


def _usage(heading: str, each: Sequence[Mapping[str, float]]) -> Column:
    return Column.of(heading, [listed(one) for one in each], Form(heading, [first_of(one) for one in each]))


def _amounts(nodes: Sequence[Node], kind: str) -> Column:
    """Free / total, and the base in brackets where it differs from the total; the parts are aligned."""
    heading = _HEADINGS.get(kind, unit_label(kind))
    there = [bool(node["alive"] and (node["total"].get(kind) or node["base"].get(kind))) for node in nodes]
    free, total, base = ([short(node[part].get(kind, 0)) for node in nodes] for part in ("free", "total", "base"))

    def widest(texts: Sequence[str]) -> int:
        return max((len(text) for text, shown in zip(texts, there, strict=True) if shown), default=0)

    left, right = widest(free), widest(total)

    def cells(between: str, with_base: bool) -> list[str]:
        def cell(f: str, t: str, b: str) -> str:
            brackets = f" ({b})" if with_base and t != b else ""
            return f"{f.rjust(left)}{between}{t.rjust(right)}{brackets}"

        return [cell(*row) if shown else "-".rjust(left) for *row, shown in zip(free, total, base, there, strict=True)]

    narrow = _SHORT.get(kind, heading)
    return Column.of(heading, cells(" / ", True), Form(narrow, cells("/", True)), Form(narrow, cells("/", False)))


def sort_key(by: str) -> Callable[[Node], tuple[float, str]]:
    """A key for `sorted`: the highest pressure first, nodes without one last; `free`: the most free CPUs first."""
    if by == "name":
        return lambda node: (0.0, str(node["name"]))
    if by == "free":
        return lambda node: (-node["free"].get(CPU, 0), str(node["name"]))
    kind = "overall" if by == "pressure" else by

    def pressed(node: Node) -> tuple[float, str]:
        found = _pressure(node, kind)
        return (1.0 if found is None else -found, str(node["name"]))

    return pressed
