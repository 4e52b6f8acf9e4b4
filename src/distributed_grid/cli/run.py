"""grid run: a program in the user's terminal and folder whose Ray work is inside a lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from distributed_grid.cli.commands import IDLE_HELP, TIME, TIME_OR_NEVER, Command
from distributed_grid.cli.connection import with_client
from distributed_grid.cli.output import StatusLine, json_option, say, show
from distributed_grid.cli.parameters import BOOST, NODE, PRIORITY
from distributed_grid.client import GridClient

if TYPE_CHECKING:
    from distributed_grid.run.held_lease import Wanted
    from distributed_grid.run.records import Run, Runs, ShownRun


@click.command(
    cls=Command,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    examples=[
        "grid run --cpus 4 -- train_model.py --epochs 3",
        "grid run --gpus 1 --wait 30m -- python -m my_package.train",
        "grid run --cpus 2..16 -- sweep.py",
        "grid run --nodes 3 --gpus 1 -- train_model.py",
        "grid run --boost 3f2a91c0 -- train_model.py",
        "grid run --detach --cpus 2 -- ./nightly.sh",
    ],
)
@click.option("--target", metavar="NODE", type=NODE, help="The node that borrows.  [default: the head]")
@click.option(
    "--cpus",
    metavar="N|MIN..MAX",
    help="CPUs of the lease; 2..16: always 2, and up to 16 while capacity is idle; ..16: only what is idle.  "
    "[default: 1, unless --gpus or --memory is given]",
)
@click.option("--gpus", metavar="N", help="GPUs of the lease. Each brings CPUs along unless --cpus is given.")
@click.option("--memory", metavar="GB", help="Memory of the lease, in GB.")
@click.option(
    "--nodes",
    metavar="N",
    type=click.IntRange(1, 1000),
    help="Lease these amounts on each of N nodes.  [default: all on one node, or else divided among a few]",
)
@click.option(
    "--spread", is_flag=True, help="Divide the amounts among as many nodes as possible, in whole GPUs or CPUs."
)
@click.option(
    "--source",
    "sources",
    metavar="NODE",
    type=NODE,
    multiple=True,
    help="A node that may lend; may be repeated.  [default: the eligible node with the most left]",
)
@click.option("--priority", type=PRIORITY, default="normal", show_default=True, help="low, normal, high or critical.")
@click.option(
    "--duration", metavar=TIME, help="How long the lease lasts without a renewal; grid run renews it.  [default: 2m]"
)
@click.option("--wait", metavar=TIME, help="Wait this long for capacity instead of failing.")
@click.option(
    "--grace",
    metavar=TIME,
    help="How long the program may continue when its lease is reclaimed.  [default: as configured, else 30s]",
)
@click.option("--reclaim-url", metavar="URL", help="The URL to notify before the lease is reclaimed.")
@click.option("--idle-after", metavar=TIME_OR_NEVER, help=IDLE_HELP)
@click.option(
    "--boost", metavar="ID", type=BOOST, help="Run inside this reserved boost, which stays when the run ends."
)
@click.option(
    "--isolation",
    type=click.Choice(["group", "cluster"]),
    default="group",
    show_default=True,
    help="group: in the lease's placement group. cluster: in a private Ray cluster on exactly the leased capacity.",
)
@click.option("--allow-escapes", is_flag=True, help="Let work that cannot run inside the lease run outside it.")
@click.option("-d", "--detach", is_flag=True, help="Run in the background: grid tasks ls|show|logs|cancel.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- SCRIPT.py|-m MODULE|COMMAND [ARGS]...")
@json_option
@with_client
def run(
    client: GridClient,
    isolation: str,
    allow_escapes: bool,
    detach: bool,
    words: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> int:
    """Run a Ray script, unmodified, or any command, with its tasks and actors inside a lease, on one node or several.

    The exit code is the program's own, or 5 if the lease ended first. Ctrl-C ends the program and returns the lease.
    """
    import os
    import sys

    from distributed_grid.run.driver import command_of, label_of, line_of
    from distributed_grid.run.held_lease import Wanted
    from distributed_grid.run.records import Runs

    command = command_of(words, os.environ, sys.executable)
    wanted = Wanted(**{name: value for name, value in options.items() if value is not None})
    wanted.check(isolation)
    runs = Runs(client.home.create())
    shown, label = line_of(words), label_of(words)
    if detach:
        from distributed_grid.run.detached import start

        began = start(runs, wanted, command, shown, isolation, label=label, allow_escapes=allow_escapes)
        show(began.shown(), as_json, _detached)
        return 0
    run = runs.begin(shown, isolation=isolation, label=label, allow_escapes=allow_escapes, detached=False)
    return _in_the_foreground(client, wanted, command, runs, run)


def _in_the_foreground(client: GridClient, wanted: Wanted, command: list[str], runs: Runs, run: Run) -> int:
    from distributed_grid.run.monitor import RunOutput
    from distributed_grid.run.wrapper import Wrapper

    with StatusLine() as line:
        output = RunOutput(_say_to_whoever_is_there, line.show, line.wipe)
        return Wrapper(client, wanted, command, run, runs, output).carry_out()


def _say_to_whoever_is_there(text: str) -> None:
    """A run continues, and ends cleanly, after its reader is gone: Ctrl-C also ends a `tee` behind it."""
    import os
    import sys

    try:
        say(text)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)


def _detached(run: ShownRun) -> str:
    from distributed_grid.cli.tasks import whereabouts

    short = run["task_id"]
    return "\n".join(
        [
            f"Run {short} is {run['state']}: {run['command']}",
            f"  {whereabouts(run)}",
            f"  grid tasks logs {short} --follow     its output",
            f"  grid tasks cancel {short}            end it, and give the lease back",
        ]
    )
