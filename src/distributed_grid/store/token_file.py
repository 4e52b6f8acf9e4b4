"""`tokens.json`: the users' tokens, without the tokens.

Only the SHA-256 of each is stored. That is enough: a token is 32 random bytes, so its hash gives nothing to guess from.
The salt and the slowness that passwords need would only cost time at every call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from distributed_grid.errors import GridError, StoreBroken
from distributed_grid.model.codec import decode_instant, encode_instant
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.principals import Principal, check_name, check_team, is_token_id, make_scopes
from distributed_grid.store.durable import bytes_of, replace_durably, set_aside

if TYPE_CHECKING:
    from distributed_grid.wire.tokens import Token

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class StoredToken:
    """One token of one user; a user may have several, for example for a laptop and a nightly job."""

    user: Principal
    digest: bytes
    created_at: datetime
    created_by: str

    @property
    def id(self) -> str:
        return self.user.token_id or ""

    def is_expired(self, now: datetime) -> bool:
        return self.user.expires_at is not None and now >= self.user.expires_at

    def describe(self) -> Token:
        """Everything about it but its hash."""
        expires_at = self.user.expires_at
        return {
            "id": self.id,
            "name": self.user.name,
            "team": self.user.team,
            "scopes": sorted(self.user.scopes),
            "max_priority": None if self.user.max_priority is None else str(self.user.max_priority),
            "created_at": encode_instant(self.created_at),
            "created_by": self.created_by,
            "expires_at": None if expires_at is None else encode_instant(expires_at),
        }


class TokenFile:
    """Read at the start of the one writer, and written by it alone."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> tuple[tuple[StoredToken, ...], tuple[str, ...]]:
        """The tokens, and what a person should know. A damaged file is set aside and admits no caller.

        Raises `StoreBroken` if the file cannot be opened or a later grid wrote it: neither may be overwritten.
        """
        if (data := bytes_of(self.path)) is None:
            return (), ()
        try:
            return _parse(data, self.path), ()
        except (ValueError, GridError) as error:
            if isinstance(error, StoreBroken):
                raise
            try:
                kept = set_aside(self.path)
                self.path.unlink()
            except OSError as cannot:
                raise _unwritable(self.path, cannot) from cannot
            return (), (f"{self.path} is damaged ({error}): no user's token is valid. It is kept as {kept}",)

    def save(self, tokens: Iterable[StoredToken]) -> None:
        """On return they survive a power cut; `StoreBroken`, with the old file unchanged, if the disk fails."""
        entries = [token.describe() | {"sha256": token.digest.hex()} for token in tokens]
        try:
            replace_durably(self.path, json.dumps({"version": VERSION, "tokens": entries}, indent=2).encode() + b"\n")
        except OSError as error:
            raise _unwritable(self.path, error) from error


def _parse(data: bytes, path: Path) -> tuple[StoredToken, ...]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("not valid JSON") from None  # the parser's message could quote part of a hash
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    version = content.get("version")
    if type(version) is int and version > VERSION:
        raise StoreBroken(
            f"{path} was written by a later version of grid",
            because=[f"it has format {version}; this grid reads up to {VERSION}"],
            try_next="Upgrade grid, or move the file elsewhere: the tokens in it are then no longer valid.",
        )
    entries = content.get("tokens")
    if version != VERSION or not isinstance(entries, list):
        raise ValueError("not a list of tokens")
    tokens = tuple(_token(entry) for entry in entries)
    if len({token.id for token in tokens}) != len(tokens):
        raise ValueError("two tokens have the same id")
    return tokens


def _token(entry: object) -> StoredToken:
    if not isinstance(entry, dict):
        raise ValueError("an entry is not a token: it is not an object")
    try:
        digest = bytes.fromhex(entry["sha256"])
        if len(digest) != 32 or not is_token_id(entry["id"]):
            raise ValueError("an entry is not a token")
        user = Principal(
            check_name(entry["name"]),
            check_team(entry["team"]),
            make_scopes(entry["scopes"]),
            entry["id"],
            None if entry["expires_at"] is None else decode_instant(entry["expires_at"]),
            _max_priority(entry),
        )
        return StoredToken(user, digest, decode_instant(entry["created_at"]), str(entry["created_by"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"an entry is not a token: {type(error).__name__}") from None


def _max_priority(entry: Mapping[str, object]) -> AllocationPriority | None:
    """A token older than this key could ask for any priority, and still can, as far as its team may."""
    given = entry.get("max_priority", AllocationPriority.CRITICAL)
    return None if given is None else AllocationPriority.parse(str(given))


def _unwritable(path: Path, error: OSError) -> StoreBroken:
    return StoreBroken(
        f"Cannot write {path}: {error.strerror}",
        because=["the tokens as they were last saved are still there"],
        try_next=f"Free some space for {path.parent}, or make it writable.",
    )
