"""grid completion: the script that teaches a shell to complete grid's commands, node names and ids."""

import click

from distributed_grid.cli.commands import Command

_SHELLS = ("bash", "zsh", "fish")
_TO_ENABLE = {
    "bash": 'eval "$(grid completion bash)"',
    "zsh": 'eval "$(grid completion zsh)"',
    "fish": "grid completion fish | source",
}


@click.command(cls=Command, examples=[*_TO_ENABLE.values(), "grid completion bash >> ~/.bashrc"])
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print the script that lets SHELL complete grid's commands, options, node names and ids.

    Names and ids come from the controller; where none answers within a second, only commands and options are completed.
    """
    from click.shell_completion import get_completion_class

    from distributed_grid.cli.app import app

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(app, {}, "grid", "_GRID_COMPLETE").source())
