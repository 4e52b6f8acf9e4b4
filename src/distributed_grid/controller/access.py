"""Who may ask: a token, kept in a file that only its owner can read."""

import hmac
import os
import secrets
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from distributed_grid.errors import AccessDenied

# These tell nothing about the cluster.
_OPEN: Final = ("/api/v1/health", "/api/v1/docs", "/api/v1/openapi.json")


def ensure_token(path: Path) -> str:
    """The installation's token; made on first use, readable by its owner only."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        token = secrets.token_urlsafe(32)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(token + "\n")
        return token


def check_token(authorization: str | None, token: str) -> None:
    """Raise `AccessDenied` unless the header carries the token."""
    scheme, _, given = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
        raise AccessDenied(
            "The token is missing or wrong",
            try_next="The token is in $GRID_HOME/token on the machine where grid was started.",
        )


class TokenRequired:
    """Lets only those in who have the token, whatever they ask for."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            try:
                check_token(given.decode("latin-1"), self._token)
            except AccessDenied as error:
                await JSONResponse({"error": error.to_dict()}, error.http_status)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def describe_token(app: FastAPI) -> None:
    """Tell readers of the OpenAPI document about the token."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        spec = plain()
        spec["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        spec["security"] = [{"token": []}]
        return spec

    app.openapi = described  # type: ignore[method-assign]
