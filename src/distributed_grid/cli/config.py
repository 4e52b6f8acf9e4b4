"""`grid config`: check a configuration, explain it, describe its format."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from distributed_grid.cli.commands import Group
from distributed_grid.cli.output import config_option, json_option, say, show

if TYPE_CHECKING:
    from distributed_grid.config.loader import Effective, LoadedConfig
    from distributed_grid.wire.controller import RunningConfig


@click.group(cls=Group)
def config() -> None:
    """Check and show the cluster's configuration, and print its JSON Schema."""


class CheckedConfig(TypedDict):
    """The content of `grid config check --json`."""

    ok: bool
    source: str
    nodes: list[str]
    resource_sharing_enabled: bool
    warnings: list[str]


@config.command(examples=["grid config check", "grid config check my-cluster.yaml --json"])
@click.argument("file", required=False, type=click.Path())
@json_option
def check(file: str | None, as_json: bool) -> None:
    """Check FILE (default: the configuration that commands use)."""
    loaded = _load(file)

    def text(found: CheckedConfig) -> str:
        nodes = "1 node" if len(found["nodes"]) == 1 else f"{len(found['nodes'])} nodes"
        sharing = "enabled" if found["resource_sharing_enabled"] else "not enabled"
        return f"OK: {found['source']}: {nodes}, resource sharing {sharing}"

    checked: CheckedConfig = {
        "ok": True,
        "source": str(loaded.source),
        "nodes": [node.name for node in loaded.config.nodes],
        "resource_sharing_enabled": loaded.config.resource_sharing.enabled,
        "warnings": list(loaded.warnings),
    }
    show(checked, as_json, text)


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

    While a controller runs, this shows the controller's configuration, unless --config names a file.
    """
    from distributed_grid.config import effective, effective_in_controller

    loaded = _load(config_path)
    running = None if config_path else _running()
    if running is None or running["digest"] == loaded.config.digest():
        found = effective(loaded)
    else:
        say(f"This is the configuration of the running controller, which differs from {loaded.source}.")
        found = effective_in_controller(running["source"], running["config"])
    show(found, as_json, render=settings_table)


def _running() -> RunningConfig | None:
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


def settings_table(data: Effective) -> str:
    from distributed_grid.cli.columns import columns
    from distributed_grid.cli.tables import bold

    # The title shows the whole path once; in each row it would push the values out of sight.
    short = Path(data["source"]).name
    rows = [
        (path, _shown(setting["value"]), setting["from"].replace(data["source"], short))
        for path, setting in data["values"].items()
    ]
    return f"{bold(data['source'])} (named by {data['named_by']})\n\n{columns(('Setting', 'Value', 'From'), rows)}"


def _shown(value: object) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value)


def _load(file: str | None) -> LoadedConfig:
    from distributed_grid.config import find_config, load_config

    loaded = load_config(find_config(file, os.environ, Path.cwd()))
    for warning in loaded.warnings:
        say(f"Warning: {warning}")
    return loaded
