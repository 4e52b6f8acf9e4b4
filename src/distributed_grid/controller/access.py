"""Who may ask: a token, kept in a file that only its owner can read."""

import hmac
import os
import secrets
from pathlib import Path

from distributed_grid.errors import AccessDenied


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
