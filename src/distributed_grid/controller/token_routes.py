"""Tokens over HTTP: the scope `admin` makes, lists and revokes them; every token can ask whose it is."""

from datetime import timedelta
from typing import Any

from fastapi import APIRouter

from distributed_grid.controller import schemas
from distributed_grid.controller.access import Asker, needs
from distributed_grid.controller.tokens import Tokens, me
from distributed_grid.leases.state import EngineContext
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.principals import Scope, make_scopes
from distributed_grid.model.requests import seconds


def add_token_routes(api: APIRouter, tokens: Tokens, parts: EngineContext) -> None:
    journal = parts.journal

    @api.get("/me", response_model=schemas.Me)
    @needs(None)
    async def who_am_i(asker: Asker) -> dict[str, Any]:
        """Whose token this is, and what it is good for."""
        return me(asker, parts.teams)

    @api.post("/tokens", response_model=schemas.NewToken, status_code=201)
    @needs(Scope.ADMIN)
    async def create_token(body: schemas.TokenRequest, asker: Asker) -> dict[str, Any]:
        """Make a token for a user. The token itself is in this answer, and nowhere else ever again."""
        lasts = None if body.expires_seconds is None else timedelta(seconds=seconds("lifetime", body.expires_seconds))
        most = None if body.max_priority is None else AllocationPriority.parse(body.max_priority)
        scopes = make_scopes(body.scopes)
        secret, made = await tokens.create(body.name, body.team, scopes, lasts, by=asker.name, max_priority=most)
        can = ", ".join([*sorted(scopes), *([] if most is None else [f"priority up to {most}"])])
        journal.note("token_created", f"{made.id} for {made.user.name}: {can}", who=asker.name, token_id=made.id)
        return made.describe() | {"token": secret}

    @api.get("/tokens", response_model=schemas.TokenList)
    @needs(Scope.ADMIN)
    async def list_tokens() -> dict[str, Any]:
        """Every user's tokens, without the tokens themselves."""
        return {"tokens": [token.describe() for token in tokens.listed()]}

    @api.delete("/tokens/{id_or_name}", response_model=schemas.RevokedTokens)
    @needs(Scope.ADMIN)
    async def revoke_tokens(id_or_name: str, asker: Asker) -> dict[str, Any]:
        """End one token by its id, or all tokens of a user by name. They fail at the next call."""
        ended, unwritten = await tokens.revoke(id_or_name)
        for token in ended:
            journal.note("token_revoked", f"{token.id} of {token.user.name}", who=asker.name, token_id=token.id)
        return {"revoked": [token.describe() for token in ended], "unwritten": unwritten}
