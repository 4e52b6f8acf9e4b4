"""What people see instead of JSON."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from distributed_grid.cli.moments import clock, distance
from distributed_grid.model.resources import BUILT_IN, GPU, describe, scale, unit_label

_STATE_STYLE = {"active": "green", "granting": "yellow", "releasing": "yellow", "lost": "red"}


def quantity(kind: str, amount: float) -> str:
    return describe(kind, round(amount * scale(kind)))


def boost_card(boost: Mapping[str, Any]) -> RenderableType:
    """One boost, what it means, and what to do with it."""
    short = boost["boost_id"][:8]
    what = quantity(boost["resource_type"], boost["amount"])
    lines = [
        Text.assemble(
            ("Boost ", "bold"),
            boost["boost_id"],
            "  ",
            (boost["state"], _STATE_STYLE.get(boost["state"], "dim")),
        ),
        Text(f"  {what} from {boost['source_node']} to {boost['target_node']}, priority {boost['priority']}"),
        Text(f"  until {clock(boost['expires_at'])} ({distance(boost['expires_at'])})"),
        Text(f"  delivery: {boost['delivery']} ({boost['delivery_reason']})"),
    ]
    if boost["state"] == "active":
        lines += [Text(f"  {line}") for line in _how_to_use(boost, short)]
    return Group(*lines)


def _how_to_use(boost: Mapping[str, Any], short: str) -> list[str]:
    if boost["delivery"] == "transfer":
        return [
            f"{boost['target_node']} has it now: every Ray program there sees it, unmodified.",
            f"To give it back early:  grid boost release {short}",
        ]
    subject = "The GPU is" if boost["resource_type"] == GPU else "It is"
    return [
        f"{subject} reserved on {boost['source_node']} for your Ray tasks. To use it:",
        f"  grid boost shell {short} -- python train_model.py     (unmodified; or without a command: a shell)",
        f"To give it back early:  grid boost release {short}",
    ]


def boost_table(status: Mapping[str, Any]) -> RenderableType:
    """Totals per resource type, then every boost."""
    sums = status["resources"]
    active = status["total_active"]
    totals = ", ".join(quantity(kind, amount) for kind, amount in sums.items() if amount) or "nothing"
    head = Text.assemble(("Active boosts: ", "bold"), str(active), ("   Boosted: ", "bold"), totals)
    if not status["boosts"]:
        return Group(head, Text("To ask for one:  grid boost request NODE cpu|gpu|memory AMOUNT", style="dim"))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("ID", "Source", "Target", "Type", "Amount", "Delivery", "State", "Allocated", "Expires"):
        table.add_column(column, justify="right" if column == "Amount" else "left", no_wrap=column == "ID")
    for boost in status["boosts"]:
        table.add_row(
            boost["boost_id"][:8],
            boost["source_node"],
            boost["target_node"],
            boost["resource_type"],
            f"{boost['amount']}",
            boost["delivery"],
            Text(boost["state"], style=_STATE_STYLE.get(boost["state"], "")),
            clock(boost["allocated_at"]),
            f"{clock(boost['expires_at'])} ({distance(boost['expires_at'])})",
        )
    notes = [Text(f"{b['boost_id'][:8]}: {note}", style="yellow") for b in status["boosts"] for note in b["warnings"]]
    return Group(head, Text(), table, *([Text(), *notes] if notes else []))


def cluster_view(status: Mapping[str, Any]) -> RenderableType:
    """Every node's capacity, then the boosts."""
    kinds = [
        *BUILT_IN,
        *sorted({k for n in status["nodes"] for k in (*n["base"], *n["total"])} - {*BUILT_IN}),
    ]
    controller = status["controller"]
    head = Text.assemble(
        ("Ray ", "bold"),
        status["ray_address"],
        ("   Controller ", "bold"),
        f"{controller['state']} at {controller['url']}",
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Node")
    for kind in kinds:
        label = {"memory": "memory GB"}.get(kind, kind)
        table.add_column(f"{label}: free/total (base)", justify="right")
    table.add_column("Lent")
    table.add_column("Borrowed")
    for node in status["nodes"]:
        if not node["alive"]:
            table.add_row(Text(f"{node['name']} (down)", style="red"))
            continue
        cells = [_cell(node, kind) for kind in kinds]
        name = f"{node['name']} (head)" if node["is_head"] else node["name"]
        table.add_row(name, *cells, _amounts(node["lent"]), _amounts(node["borrowed"]))
    problems = [Text(problem, style="yellow") for problem in status.get("problems", ())]
    return Group(head, Text(), table, Text(), *problems, boost_table(status["boosts"]))


def _cell(node: Mapping[str, Any], kind: str) -> Text:
    free, total, base = (_short(node[part].get(kind, 0)) for part in ("free", "total", "base"))
    if not node["total"].get(kind) and not node["base"].get(kind):
        return Text("-", style="dim")
    changed = total != base
    return Text(f"{free}/{total} ({base})", style="cyan" if changed else "")


def _short(amount: float) -> str:
    return f"{amount:.1f}".removesuffix(".0")


def _amounts(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{_short(v)} {unit_label(k)}" for k, v in amounts.items() if v) or "-"


def sharing_view(status: Mapping[str, Any]) -> RenderableType:
    enabled = ("enabled", "green") if status["enabled"] else ("not enabled", "red")
    head = Text.assemble(
        ("Resource sharing ", "bold"),
        enabled,
        f"   mode {status['mode']}, policy {status['policy']}, delivery {status['delivery']}",
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("Node", "Lends", "Limits", "Lent", "Borrowed", "Free"):
        table.add_column(column)
    for node in status["nodes"]:
        limits = ", ".join(f"{v} {unit_label(k)}" for k, v in node["limits"].items() if v is not None)
        table.add_row(
            node["name"] if node["alive"] else Text(f"{node['name']} (down)", style="red"),
            "yes" if node["can_share"] else "no",
            limits or "whatever is free" if node["can_share"] else "-",
            _amounts(node["lent"]),
            _amounts(node["borrowed"]),
            _amounts(node["free"]),
        )
    return Group(head, Text(), table)
