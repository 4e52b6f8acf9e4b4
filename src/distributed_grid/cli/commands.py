"""The base of all of grid's commands and groups of commands: help with examples, synonyms, suggestions."""

import difflib
from collections.abc import Sequence
from typing import Any, Final

import click

TIME: Final = "TIME"
TIME_OR_NEVER: Final = "TIME|never"
IDLE_HELP: Final = "How long its work must not use it before it counts as idle.  [default: as configured, else 15m]"
"""The metavar of every option that takes a length of time."""
_TIME_NOTE: Final = "TIME is a number of seconds, or a length such as 30m, 1h30m or 2d."
_LISTING: Final = ("ls", "list", "status")
_CLOSE: Final = 0.6


class Command(click.Command):
    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        """`examples`: complete command lines that `--help` shows."""
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if any(parameter.metavar == TIME for parameter in self.params):
            formatter.write_paragraph()
            formatter.write_text(_TIME_NOTE)
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
        super().format_epilog(ctx, formatter)


class Group(click.Group):
    """The commands of one noun. `ls`, `list` and `status` are synonyms; a misspelled command gets suggestions."""

    command_class = Command
    group_class = type

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        words = (cmd_name, *_LISTING) if cmd_name in _LISTING else (cmd_name,)
        return next((self.commands[word] for word in words if word in self.commands), None)

    def summaries(self, ctx: click.Context) -> dict[str, str]:
        """The commands, each with its summary: the first sentence of its help, uncut."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        return {name: each.get_short_help_str(10_000) for name, each in found.items() if each is not None}

    def near(self, ctx: click.Context, word: str) -> list[str]:
        """The commands that a word was probably meant to be, as typed after `grid`."""
        path = ctx.command_path.split()[1:]
        close = difflib.get_close_matches(word.lower(), self.list_commands(ctx), n=3, cutoff=_CLOSE)
        return [" ".join([*path, each]) for each in close]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if self.get_command(ctx, word) is None and not ctx.resilient_parsing and not word.startswith("-"):
            near = self.near(ctx, word)
            meant = f" Did you mean: {' or '.join(f'grid {each}' for each in near)}?" if near else ""
            raise click.UsageError(f"No such command: {word!r}.{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries(ctx).items()))
