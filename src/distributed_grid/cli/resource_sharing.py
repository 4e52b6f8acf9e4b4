"""grid resource-sharing: lending limits, the queue, teams, and the policy in force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, Unpack

import click

from distributed_grid.cli.capacity_options import CapacityCommand, CapacityOptions, requested, with_capacity_options
from distributed_grid.cli.columns import Canvas, Column, Form, columns, fit, fitted_table
from distributed_grid.cli.commands import TIME, Group
from distributed_grid.cli.connection import with_client
from distributed_grid.cli.output import (
    clock,
    distance,
    json_option,
    keep_showing,
    labelled,
    listed,
    quantity,
    say,
    show,
)
from distributed_grid.cli.parameters import MODE, POLICY, REQUEST
from distributed_grid.cli.plan import what_became_of
from distributed_grid.cli.tables import bold, boost_card, not_all, return_line
from distributed_grid.client import GridClient
from distributed_grid.model.plain_text import plain
from distributed_grid.model.times import span

if TYPE_CHECKING:
    from distributed_grid.wire.queue import Allocation, AllocationRequest, QueueHead, QueueStatus
    from distributed_grid.wire.sharing import PolicyStatus, SharingNode, SharingStatus


def sharing_view(status: SharingStatus, canvas: Canvas) -> str:
    enabled = click.style("enabled", fg="green") if status["enabled"] else click.style("not enabled", fg="red")
    head = canvas.flow(
        [f"{bold('Resource sharing')} {enabled}", *policy_words(status), f"delivery {status['delivery']}"], gap="   "
    )
    parts = ["\n".join(head), _nodes(status, canvas)]
    if len(status["teams"]) > 1 or any(any(team["guaranteed"].values()) for team in status["teams"]):
        parts.append(_teams(status, canvas))
    if waiting := waiting_lines(status, canvas):
        parts.append("\n".join(waiting))
    return "\n\n".join(parts)


def policy_words(status: PolicyStatus) -> list[str]:
    def setting(what: str, now: str, configured: str) -> str:
        return f"{what} {now}" + (f" (set; configured: {configured})" if configured != now else "")

    return [
        setting("mode", status["mode"], status["configured_mode"]),
        setting("policy", status["policy"], status["configured_policy"]),
    ]


def _nodes(status: SharingStatus, canvas: Canvas) -> str:
    nodes = status["nodes"]

    def cells(key: Literal["lent", "borrowed", "free"]) -> list[str]:
        return [listed(node[key]) for node in nodes]

    table = fit(
        {
            "node": Column.of("Node", [_name(node) for node in nodes]),
            "lends": Column.of("Lends", [_lends(node) for node in nodes]),
            "limits": Column.of("Limits", [_limits(node) for node in nodes]),
            "lent": Column.of("Lent", cells("lent")),
            "borrowed": Column.of("Borrowed", cells("borrowed")),
            "free": Column.of("Free", cells("free")),
        },
        ("limits", "free"),
        canvas,
    )
    return fitted_table(table, {"cordoned": "yellow", "no": "yellow"})


def _name(node: SharingNode) -> str:
    return str(node["name"]) if node["alive"] else f"{node['name']} (down)"


def _lends(node: SharingNode) -> str:
    return "cordoned" if node["cordoned"] else "yes" if node["can_share"] else "no"


def _limits(node: SharingNode) -> str:
    if not node["can_share"]:
        return "-"
    limits = [labelled(kind, limit) for kind, limit in node["limits"].items() if limit is not None]
    return ", ".join(limits) or "whatever is free"


def _teams(status: SharingStatus, canvas: Canvas) -> str:
    teams = status["teams"]
    table = fit(
        {
            "team": Column.of("Team", [team["name"] for team in teams]),
            "held": Column.of("Holds", [listed(team["held"]) for team in teams]),
            "guaranteed": Column.of("Guaranteed", [listed(team["guaranteed"]) for team in teams]),
            "borrows": Column.of(
                "Borrowing limit", [_limit(team["borrowing_limit"], "whatever is free") for team in teams]
            ),
            "lends": Column.of("Lending limit", [_limit(team["lending_limit"], "all") for team in teams]),
            "weight": Column.of("Weight", [f"{team['weight']:g}" for team in teams], right=True),
        },
        ("weight", "lends", "borrows"),
        canvas,
    )
    return fitted_table(table)


def _limit(limits: Mapping[str, float], without: str) -> str:
    return ", ".join(labelled(kind, amount) for kind, amount in limits.items()) or without


def queue_view(queue: QueueStatus, canvas: Canvas) -> str:
    """The waiting requests, the next one first, and below each what it waits for."""
    requests = queue["requests"]
    if not requests:
        return f"{bold('Queue:')} empty"
    starts = [clock(r["expected_start"]) if r["expected_start"] else "no estimate" for r in requests]
    soon = [distance(r["expected_start"]) if r["expected_start"] else "?" for r in requests]
    table = fit(
        {
            "position": Column.of("#", [str(r["position"] or "-") for r in requests], right=True),
            "id": Column.of("Request", [r["request_id"][:8] for r in requests]),
            "what": Column.of("Wants", [labelled(r["resource_type"], r["amount"]) for r in requests]),
            "target": Column.of("For", [r["target_node"] for r in requests]),
            "priority": Column.of("Priority", [r["priority"] for r in requests]),
            "team": Column.of("Team", [r["team"] for r in requests]),
            "waited": Column.of("Waited", [span(r["waited_seconds"]) for r in requests], right=True),
            "start": Column.of("Expected start", starts, Form("Starts", soon)),
        },
        ("start", "team", "waited"),
        canvas,
    )
    texts = [f"{r['request_id'][:8]}: {r['reason']}" for r in requests]
    reasons = [line for text in texts for line in canvas.wrapped(text, indent="    ", first="  ")]
    return "\n".join([fitted_table(table), "", *reasons, *not_all(queue)])


def waiting_lines(status: QueueHead, canvas: Canvas, most: int | None = None) -> list[str]:
    """The number of requests in grid's own queue, and the first of them; no lines if none waits."""
    count, first = status.get("waiting", 0), status.get("queue", ())[:most]
    if not count:
        return []
    lines = [f"{bold('Waiting in the queue:')} {count} request{'s' * (count != 1)}"]
    for one in first:
        what = f"{labelled(one['resource_type'], one['amount'])} for {one['target_node']}"
        when = f"expected {distance(one['expected_start'])}" if one["expected_start"] else "no estimate"
        text = f"{one['request_id'][:8]}: {what}, priority {one['priority']}, {when}: {one['reason']}"
        lines += canvas.wrapped(plain(text), indent="      ", first="  ")
    more = f"{count - len(first)} more" if count > len(first) else "Details"
    return [*lines, click.style(f"  {more}: grid resource-sharing queue", dim=True)]


def allocation_card(found: Allocation, canvas: Canvas) -> str:
    """One request: its boost, or its position in the queue."""
    if found["boost"] is not None:
        return boost_card(found["boost"])
    waiting = found["waiting"]
    assert waiting is not None, "a request waits, or is a boost"
    short = found["request_id"][:8]
    what = quantity(waiting["resource_type"], waiting["amount"])
    place = f"number {waiting['position']} in the queue" if waiting["position"] else "in the queue"
    lines = [
        f"{bold('Request')} {found['request_id']}  {click.style(found['state'], fg='yellow')}",
        f"  {what} for {waiting['target_node']}, priority {waiting['priority']}, {place}",
        *canvas.wrapped(waiting["reason"], indent="  "),
    ]
    if waiting["expected_start"]:
        lines.append(f"  expected start: {clock(waiting['expected_start'])} ({distance(waiting['expected_start'])})")
    lines += [
        "  To see the queue:  grid resource-sharing queue",
        f"  To withdraw it:    grid resource-sharing release {short}",
    ]
    return "\n".join(lines)


def released_line(found: Allocation) -> str:
    if found["boost"] is None:
        return f"Request {found['request_id']} was withdrawn"
    return return_line(found["boost"])


def policy_view(status: PolicyStatus) -> str:
    numbers = {name.replace("_", " "): _shown(value) for name, value in status["numbers"].items()}
    head = f"{bold('Sharing')}  {', '.join(policy_words(status))}"
    return f"{head}\n\n{columns(('Number', 'Value'), list(numbers.items()), right=('Value',))}"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


@click.group("resource-sharing", cls=Group)
def resource_sharing() -> None:
    """Queue requests; show or set the policy; show what nodes may lend."""


@resource_sharing.command(examples=["grid resource-sharing status"])
@json_option
@with_client
def status(client: GridClient, as_json: bool) -> None:
    """Show the policy in force, every node's limits, every team's part, and which requests wait."""
    from distributed_grid.cli.columns import Canvas

    show(client.sharing_status(), as_json, lambda found: sharing_view(found, Canvas.here()))


@resource_sharing.command(
    cls=CapacityCommand,
    examples=[
        "grid resource-sharing request gpu-master cpu 8",
        "grid resource-sharing request gpu-master gpu 1 --wait 2h",
    ],
)
@with_capacity_options
@click.option("--wait", metavar=TIME, help="Withdraw the request after this long.  [default: never]")
@json_option
@with_client
def request(client: GridClient, wait: str | None, as_json: bool, **options: Unpack[CapacityOptions]) -> None:
    """Request AMOUNT of a resource for TARGET. If the request has to wait, it stays in the queue."""
    from distributed_grid.cli.columns import Canvas
    from distributed_grid.model.validators import waiting_time

    wait_s = None if wait is None else waiting_time(wait)
    body: AllocationRequest = {**requested(options)[0], "wait_seconds": wait_s}
    show(client.request_allocation(body), as_json, lambda one: allocation_card(one, Canvas.here()))


@resource_sharing.command(examples=["grid resource-sharing release 3f2a91c0"])
@click.argument("request_id", type=REQUEST)
@json_option
@with_client
def release(client: GridClient, request_id: str, as_json: bool) -> None:
    """Withdraw a waiting request, or give back the boost that it became. REQUEST_ID may be shortened."""

    with what_became_of(client, request_id):
        released = client.release_allocation(request_id)
    show(released, as_json, released_line)


@resource_sharing.command(examples=["grid resource-sharing queue", "grid resource-sharing queue --watch"])
@click.option("--watch", is_flag=True, help="Keep the output up to date until Ctrl-C.")
@json_option
@with_client
def queue(client: GridClient, watch: bool, as_json: bool) -> None:
    """List the waiting requests: position, reason and expected start."""
    from distributed_grid.cli.columns import Canvas

    if watch:
        keep_showing(client.queue, as_json, lambda found: queue_view(found, Canvas.here()))
        return
    show(client.queue(), as_json, lambda found: queue_view(found, Canvas.here()))


@resource_sharing.group()
def policy() -> None:
    """Show or set the policy (how readily capacity moves) and the mode (what may happen)."""


@policy.command(name="show", examples=["grid resource-sharing policy show"])
@json_option
@with_client
def show_policy(client: GridClient, as_json: bool) -> None:
    """Show the policy and mode in force, with their numbers."""

    found = client.sharing_status()
    policy: PolicyStatus = {
        "policy": found["policy"],
        "mode": found["mode"],
        "configured_policy": found["configured_policy"],
        "configured_mode": found["configured_mode"],
        "numbers": found["numbers"],
    }
    show(policy, as_json, policy_view)


@policy.command(
    name="set",
    examples=[
        "grid resource-sharing policy set aggressive",
        "grid resource-sharing policy set --mode dynamic_balancing",
        "grid resource-sharing policy set configured",
    ],
)
@click.argument("name", metavar="[POLICY]", required=False, type=POLICY)
@click.option("--mode", type=MODE, help="Set the mode: offload_only, share_and_offload or dynamic_balancing.")
@json_option
@with_client
def set_policy(client: GridClient, name: str | None, mode: str | None, as_json: bool) -> None:
    """Set the policy from now on: conservative, balanced, aggressive or predictive.

    The setting persists across restarts; `configured` goes back to the configuration's.
    """
    from distributed_grid.model.policies import check_change

    check_change(name, mode)  # invalid input is refused without a cluster
    found = client.set_policy(policy=name, mode=mode)
    show(found, as_json, policy_view)
    if as_json:
        return
    if (found["policy"], found["mode"]) == (found["configured_policy"], found["configured_mode"]):
        say("In force now, as configured.")
    else:
        say("In force now, and after restarts. To undo it: grid resource-sharing policy set configured")
