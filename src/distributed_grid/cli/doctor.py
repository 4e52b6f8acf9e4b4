"""grid doctor: check everything that grid needs, and say what to do."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from distributed_grid.cli.commands import Command
from distributed_grid.cli.output import json_option, say, show
from distributed_grid.errors import CheckFailed

if TYPE_CHECKING:
    from rich.console import RenderableType

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}
# Longer than the checkup lets a cluster hang.
_PATIENCE_S = 100.0


@click.command(cls=Command, examples=["grid doctor", "grid doctor --address 10.0.0.5:6379"])
@click.option(
    "--address",
    metavar="HOST:PORT",
    help="The Ray cluster (default: the controller's, the embedded one's, or $RAY_ADDRESS).",
)
@json_option
def doctor(address: str | None, as_json: bool) -> None:
    """Check everything that grid needs, and say what to do.

    Ends with 0 if nothing failed, else with 9. It changes nothing but, for a moment, a resource `grid:doctor`
    on the head and a tiny placement group.
    """
    say("Looking at this machine and the cluster ...")
    findings = examine(address)
    failed = [finding for finding in findings if finding["status"] == "fail"]
    show({"ok": not failed, "findings": findings}, as_json, findings_view)
    if failed:
        raise CheckFailed(
            f"{len(failed)} of {len(findings)} checks failed",
            because=[f"{finding['check']}: {finding['detail']}" for finding in failed],
            try_next=next((finding["what_to_do"] for finding in failed if finding["what_to_do"]), None),
        )


def examine(address: str | None) -> list[dict[str, Any]]:
    """The findings of all checks, in their JSON form."""
    from dataclasses import asdict

    from pydantic import TypeAdapter

    from distributed_grid.cluster.attach import ask_apart
    from distributed_grid.decide.diagnosis import diagnose
    from distributed_grid.model.checkup_facts import Facts
    from distributed_grid.store.home import GridHome

    order = {"home": str(GridHome.find().path), "address": address}
    seen = ask_apart(
        "distributed_grid.controller.checkup",
        order,
        if_silent="See whether this machine has CPU time and memory to spare, then try again.",
        patience_s=_PATIENCE_S,
    )
    return [asdict(finding) for finding in diagnose(TypeAdapter(Facts).validate_python(seen))]


def findings_view(told: Mapping[str, Any]) -> "RenderableType":
    """The table, and under it what to do."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Check", no_wrap=True)
    table.add_column("Status", no_wrap=True)
    table.add_column("Detail", overflow="fold")
    for finding in told["findings"]:
        status = finding["status"]
        table.add_row(finding["check"], Text(status, style=_STYLES[status]), Text(finding["detail"]))
    to_do: dict[str, list[Text]] = {}
    for finding in told["findings"]:
        if finding["status"] != "ok" and finding["what_to_do"]:
            named = Text(finding["check"], style=_STYLES[finding["status"]])
            to_do.setdefault(finding["what_to_do"], []).append(named)
    if not to_do:
        return table
    lines = [Text.assemble("  ", Text(", ").join(checks), ": ", what) for what, checks in to_do.items()]
    return Group(table, Text(), Text("To do:", style="bold"), *lines)
