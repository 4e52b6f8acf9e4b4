"""grid login, logout, whoami: a controller on another machine, and the user's identity there."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from distributed_grid.cli.commands import Command
from distributed_grid.cli.connection import with_client
from distributed_grid.cli.output import json_option, say, show
from distributed_grid.client import GridClient
from distributed_grid.errors import AccessDenied, InvalidRequest
from distributed_grid.model.plain_text import plain_data

if TYPE_CHECKING:
    from distributed_grid.client.connections import Trust
    from distributed_grid.wire.tokens import Me

_LONGEST_TOKEN: Final = 4096
_LONGEST_CA: Final = 4 * 2**20
# A host name or an address, as in a URL; an IPv6 address may have a zone.
_HOST = re.compile(r"[\w-]{1,63}(\.[\w-]{1,63})*\.?|[0-9a-f:.]+(%[\w.-]+)?")


@click.command(
    cls=Command,
    examples=[
        "grid login https://head.example.org:8421 --ca lab-ca.pem",
        "grid login http://127.0.0.1:8421 < token.txt",
    ],
)
@click.argument("url")
@click.option("--ca", metavar="FILE", help="Trust certificates signed by these authorities, not by the system's.")
@click.option("--insecure", is_flag=True, help="Send the token in clear text, to an http:// that is not on loopback.")
@json_option
def login(url: str, ca: str | None, insecure: bool, as_json: bool) -> None:
    """Use the controller at URL from here. Asks for a token, or reads it from stdin."""
    from dataclasses import replace

    from distributed_grid.client.whereabouts import Whereabouts, remember
    from distributed_grid.store.home import GridHome

    home = GridHome.find()
    place = _place(url, insecure)
    found = Whereabouts(place, "", trust=_trust(ca, place))
    # Checked first, so that the user does not look for a token that cannot be used there.
    with closing(GridClient(home, at=found, retry_s=0.0)) as stranger:
        stranger.health()
    found = replace(found, token=_token())
    with closing(GridClient(home, at=found, retry_s=0.0)) as client:
        me = client.me()
    remember(home, found)
    show({**me, "url": found.url}, as_json, lambda _: f"Logged in at {found.url} as {_person(plain_data(me))}")
    if home.controller.exists():
        say(f"Note: this GRID_HOME has a controller of its own ({home.controller}), which commands use first.")


@click.command(cls=Command, examples=["grid logout"])
@json_option
def logout(as_json: bool) -> None:
    """Forget the controller and the token of the last login."""
    from distributed_grid.store.home import GridHome

    login = GridHome.find().login
    was_there = login.exists()
    login.unlink(missing_ok=True)

    def text(answer: Mapping[str, bool]) -> str:
        if not answer["logged_out"]:
            return "You were not logged in."
        return "Logged out. The token itself is valid until it is revoked: grid token revoke ID"

    show({"logged_out": was_there}, as_json, text)


@click.command(cls=Command, examples=["grid whoami"])
@json_option
@with_client
def whoami(client: GridClient, as_json: bool) -> None:
    """Show your name and your rights, as the controller sees them."""
    show(client.me(), as_json, _person)


def _person(me: Me) -> str:
    from distributed_grid.cli.output import distance

    team = f" of team {me['team']}" if me["team"] else ""
    token = f"token {me['token_id']}" if me["token_id"] else "the installation's own token"
    until = f", which expires {distance(me['expires_at'])}" if me["expires_at"] else ""
    most = f"; priority up to {me['max_priority']}"
    return f"{me['name']}{team}, who may: {', '.join(me['scopes'])}{most} ({token}{until})"


def _place(url: str, insecure: bool) -> str:
    from urllib.parse import urlsplit

    place = urlsplit(url if "://" in url else f"https://{url}")
    try:
        host, _ = place.hostname or "", place.port
        host.encode("idna")
    except ValueError:
        host = ""
    beside_the_place = place.path.strip("/") or place.query or place.fragment or "@" in place.netloc
    if place.scheme not in ("http", "https") or _HOST.fullmatch(host) is None or beside_the_place:
        raise InvalidRequest(
            f"{url!r} is not the URL of a controller",
            try_next="grid login https://HOST:PORT   (grid start and grid cluster start print the URL)",
        )
    if place.scheme == "http" and not insecure and not _is_loopback(host):
        raise InvalidRequest(
            f"Without TLS, every machine on the way to {host} could read your token",
            try_next="Use https://, or forward the port with ssh -L and log in at http://127.0.0.1:PORT; "
            "or, in a network that you trust: --insecure",
        )
    return f"{place.scheme}://{place.netloc}"


def _is_loopback(host: str) -> bool:
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token() -> str:
    """Never read from an argument: every user of the machine can see those."""
    asks = sys.stdin.isatty()
    given = click.prompt("Token", hide_input=True, err=True) if asks else sys.stdin.readline(_LONGEST_TOKEN)
    token = str(given).strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise AccessDenied(
            "This is not a token",
            try_next="Paste the token that grid token create printed, or pipe it: grid login URL < FILE",
        )
    return token


def _trust(ca: str | None, place: str) -> Trust:
    """How the controller at that address is verified; the authorities are read before anything is sent."""
    from distributed_grid.client.connections import Trust

    if ca is None:
        return Trust()
    if not place.startswith("https:"):
        raise InvalidRequest("--ca needs an https:// URL: http:// has no certificate")
    try:
        with Path(ca).expanduser().open() as file:
            authorities = file.read(_LONGEST_CA + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"--ca {ca} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}",
            try_next="Give a file with the certificates of your authorities, in PEM format.",
        ) from None
    if len(authorities) > _LONGEST_CA:
        raise InvalidRequest(f"--ca {ca} is larger than {_LONGEST_CA // 2**20} MB, which is no list of authorities")
    trust = Trust(ca=authorities)
    trust.context()
    return trust
