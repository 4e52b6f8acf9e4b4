"""grid token: create, ls, revoke."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from distributed_grid.cli.commands import TIME, Group
from distributed_grid.cli.connection import with_client
from distributed_grid.cli.output import json_option, say, show
from distributed_grid.cli.parameters import PRIORITY, SCOPE, TEAM, TOKEN
from distributed_grid.client import GridClient

if TYPE_CHECKING:
    from distributed_grid.wire.tokens import RevokedTokens, Token, TokenList, TokenRequest


@click.group(cls=Group)
def token() -> None:
    """Manage tokens: who may use grid, and for what."""


@token.command(
    examples=[
        "grid token create ana --team vision --scope view,lend,run",
        "grid token create dashboard --scope view --expires 90d",
    ]
)
@click.argument("name")
@click.option("--team", type=TEAM, default="", help="The team that NAME belongs to.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    metavar="view|lend|run|admin",
    type=SCOPE,
    help="What the token allows; may be repeated, or separated by commas.  [default: view]",
)
@click.option("--expires", metavar=TIME, help="How long it is valid.  [default: until it is revoked]")
@click.option(
    "--max-priority",
    metavar="low|normal|high|critical",
    type=PRIORITY,
    help="The highest priority it may request.  [default: its team's max_priority, or normal]",
)
@json_option
@with_client
def create(
    client: GridClient,
    name: str,
    team: str,
    scopes: tuple[str, ...],
    expires: str | None,
    max_priority: str | None,
    as_json: bool,
) -> None:
    """Create a token for NAME, and print it. It is shown only once; grid keeps its hash."""
    from distributed_grid.model.policies import AllocationPriority
    from distributed_grid.model.principals import check_name, check_team, make_scopes
    from distributed_grid.model.validators import seconds

    body: TokenRequest = {
        "name": check_name(name),
        "team": check_team(team),
        "scopes": [*sorted(make_scopes(scope for given in scopes or ("view",) for scope in given.split(",")))],
        "expires_seconds": None if expires is None else seconds("lifetime", expires),
    }
    if max_priority is not None:
        body["max_priority"] = AllocationPriority.parse(max_priority)
    made = client.create_token(body)
    show(made, as_json, lambda new: str(new["token"]))
    if not as_json:
        say(f"Token {made['id']} for {_person(made)}: {', '.join(made['scopes'])}. It is not shown again.")
        if made["team"] != body["team"]:
            say(f"No team {body['team']!r} is configured: until it is, the token counts as {made['team']}.")
        say(f"To use it:  grid login {client.url()}")


@token.command(examples=["grid token ls"])
@json_option
@with_client
def ls(client: GridClient, as_json: bool) -> None:
    """List all tokens, without their secrets."""
    from distributed_grid.cli.columns import columns
    from distributed_grid.cli.output import clock, distance

    def table(found: TokenList) -> str:
        if not found["tokens"]:
            return "There are no tokens but the installation's own.\nTo make one:  grid token create NAME --scope view"
        return columns(
            ("ID", "Name", "Team", "Scopes", "Priority", "Created", "Expires"),
            [
                (
                    each["id"],
                    each["name"],
                    each["team"] or "-",
                    ",".join(each["scopes"]),
                    _most(each),
                    clock(each["created_at"]),
                    distance(each["expires_at"]) if each["expires_at"] else "-",
                )
                for each in found["tokens"]
            ],
        )

    show(client.tokens(), as_json, table)


@token.command(examples=["grid token revoke ana", "grid token revoke 5c0ffee0"])
@click.argument("id_or_name", type=TOKEN)
@json_option
@with_client
def revoke(client: GridClient, id_or_name: str, as_json: bool) -> None:
    """Revoke one token by its id, or all tokens of a user by name. This takes effect at once."""

    def text(answer: RevokedTokens) -> str:
        return "\n".join(f"Revoked {each['id']} of {_person(each)}" for each in answer["revoked"])

    revoked = client.revoke_tokens(id_or_name)
    if revoked["unwritten"]:
        say(f"Warning: {revoked['unwritten']}.")
    show(revoked, as_json, text)


def _most(entry: Token) -> str:
    """The highest priority that a token may ask for."""
    if "admin" in entry["scopes"]:
        return "any"
    return str(entry["max_priority"] or "normal, or team's")


def _person(entry: Token) -> str:
    return f"{entry['name']} ({entry['team']})" if entry["team"] else str(entry["name"])
