"""`grid config`: check a configuration, explain it, describe its format."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distributed_grid.cli.commands import Group
from distributed_grid.cli.output import config_option, json_option, say, show

if TYPE_CHECKING:
    from rich.table import Table

    from distributed_grid.config import LoadedConfig


@click.group(cls=Group)
def config() -> None:
    """Check, explain and describe the cluster's configuration."""


@config.command(examples=["grid config check", "grid config check config/my-cluster-enhanced.yaml"])
@click.argument("file", required=False, type=click.Path())
def check(file: str | None) -> None:
    """Check FILE (default: the configuration that every command would use)."""
    loaded = _load(file)
    count = len(loaded.config.nodes)
    nodes = "1 node" if count == 1 else f"{count} nodes"
    sharing = "enabled" if loaded.config.resource_sharing.enabled else "not enabled"
    click.echo(f"OK: {loaded.source}: {nodes}, resource sharing {sharing}")


@config.command(examples=["grid config schema > grid-schema.json"])
def schema() -> None:
    """Print a JSON Schema, for editors that complete and check YAML."""
    from distributed_grid.config import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


@config.command("show", examples=["grid config show", "grid config show | grep cpu_pressure_high"])
@config_option
@json_option
def show_config(config_path: str | None, as_json: bool) -> None:
    """Show every setting in force and where it comes from.

    A running controller has its own configuration: what it runs is in force, unless --config names another.
    """
    from distributed_grid.config import effective, effective_in_controller

    loaded = _load(config_path)
    running = None if config_path else _running()
    if running is None or running["digest"] == loaded.config.digest():
        found = effective(loaded)
    else:
        say(f"The controller was started with another configuration than {loaded.source}; this is what it runs.")
        found = effective_in_controller(running)
    show(found, as_json, render=settings_table)


def _running() -> dict[str, Any] | None:
    """The configuration of this installation's running controller, if there is one."""
    from distributed_grid.client import GridClient
    from distributed_grid.errors import GridError

    client = GridClient()
    if not client.home.controller.exists():
        return None
    try:
        return client.config()
    except GridError:
        return None
    finally:
        client.close()


def settings_table(data: Mapping[str, Any]) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"{escape(data['source'])} (named by {data['named_by']})", title_justify="left")
    for heading in ("setting", "value", "from"):
        table.add_column(heading, overflow="fold")
    for path, setting in data["values"].items():
        # The title shows the whole path once; in each row it would push the values out of sight.
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
