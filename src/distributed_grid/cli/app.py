"""The root command: its subcommands, their completion in shells, and how it reports errors."""

import errno
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import click

from distributed_grid import __version__
from distributed_grid.cli.commands import Command, Group
from distributed_grid.cli.output import explain
from distributed_grid.errors import GridError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Command -> its module and its line in the list, so that `grid --help` imports no command.
_COMMANDS = {
    "boost": ("boost:boost", "Lend capacity of one node to another for a limited time."),
    "run": ("run:run", "Run a Ray script, or any command, inside a lease."),
    "tasks": ("tasks:tasks", "List, show and cancel the runs of this machine, and read their output."),
    "cluster": ("cluster:cluster", "Start and stop the embedded cluster; show the status of any cluster."),
    "node": ("node:node", "Show what each node has and uses, and what is forecast for it."),
    "top": ("top:top", "Show the cluster full-screen, live."),
    "roles": ("roles:roles", "Plan, start and scale whole workloads of actors."),
    "offload": ("offload:offload", "Move heavy processes to other nodes."),
    "start": ("start:start", "Add grid to a Ray cluster that is already running."),
    "stop": ("start:stop", "Return all capacity and remove grid from the cluster."),
    "token": ("token:token", "Manage tokens: who may use grid, and for what."),
    "login": ("login:login", "Use a controller on another machine from here."),
    "logout": ("login:logout", "Forget the controller and the token of the last login."),
    "whoami": ("login:whoami", "Show your name and your rights, as the controller sees them."),
    "plan": ("plan:plan", "Predict what would happen to a request now; nothing changes."),
    "why": ("plan:why", "Explain why a request is waiting, or why a boost has its lender."),
    "cooldown": ("plan:cooldown", "Cordon a node: it returns everything, and lends and borrows nothing until --off."),
    "resource-sharing": (
        "resource_sharing:resource_sharing",
        "Queue requests; show or set the policy; show what nodes may lend.",
    ),
    "reserve": ("reserve:reserve", "Promise capacity in advance, at times that may repeat: windows."),
    "config": ("config:config", "Check and show the configuration."),
    "audit": ("audit:audit", "Compare the ledger with the cluster; show who did what."),
    "doctor": ("doctor:doctor", "Check everything that grid needs, and suggest fixes."),
    "demo": ("demo:demo", "See boosts work on a real cluster, in under a minute."),
    "completion": ("app:completion", "Print the shell completion script for bash, zsh or fish."),
}


class LazyGroup(Group):
    """Imports a command on first use: start-up is most of what a short command costs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(f"distributed_grid.cli.{module}"), name)
        return command

    def summaries(self, ctx: click.Context) -> dict[str, str]:
        return {name: text for name, (_, text) in _COMMANDS.items()}

    def near(self, ctx: click.Context, word: str) -> list[str]:
        """Also suggests `boost request` for `request`: the groups with a command of that name."""
        found = {name: self.get_command(ctx, name) for name in _COMMANDS}
        below = [f"{name} {word}" for name, each in found.items() if isinstance(each, Group) and word in each.commands]
        return [*super().near(ctx, word), *below]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        words = self.summaries(ctx).items()
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=text) for name, text in words if name.startswith(incomplete)), *options]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="grid")
def app() -> None:
    """Lend and borrow CPUs, GPUs and memory between the nodes of one live Ray cluster."""


_TO_ENABLE = {
    "bash": 'eval "$(grid completion bash)"',
    "zsh": 'eval "$(grid completion zsh)"',
    "fish": "grid completion fish | source",
}


@click.command(cls=Command, examples=[*_TO_ENABLE.values(), "grid completion bash >> ~/.bashrc"])
@click.argument("shell", type=click.Choice(tuple(_TO_ENABLE)))
def completion(shell: str) -> None:
    """Print the script that lets SHELL complete grid's commands, options, node names and ids.

    Names and ids come from the controller; where none answers within a second, only commands and options are completed.
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(app, {}, "grid", "_GRID_COMPLETE").source())


def main() -> None:
    """Run a command; every expected error ends as a message and an exit code, never as a traceback."""
    try:
        if sys.stdout is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        code = app.main(standalone_mode=False, prog_name="grid")
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("Stopped.", err=True)
        sys.exit(130)
    except GridError as error:
        explain(error, "--json" in _own_words(sys.argv))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        _give_up_writing(error)
    sys.exit(code if isinstance(code, int) else 0)


# What writing to a full disk, a closed stdout or a failing device raises.
_UNWRITABLE = (errno.ENOSPC, errno.EBADF, errno.EIO, errno.EDQUOT)


def _give_up_writing(error: OSError) -> None:
    """Report that stdout cannot be written. Drops Python's buffered output, which would fail again at exit."""
    if sys.stderr is not None:
        click.echo(f"Error: Cannot write to stdout: {error.strerror}", err=True)
        sys.stderr.flush()
    os._exit(GridError.exit_code)


def _own_words(words: list[str]) -> list[str]:
    """The words before `--`; those after it belong to the program that grid runs."""
    return words[: words.index("--")] if "--" in words else words
