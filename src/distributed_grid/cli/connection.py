"""How commands reach the controller, and the options that set where a controller listens."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import click

from distributed_grid.cli.output import config_option, say
from distributed_grid.client import GridClient
from distributed_grid.errors import ConfigDiffers
from distributed_grid.model.listening import Listening

agreed_config_option = partial(config_option, help="Fail unless the controller runs this configuration.")


def with_client(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass a client as first argument; adds `--config`, which must match the running controller's configuration."""

    @wraps(command)
    @click.pass_context
    def connected(ctx: click.Context, config_path: str | None, *args: Any, **kwargs: Any) -> Any:
        client = GridClient(on_wait=say, plain=not kwargs.get("as_json"))
        try:
            if config_path is not None:
                check_config(client, config_path)
            return ctx.invoke(command, client, *args, **kwargs)
        finally:
            client.close()

    return agreed_config_option(connected)


def check_config(client: GridClient, path: str) -> None:
    """Refuse a configuration that the controller does not run: otherwise it would be silently ignored."""
    import os
    from pathlib import Path

    from distributed_grid.config import find_config, load_config

    wanted = load_config(find_config(path, os.environ, Path.cwd())).config
    running = client.config()
    if wanted.digest() == running["digest"]:
        return
    apply = (
        f"grid cluster stop && grid cluster start --config {path}"
        if running["config"].get("embedded")
        else f"grid stop && grid start --address {client.ray_address()} --config {path}"
    )
    raise ConfigDiffers(
        f"The running controller does not use the configuration {path}",
        because=[f"it uses {running['source']}"],
        try_next=f"Omit --config to use the running configuration, or apply yours: {apply}",
    )


_OPTIONS = (
    click.option("--host", default="127.0.0.1", show_default=True, help="The address on which the controller listens."),
    click.option(
        "--port",
        default=0,
        type=click.IntRange(0, 65535),
        help="The port on which it listens.  [default: the last controller's, or any free one]",
    ),
    click.option(
        "--tls-cert", default="", metavar="FILE", help="The controller's certificate with its chain, in PEM format."
    ),
    click.option("--tls-key", default="", metavar="FILE", help="The certificate's private key, in PEM format."),
    click.option(
        "--insecure",
        is_flag=True,
        help="Listen beyond loopback without TLS, although tokens can then be read on the network path.",
    ),
    click.option(
        "--allow-host", multiple=True, metavar="NAME", help="Another name by which clients reach it; may be repeated."
    ),
)


def listening_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass a `Listening` as keyword argument `listening`."""

    @wraps(command)
    def with_listening(
        *args: Any,
        host: str,
        port: int,
        tls_cert: str,
        tls_key: str,
        insecure: bool,
        allow_host: tuple[str, ...],
        **kwargs: Any,
    ) -> Any:
        listening = Listening(host, port, tls_cert, tls_key, insecure, allow_host)
        return command(*args, listening=listening, **kwargs)

    decorated: Callable[..., Any] = with_listening
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated
