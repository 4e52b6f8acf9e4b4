"""What people see instead of JSON."""

from collections.abc import Mapping
from typing import Any

import click

from distributed_grid.cli.columns import columns
from distributed_grid.cli.moments import clock, distance
from distributed_grid.model.resources import BUILT_IN, CPU, GPU, describe, scale, unit_label

_STATES = {"active": "green", "granting": "yellow", "releasing": "yellow", "lost": "red"}


def quantity(kind: str, amount: float) -> str:
    return describe(kind, round(amount * scale(kind)))


def boost_card(boost: Mapping[str, Any]) -> str:
    """One boost, what it means, and what to do with it."""
    short = boost["boost_id"][:8]
    what = quantity(boost["resource_type"], boost["amount"])
    lines = [
        f"{_bold('Boost')} {boost['boost_id']}  {click.style(boost['state'], fg=_STATES.get(boost['state']))}",
        f"  {what} from {boost['source_node']} to {boost['target_node']}, priority {boost['priority']}",
        f"  until {clock(boost['expires_at'])} ({distance(boost['expires_at'])})",
        f"  delivery: {boost['delivery']} ({boost['delivery_reason']})",
    ]
    if boost["state"] == "active":
        lines += [f"  {line}" for line in _how_to_use(boost, short)]
    return "\n".join(lines)


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


def boost_table(status: Mapping[str, Any]) -> str:
    """Totals per resource type, then every boost."""
    totals = ", ".join(quantity(kind, amount) for kind, amount in status["resources"].items() if amount) or "nothing"
    head = f"{_bold('Active boosts:')} {status['total_active']}   {_bold('Boosted:')} {totals}"
    if not status["boosts"]:
        return f"{head}\nTo ask for one:  grid boost request NODE cpu|gpu|memory AMOUNT"
    table = columns(
        ("ID", "Source", "Target", "Type", "Amount", "Delivery", "State", "Allocated", "Expires"),
        [
            (
                boost["boost_id"][:8],
                boost["source_node"],
                boost["target_node"],
                boost["resource_type"],
                f"{boost['amount']}",
                boost["delivery"],
                boost["state"],
                clock(boost["allocated_at"]),
                f"{clock(boost['expires_at'])} ({distance(boost['expires_at'])})",
            )
            for boost in status["boosts"]
        ],
        right=["Amount"],
        styles=_STATES,
    )
    notes = [
        click.style(f"{boost['boost_id'][:8]}: {note}", fg="yellow")
        for boost in status["boosts"]
        for note in boost["warnings"]
    ]
    return "\n".join([head, "", table, *(["", *notes] if notes else [])])


def cluster_view(status: Mapping[str, Any]) -> str:
    """Every node's capacity, then the boosts."""
    kinds = [*BUILT_IN, *sorted({k for n in status["nodes"] for k in (*n["base"], *n["total"])} - {*BUILT_IN})]
    controller = status["controller"]
    head = (
        f"{_bold('Ray')} {status['ray_address']}   "
        f"{_bold('Controller')} {controller['state']} at {controller['url']}   (free / total, base in brackets)"
    )
    table = columns(
        ("Node", *("memory GB" if kind == "memory" else kind for kind in kinds), "Lent", "Borrowed"),
        [
            (
                _node_name(node),
                *(_cell(node, kind) for kind in kinds),
                _amounts(node["lent"]),
                _amounts(node["borrowed"]),
            )
            for node in status["nodes"]
        ],
        styles={_node_name(node): "red" for node in status["nodes"] if not node["alive"]},
    )
    problems = [click.style(problem, fg="yellow") for problem in status.get("problems", ())]
    return "\n".join([head, "", table, "", *problems, boost_table(status["boosts"])])


def _node_name(node: Mapping[str, Any]) -> str:
    if not node["alive"]:
        return f"{node['name']} (down)"
    return f"{node['name']} (head)" if node.get("is_head") else str(node["name"])


def _cell(node: Mapping[str, Any], kind: str) -> str:
    if not node["total"].get(kind) and not node["base"].get(kind):
        return "-"
    free, total, base = (_short(node[part].get(kind, 0)) for part in ("free", "total", "base"))
    return f"{free} / {total}" if total == base else f"{free} / {total} ({base})"


def _short(amount: float) -> str:
    return f"{amount:.1f}".removesuffix(".0")


def _amounts(amounts: Mapping[str, float]) -> str:
    return ", ".join(_labelled(kind, amount) for kind, amount in amounts.items() if amount) or "-"


def _labelled(kind: str, amount: float) -> str:
    label = unit_label(kind)
    return f"{_short(amount)} {label[:-1] if amount == 1 and kind in (CPU, GPU) else label}"


def sharing_view(status: Mapping[str, Any]) -> str:
    enabled = click.style("enabled", fg="green") if status["enabled"] else click.style("not enabled", fg="red")
    head = (
        f"{_bold('Resource sharing')} {enabled}   "
        f"mode {status['mode']}, policy {status['policy']}, delivery {status['delivery']}"
    )
    table = columns(
        ("Node", "Lends", "Limits", "Lent", "Borrowed", "Free"),
        [
            (
                _node_name(node),
                "yes" if node["can_share"] else "no",
                _limits(node),
                _amounts(node["lent"]),
                _amounts(node["borrowed"]),
                _amounts(node["free"]),
            )
            for node in status["nodes"]
        ],
    )
    return f"{head}\n\n{table}"


def _limits(node: Mapping[str, Any]) -> str:
    if not node["can_share"]:
        return "-"
    limits = [_labelled(kind, limit) for kind, limit in node["limits"].items() if limit is not None]
    return ", ".join(limits) or "whatever is free"


def _bold(text: str) -> str:
    return click.style(text, bold=True)
