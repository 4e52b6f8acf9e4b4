"""grid roles up, status, scale, down, logs: runs of whole workloads."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

from distributed_grid.cli.commands import TIME, Command
from distributed_grid.cli.connection import with_client
from distributed_grid.cli.output import StatusLine, json_option, keep_showing, say, show, show_output
from distributed_grid.cli.parameters import ROLE_RUN
from distributed_grid.client import GridClient
from distributed_grid.errors import CannotScale, InvalidRole, RoleRunInUse, RoleRunNotFound, RoleRunOver
from distributed_grid.model.roles.runs import is_over

if TYPE_CHECKING:
    from distributed_grid.model.roles.workload import Workload
    from distributed_grid.wire.roles import RoleRun


def startable(file: str) -> Workload:
    from distributed_grid.config.roles_file import load_workload

    loaded = load_workload(file)
    for warning in loaded.warnings:
        say(f"Warning: {warning}")
    without = [role.name for role in loaded.workload.roles if role.cls is None]
    if without:
        raise InvalidRole(
            f"{loaded.source} gives no class for {', '.join(without)}",
            because=["a role without a class can be planned, but not started"],
            try_next="Add to each of them: class: module:Class",
        )
    return loaded.workload


def free_name(client: GridClient, name: str) -> str:
    """The name, if no live run has it. The launcher checks again."""

    try:
        there = client.role_run(name)
    except RoleRunNotFound:
        return name
    if is_over(there):
        return name
    owner = there["owner"]
    raise RoleRunInUse(
        f"A run named {name} already exists and is {there['state']}",
        because=[f"it belongs to process {owner['pid']} on {owner['node']}"],
        try_next=f"Use another --name, or end that run: grid roles down {name}",
    )


_LOOK_S: Final = 0.3
_STUCK_S: Final = 10.0

Show = Callable[[str], None]


def until_scaled(client: GridClient, name: str, role: str, count: int, within_s: float, show: Show) -> RoleRun:
    """Wait until `count` members of the role answer. Raises if the run ends, or makes no progress for a while."""
    from distributed_grid.decide.roles.runs import reached

    deadline = time.monotonic() + within_s
    stuck_since: float | None = None
    while True:
        run = client.role_run(name)
        if is_over(run) or run["state"] == "stopping":
            raise RoleRunOver(f"The run {name} is {run['state']}", because=[run["why"]] if run["why"] else [])
        now, far = time.monotonic(), reached(run, role, count)
        if far.done:
            return run
        show(far.progress)
        stuck_since = (stuck_since or now) if far.stuck else None
        is_stuck = stuck_since is not None and now - stuck_since > _STUCK_S
        if is_stuck or now > deadline:
            raise CannotScale(
                f"{role} of {name} does not have {count} members" + ("" if is_stuck else f" after {within_s:g} s"),
                because=[far.progress, *([run["why"]] if run["why"] else [])],
                try_next=f"The run keeps trying. See grid roles status {name}, or request another count.",
            )
        time.sleep(_LOOK_S)


def until_down(client: GridClient, name: str, within_s: float, show: Show) -> None:
    """Wait until a run whose end was requested is gone, then remove its record."""
    from distributed_grid.decide.roles.runs import not_ended

    deadline = time.monotonic() + within_s
    while True:
        try:
            run = client.role_run(name)
            if is_over(run):
                client.role_run_down(name, only_over=True)
                return
        except RoleRunNotFound:
            return
        show(f"{name} is {run['state']}: {sum(role['up'] for role in run['roles'])} members are up")
        if time.monotonic() > deadline:
            raise not_ended(run, within_s)
        time.sleep(_LOOK_S)


@click.command(
    cls=Command, examples=["grid roles up workload.yaml", "grid roles up workload.yaml --name nightly --wait 10m"]
)
@click.argument("file", type=click.Path())
@click.option("--name", metavar="NAME", help="The run's name.  [default: the workload's]")
@click.option(
    "--working-dir",
    type=click.Path(exists=True, file_okay=False),
    help="Folder with the classes; Ray ships it to every node.  [default: this folder, which every node must have]",
)
@click.option("--wait", default="0", metavar=TIME, help="Wait this long for room instead of failing.")
@click.option("--foreground", is_flag=True, help="Stay until the run ends, and show its output here.")
@json_option
@with_client
def up(
    client: GridClient,
    file: str,
    name: str | None,
    working_dir: str | None,
    wait: str,
    foreground: bool,
    as_json: bool,
) -> None:
    """Start the workload in FILE: all of it, or nothing."""
    import sys

    from distributed_grid.errors import GridError
    from distributed_grid.model.validators import waiting_time
    from distributed_grid.run.role_starter import Order, OwnerProcess

    wait_s = waiting_time(wait)
    workload = startable(file)
    name = free_name(client, name or workload.name)
    order = Order(name, file, working_dir, wait_s, foreground)
    with OwnerProcess(client.home, order) as owner:
        with StatusLine() as line:

            def look() -> None:
                try:
                    line.show(client.role_run(name)["progress"] or "starting ...")
                except GridError:  # the run has not begun, or the controller does not answer just now
                    line.show("starting ...")

            owner.until_up(look)
        _show_run(client, name, as_json)
        if not foreground:
            say(f"To see its status:  grid roles status {name}\nTo end it:          grid roles down {name}")
            return
        sys.exit(owner.stay())


@click.command(cls=Command, examples=["grid roles status", "grid roles status nightly --watch"])
@click.argument("name", required=False, type=ROLE_RUN)
@click.option("--all", "each", is_flag=True, help="Show every member on its own line, however many there are.")
@click.option("--watch", is_flag=True, help="Keep the output up to date until Ctrl-C.")
@json_option
@with_client
def status(client: GridClient, name: str | None, each: bool, watch: bool, as_json: bool) -> None:
    """List all runs; or show every member of the run NAME: its node, state, restarts and queue."""
    from distributed_grid.cli.columns import Canvas
    from distributed_grid.cli.role_runs_view import run_view, runs_view

    if watch:
        if name is None:
            keep_showing(client.role_runs, as_json, lambda found: runs_view(found, Canvas.here()))
        else:
            keep_showing(lambda: client.role_run(name), as_json, lambda run: run_view(run, Canvas.here(), each=each))
    elif name is None:
        show(client.role_runs(), as_json, lambda found: runs_view(found, Canvas.here()))
    else:
        _show_run(client, name, as_json, each=each)


@click.command(cls=Command, examples=["grid roles scale nightly actor 4 --wait 10m"])
@click.argument("name", type=ROLE_RUN)
@click.argument("role")
@click.argument("count", type=click.IntRange(min=0))
@click.option("--wait", default="5m", metavar=TIME, show_default=True, help="Wait this long for all members to be up.")
@click.option("--no-wait", is_flag=True, help="Return at once; the run scales when it reads the request.")
@json_option
@with_client
def scale(client: GridClient, name: str, role: str, count: int, wait: str, no_wait: bool, as_json: bool) -> None:
    """Set the number of members of ROLE in the run NAME to COUNT, within the limits of its workload."""
    from distributed_grid.model.validators import waiting_time

    within_s = waiting_time(wait)
    answer = client.scale_role(name, role, count)
    if no_wait:
        show(answer, as_json, lambda _: f"{name}: {count} {role} member{'s' * (count != 1)} requested.")
        return
    with StatusLine() as line:
        scaled = until_scaled(client, name, role, count, within_s, line.show)
    show(scaled, as_json, lambda _: f"{name}: {count} {role} member{'s are' if count != 1 else ' is'} up.")


@click.command(cls=Command, examples=["grid roles down nightly"])
@click.argument("name", type=ROLE_RUN)
@click.option("--wait", default="2m", metavar=TIME, show_default=True, help="Wait this long for the run to be gone.")
@click.option("--no-wait", is_flag=True, help="Return at once; the run ends when it reads the request.")
@json_option
@with_client
def down(client: GridClient, name: str, wait: str, no_wait: bool, as_json: bool) -> None:
    """End the run NAME, or remove the record of a run that is over."""
    from distributed_grid.model.validators import waiting_time

    within_s = waiting_time(wait)
    answer = client.role_run_down(name)
    if answer["removed"]:
        show(answer, as_json, lambda _: f"{name} was already {answer['state']}; its record is removed.")
        return
    if no_wait:
        show(answer, as_json, lambda _: f"Asked {name} to shut down.")
        return
    with StatusLine() as line:
        until_down(client, name, within_s, line.show)
    show({**answer, "state": "ended", "removed": True}, as_json, lambda _: f"{name} is down.")


@click.command(cls=Command, examples=["grid roles logs nightly --follow"])
@click.argument("name", type=ROLE_RUN)
@click.option("-f", "--follow", is_flag=True, help="Keep showing new output until the run ends, or Ctrl-C.")
@with_client
def logs(client: GridClient, name: str, follow: bool) -> None:
    """Show the output of the run NAME and its actors, if `grid roles up` started it on this machine."""
    from distributed_grid.errors import RoleRunNotFound
    from distributed_grid.model.roles.runs import is_over
    from distributed_grid.run.role_starter import output_of

    output = output_of(client.home, name)
    if not output.is_file():
        raise RoleRunNotFound(
            f"This machine has no output of a run named {name!r}",
            try_next="The output is where grid roles up was run; a program that launches roles itself has its own.",
        )

    def ended() -> bool:
        try:
            return is_over(client.role_run(name))
        except RoleRunNotFound:
            return True

    show_output(output, ended, follow=follow)


def _show_run(client: GridClient, name: str, as_json: bool, *, each: bool = False) -> None:
    from distributed_grid.cli.columns import Canvas
    from distributed_grid.cli.role_runs_view import run_view

    show(client.role_run(name), as_json, lambda run: run_view(run, Canvas.here(), each=each))
