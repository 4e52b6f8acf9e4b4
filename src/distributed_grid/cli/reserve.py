"""grid reserve: create, ls, show, cancel. Windows promise capacity in advance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack, cast

import click

from distributed_grid.cli.capacity_options import (
    CapacityCommand,
    CapacityOptions,
    requested,
    with_window_options,
)
from distributed_grid.cli.columns import Canvas, Column, Form, fit, fitted_table
from distributed_grid.cli.commands import TIME, Group
from distributed_grid.cli.connection import with_client
from distributed_grid.cli.output import clock, distance, json_option, labelled, quantity, show
from distributed_grid.cli.parameters import ON_GRACE_END, WINDOW
from distributed_grid.cli.tables import bold
from distributed_grid.client import GridClient
from distributed_grid.model.plain_text import plain
from distributed_grid.model.times import span

if TYPE_CHECKING:
    from distributed_grid.wire.windows import CancelledWindow, Window, WindowOccurrence, WindowRequest


@click.group(cls=Group)
def reserve() -> None:
    """Promise capacity in advance, at times that may repeat: windows."""


@reserve.command(
    cls=CapacityCommand,
    examples=[
        'grid reserve create training gpu-master gpu 2 --at "Mon-Fri 09:00" --for 3h',
        'grid reserve create nightly gpu-master cpu 4 --at "daily 22:00" --for 6h --tz Europe/Berlin',
        'grid reserve create demo-day gpu-master gpu 1 --at "2027-03-01 14:00" --for 90m --priority high',
    ],
)
@click.argument("name")
@with_window_options
@click.option("--at", metavar="WHEN", required=True, help='Days or a date, and a time: "Mon-Fri 09:00", "daily 22:00".')
@click.option("--for", "length", metavar=TIME, required=True, help="How long each occurrence lasts.")
@click.option("--tz", metavar="ZONE", help="The time zone of --at, such as Europe/Berlin.  [default: the controller's]")
@click.option("--grace", metavar=TIME, help="How long its work may go on when its boost is taken back.")
@click.option(
    "--on-grace-end", metavar="hold|drain|kill", type=ON_GRACE_END, help="What happens then to work that still uses it."
)
@click.option("--reclaim-url", metavar="URL", help="Notify this URL before its boost is taken back.")
@json_option
@with_client
def create(
    client: GridClient,
    name: str,
    at: str,
    length: str,
    tz: str | None,
    grace: str | None,
    on_grace_end: str | None,
    reclaim_url: str | None,
    as_json: bool,
    **options: Unpack[CapacityOptions],
) -> None:
    """Promise AMOUNT of a resource to TARGET whenever the window NAME begins. Memory is in GB."""
    from distributed_grid.errors import InvalidRequest
    from distributed_grid.model.windows import check_window_name, parse_schedule

    bounds: CapacityOptions = {**options, "duration": length}
    body, ask = requested(bounds, grace_seconds=grace, on_grace_end=on_grace_end, reclaim_url=reclaim_url)
    if ask.elastic is not None:
        raise InvalidRequest(
            "A window promises a fixed amount, not a range", try_next="Promise what the work needs at least."
        )
    named = {"name": check_window_name(name), "at": str(parse_schedule(at)), "time_zone": tz}
    window: WindowRequest = cast("WindowRequest", {**body, **named})
    show(client.create_window(window), as_json, lambda made: window_card(made, Canvas.here()))


@reserve.command(examples=["grid reserve ls"])
@json_option
@with_client
def ls(client: GridClient, as_json: bool) -> None:
    """List all windows and when each begins next."""
    show(client.windows(), as_json, lambda found: window_table(found, Canvas.here()))


@reserve.command(name="show", examples=["grid reserve show training"])
@click.argument("name", type=WINDOW)
@json_option
@with_client
def show_window(client: GridClient, name: str, as_json: bool) -> None:
    """Show one window: its next occurrences, which nodes will lend, and its boost."""
    show(client.window(name), as_json, lambda found: window_card(found, Canvas.here()))


@reserve.command(examples=["grid reserve cancel training", "grid reserve cancel training --release"])
@click.argument("name", type=WINDOW)
@click.option("--release", is_flag=True, help="Also give back the boost that the window has now.")
@json_option
@with_client
def cancel(client: GridClient, name: str, release: bool, as_json: bool) -> None:
    """End a window's promise. The boost that it has now stays until it ends."""
    show(client.cancel_window(name, release=release), as_json, _cancelled_line)


def window_table(windows: list[Window], canvas: Canvas) -> str:
    if not windows:
        return (
            'There are no windows.\nTo make one:  grid reserve create NAME TARGET gpu 1 --at "Mon-Fri 09:00" --for 3h'
        )
    begins = [window["next"][0]["begin"] if window["next"] else None for window in windows]
    table = fit(
        {
            "name": Column.of("Window", [window["name"] for window in windows]),
            "what": Column.of("Promises", [labelled(each["resource_type"], each["amount"]) for each in windows]),
            "target": Column.of("For", [window["target_node"] for window in windows]),
            "at": Column.of("Begins", [f"{window['at']} {window['time_zone']}" for window in windows]),
            "length": Column.of("Lasts", [span(window["duration_seconds"]) for window in windows], right=True),
            "priority": Column.of("Priority", [window["priority"] for window in windows]),
            "team": Column.of("Team", [window["team"] for window in windows]),
            "state": Column.of("State", [window["state"] for window in windows]),
            "next": Column.of(
                "Next",
                [clock(begin) if begin else "-" for begin in begins],
                Form("Next", [distance(begin) if begin else "-" for begin in begins]),
            ),
        },
        ("team", "priority", "next"),
        canvas,
    )
    return fitted_table(table, {"promised": "cyan", "waiting": "yellow", "active": "green"})


def window_lines(windows: Sequence[Window], canvas: Canvas, most: int) -> list[str]:
    """The next windows in short, those that begin first; no lines if there is none."""
    begins = [(window["next"][0]["begin"], window) for window in windows if window["next"]]
    first = sorted(begins, key=lambda each: each[0])[:most]
    shown = [
        f"{window['name']} {distance(begin)}, {labelled(window['resource_type'], window['amount'])} for "
        f"{window['target_node']}" + ("" if window["next"][0]["is_on_time"] else " (late)")
        for begin, window in first
    ]
    more = f"; {len(begins) - len(first)} more" if len(begins) > len(first) else ""
    text = plain(f"{'; '.join(shown)}{more}")
    return canvas.wrapped(text, indent="  ", first=f"{bold('Windows:')} ") if shown else []


def window_card(window: Window, canvas: Canvas) -> str:
    """One window: what it promises and when, its boost, and its next occurrences."""
    what = quantity(window["resource_type"], window["amount"])
    state = click.style(window["state"], fg="green" if window["state"] == "active" else "yellow")
    lines = [
        f"{bold('Window')} {window['name']}  {state}",
        f"  {what} for {window['target_node']}, {window['at']} ({window['time_zone']}), "
        f"for {span(window['duration_seconds'])}",
        f"  priority {window['priority']}, team {window['team']}, by {window['requester'] or 'an unknown caller'}",
    ]
    if window["state"] == "waiting":
        lines += canvas.wrapped(f"It has begun, and waits: {window['reason'] or 'it is decided now'}", indent="  ")
    elif window["boost_id"]:
        lines.append(f"  its boost: {window['boost_id'][:8]}")
    if window["missed"]:
        lines.append(f"  missed so far: {window['missed']}")
    lines += [line for each in window["next"] for line in _occurrence_lines(each, canvas)]
    lines.append(f"  To end it:  grid reserve cancel {window['name']}")
    return "\n".join(lines)


def _occurrence_lines(one: WindowOccurrence, canvas: Canvas) -> list[str]:
    return canvas.wrapped(
        f"from {clock(one['begin'])} to {clock(one['end'])}: {one['reason']}", indent="      ", first="  "
    )


def _cancelled_line(found: CancelledWindow) -> str:
    line = f"The window {found['name']} promises nothing any more."
    if found["boost_id"] is None:
        return line
    short = found["boost_id"][:8]
    if found["boost_state"] == "active":
        ends = clock(found["expires_at"] or "")
        return f"{line}\nIts boost {short} stays until {ends}. To end it now:  grid boost release {short}"
    return f"{line}\nIts boost {short} is {found['boost_state']}."
