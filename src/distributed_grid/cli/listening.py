"""Options of both commands that start a controller: where it answers."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from distributed_grid.model.listening import Listening

_OPTIONS = (
    click.option("--host", default="127.0.0.1", show_default=True, help="Where the controller answers."),
    click.option(
        "--port", default=0, type=click.IntRange(0, 65535), help="And at which port.  [default: any free one]"
    ),
    click.option("--tls-cert", default="", metavar="FILE", help="Its certificate, in PEM format, with those above it."),
    click.option("--tls-key", default="", metavar="FILE", help="The key of the certificate."),
    click.option(
        "--insecure", is_flag=True, help="Answer off loopback without TLS: everybody on the way reads tokens."
    ),
    click.option(
        "--allow-host", multiple=True, metavar="NAME", help="Another name by which it is reached; repeatable."
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
