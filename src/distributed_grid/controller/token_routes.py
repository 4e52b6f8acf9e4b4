"""Tokens over HTTP: the scope `admin` makes, lists and revokes them; every token can ask whose it is."""

from datetime import timedelta

from fastapi import APIRouter

from distributed_grid.controller.access import Asker, needs
from distributed_grid.controller.tokens import Tokens, me
from distributed_grid.leases.state import EngineContext
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.principals import Scope, make_scopes
from distributed_grid.model.teams import check_known_team
from distributed_grid.model.validators import seconds
from distributed_grid.store.token_file import StoredToken
from distributed_grid.wire.tokens import Me, NewToken, RevokedTokens, Token, TokenList, TokenRequest


def add_token_routes(api: APIRouter, tokens: Tokens, parts: EngineContext) -> None:
    journal = parts.journal

    def described(token: StoredToken) -> Token:
        return {**token.describe(), "team": parts.teams.in_force(token.user.team)}

    @api.get("/me")
    @needs(None)
    async def who_am_i(asker: Asker) -> Me:
        """The token's user, and what the token allows."""
        return me(asker, parts.teams)

    @api.post("/tokens", status_code=201)
    @needs(Scope.ADMIN)
    async def create_token(body: TokenRequest, asker: Asker) -> NewToken:
        """Create a token for a user. Only this answer contains the token itself."""
        expires, highest, team = body.get("expires_seconds"), body.get("max_priority"), body.get("team", "")
        lasts = None if expires is None else timedelta(seconds=seconds("lifetime", expires))
        most = None if highest is None else AllocationPriority.parse(highest)
        scopes = make_scopes(body.get("scopes", [Scope.VIEW]))
        check_known_team(team, parts.teams)
        secret, made = await tokens.create(body["name"], team, scopes, lasts, by=asker.name, max_priority=most)
        can = ", ".join([*sorted(scopes), *([] if most is None else [f"priority up to {most}"])])
        journal.note("token_created", f"{made.id} for {made.user.name}: {can}", who=asker.name, token_id=made.id)
        return {**described(made), "token": secret}

    @api.get("/tokens")
    @needs(Scope.ADMIN)
    async def list_tokens() -> TokenList:
        """All users' tokens, without their secrets."""
        return {"tokens": [described(token) for token in tokens.listed()]}

    @api.delete("/tokens/{id_or_name}")
    @needs(Scope.ADMIN)
    async def revoke_tokens(id_or_name: str, asker: Asker) -> RevokedTokens:
        """Revoke one token by its id, or all tokens of a user by name. They fail at the next call."""
        ended, unwritten = await tokens.revoke(id_or_name)
        for token in ended:
            journal.note("token_revoked", f"{token.id} of {token.user.name}", who=asker.name, token_id=token.id)
        return {"revoked": [described(token) for token in ended], "unwritten": unwritten}
