"""Tokens: creating, listing and revoking them; and the caller's own."""

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from distributed_grid.wire.values import Amount, Word, request


@request
class TokenRequest(TypedDict):
    name: Annotated[Word, Field(description="The token's user, by the name that the audit log will show")]
    team: NotRequired[Word]
    scopes: NotRequired[Annotated[list[Word], Field(max_length=16, description="view (the default), lend, run, admin")]]
    expires_seconds: NotRequired[Amount | None]
    max_priority: NotRequired[
        Annotated[
            Word | None,
            Field(description="The highest priority that it may request; null: its team's, or else normal"),
        ]
    ]


class Token(TypedDict):
    id: str
    name: str
    team: Annotated[str, Field(description="The team that it counts for: `default` if its own is not configured")]
    scopes: list[str]
    max_priority: Annotated[str | None, Field(description="null: its team's, or else normal")]
    created_at: str
    created_by: str
    expires_at: str | None


class NewToken(Token):
    token: str


class TokenList(TypedDict):
    tokens: list[Token]


class RevokedTokens(TypedDict):
    revoked: list[Token]
    unwritten: Annotated[
        str | None,
        Field(
            description="Why the disk has not taken the revocation yet; null once it has. It is in force either way."
        ),
    ]


class Me(TypedDict):
    name: str
    team: str
    scopes: list[str]
    max_priority: Annotated[str, Field(description="The highest priority that it may request now")]
    token_id: str | None
    expires_at: str | None
