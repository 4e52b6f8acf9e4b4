"""What people see instead of JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from distributed_grid.cli.amounts import quantity
from distributed_grid.cli.canvas import Canvas
from distributed_grid.cli.columns import Column, Form, fit, fitted_table
from distributed_grid.cli.moments import clock, distance
from distributed_grid.model.resources import GPU

STATES = {"active": "green", "granting": "yellow", "releasing": "yellow", "lost": "red"}


def boost_card(boost: Mapping[str, Any]) -> str:
    """One boost, what it means, and what to do with it."""
    short = boost["boost_id"][:8]
    what = quantity(boost["resource_type"], boost["amount"])
    lines = [
        f"{bold('Boost')} {boost['boost_id']}  {click.style(boost['state'], fg=STATES.get(boost['state']))}",
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
        f"  grid run --boost {short} -- train_model.py     (unmodified; or any command)",
        f"  grid boost shell {short}                       (a shell in which all of them run there)",
        f"To give it back early:  grid boost release {short}",
    ]


def boost_table(status: Mapping[str, Any], canvas: Canvas | None = None) -> str:
    """Totals per resource type, then every boost."""
    canvas = canvas or Canvas()
    head = boost_totals(status, canvas)
    if not status["boosts"]:
        return f"{head}\nTo ask for one:  grid boost request NODE cpu|gpu|memory AMOUNT"
    return "\n".join([head, "", *boost_rows(status["boosts"], canvas)])


def boost_totals(status: Mapping[str, Any], canvas: Canvas) -> str:
    totals = ", ".join(quantity(kind, amount) for kind, amount in status["resources"].items() if amount) or "nothing"
    return "\n".join(
        canvas.flow([f"{bold('Active boosts:')} {status['total_active']}", f"{bold('Boosted:')} {totals}"])
    )


def boost_rows(boosts: Sequence[Mapping[str, Any]], canvas: Canvas) -> list[str]:
    """A line for each, then what is to be said about some."""

    def of(key: str) -> list[str]:
        return [str(boost[key]) for boost in boosts]

    left = [distance(boost["expires_at"]) for boost in boosts]
    until = [f"{clock(boost['expires_at'])} ({far})" for boost, far in zip(boosts, left, strict=True)]
    fitted = fit(
        {
            "id": Column.of("ID", [boost["boost_id"][:8] for boost in boosts]),
            "source": Column.of("Source", of("source_node")),
            "target": Column.of("Target", of("target_node")),
            "type": Column.of("Type", of("resource_type")),
            "amount": Column.of("Amount", of("amount"), right=True),
            "delivery": Column.of("Delivery", of("delivery")),
            "state": Column.of("State", of("state")),
            **({"for": Column.of("For", of("label"))} if any(of("label")) else {}),
            "allocated": Column.of("Allocated", [clock(boost["allocated_at"]) for boost in boosts]),
            "expires": Column.of("Expires", until, Form("Expires", left)),
        },
        ("for", "allocated", "expires", "delivery") if any(of("label")) else ("allocated", "expires", "delivery"),
        canvas,
    )
    notes = [
        click.style(line, fg="yellow")
        for boost in boosts
        for note in [*_asked_back(boost), *boost["warnings"]]
        for line in canvas.wrapped(f"{boost['boost_id'][:8]}: {note}", indent="  ", first="")
    ]
    return [fitted_table(fitted, STATES), *(["", *notes] if notes else [])]


def _asked_back(boost: Mapping[str, Any]) -> list[str]:
    if (notice := boost.get("notice")) is None:
        return []
    what = quantity(boost["resource_type"], notice["amount"])
    return [f"asked back: {what} ({notice['reason']}); taken at {clock(notice['deadline'])} if not given"]


def bold(text: str) -> str:
    return click.style(text, bold=True)
