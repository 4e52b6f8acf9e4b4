"""`grid config`: check a configuration, explain it, describe its format."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distributed_grid.cli.output import config_option, json_option, say, show

if TYPE_CHECKING:
    from rich.table import Table

    from distributed_grid.config import LoadedConfig


@click.group()
def config() -> None:
    """Check, explain and describe the cluster's configuration."""


@config.command()
@click.argument("file", required=False, type=click.Path())
def check(file: str | None) -> None:
    """Check FILE (default: the configuration that every command would use)."""
    loaded = _load(file)
    count = len(loaded.config.nodes)
    nodes = "1 node" if count == 1 else f"{count} nodes"
    sharing = "enabled" if loaded.config.resource_sharing.enabled else "not enabled"
    click.echo(f"OK: {loaded.source}: {nodes}, resource sharing {sharing}")


@config.command()
def schema() -> None:
    """Print a JSON Schema, for editors that complete and check YAML."""
    from distributed_grid.config import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


@config.command("show")
@config_option
@json_option
def show_config(config_path: str | None, as_json: bool) -> None:
    """Show every setting in force and where it comes from."""
    from distributed_grid.config import effective

    show(effective(_load(config_path)), as_json, render=settings_table)


def settings_table(data: Mapping[str, Any]) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"{escape(data['source'])} (named by {data['named_by']})", title_justify="left")
    for heading in ("setting", "value", "from"):
        table.add_column(heading, overflow="fold")
    for path, setting in data["values"].items():
        # The title names the whole path once; repeated in each row it would push the values out of sight.
        place = setting["from"].replace(data["source"], Path(data["source"]).name)
        table.add_row(escape(path), escape(_shown(setting["value"])), escape(place))
    return table


def _shown(value: object) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value)


def _load(file: str | None) -> "LoadedConfig":
    from distributed_grid.config import find_config, load_config

    loaded = load_config(find_config(file, os.environ, Path.cwd()))
    for warning in loaded.warnings:
        say(f"Warning: {warning}")
    return loaded
