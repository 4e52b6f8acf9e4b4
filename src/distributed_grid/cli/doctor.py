"""grid doctor: check everything that grid needs, and say what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from distributed_grid.cli.columns import Canvas
from distributed_grid.cli.commands import Command
from distributed_grid.cli.findings import findings_view
from distributed_grid.cli.output import json_option, say, show
from distributed_grid.errors import CheckFailed

if TYPE_CHECKING:
    from distributed_grid.wire.audit import AuditFinding

# Longer than the checkup lets a cluster hang.
PATIENCE_S = 100.0


@click.command(cls=Command, examples=["grid doctor", "grid doctor --address 10.0.0.5:6379"])
@click.option(
    "--address",
    metavar="HOST:PORT",
    help="The Ray cluster (default: the controller's, the embedded one's, or $RAY_ADDRESS).",
)
@json_option
def doctor(address: str | None, as_json: bool) -> None:
    """Check everything that grid needs, and suggest fixes.

    The exit code is 0 if no check failed, otherwise 9. The checks create a resource `grid:doctor`
    on the head and a tiny placement group, and remove both immediately.
    """
    say("Checking this machine and the cluster ...")
    findings = examine(address)
    failed = [finding for finding in findings if finding["severity"] == "fail"]
    rows = [(finding["severity"], finding) for finding in findings]
    show(
        {"ok": not failed, "findings": findings},
        as_json,
        lambda _: findings_view(rows, Canvas.here(), heading="Check"),
    )
    if failed:
        raise CheckFailed(
            f"{len(failed)} of {len(findings)} checks failed",
            because=[f"{finding['code']}: {finding['detail']}" for finding in failed],
            try_next=next((finding["what_to_do"] for finding in failed if finding["what_to_do"]), None),
        )


def examine(address: str | None) -> list[AuditFinding]:
    """The findings of all checks, in their JSON form."""
    from pydantic import TypeAdapter

    from distributed_grid.cluster.attach import ask_apart
    from distributed_grid.decide.diagnosis import diagnose
    from distributed_grid.model.checkup_facts import Facts
    from distributed_grid.store.home import GridHome

    order = {"home": str(GridHome.find().path), "address": address}
    seen = ask_apart(
        "distributed_grid.controller.checkup",
        order,
        if_silent="Check whether this machine is short of CPU time or memory, then try again.",
        patience_s=PATIENCE_S,
    )
    return [finding.to_dict() for finding in diagnose(TypeAdapter(Facts).validate_python(seen))]
