"""All valid tokens: the installation's own, and the users'."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from distributed_grid import threads
from distributed_grid.decide.leases.ownership import most_allowed
from distributed_grid.errors import StoreBroken, TokenNotFound
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.principals import THE_OWNER, Principal, Scope, check_name, check_team
from distributed_grid.model.teams import Teams
from distributed_grid.store.durable import bytes_of, replace_durably, stamp
from distributed_grid.store.token_file import StoredToken, TokenFile

if TYPE_CHECKING:
    from distributed_grid.wire.tokens import Me

# Makes tokens easy to recognise, for people and for programs that search for leaked secrets.
_PREFIX: Final = "grid_"
_SHORTEST: Final = 32
"""The least length of the installation's token, in characters; those that grid makes have 43."""
_TOKEN: Final = re.compile(rf"[!-~]{{{_SHORTEST},512}}")

_ONLY_IN_MEMORY: Final = (
    "the revocation is in force, but only in memory. grid tries again every second; "
    "if the controller is restarted before that succeeds, the token is valid again"
)


def ensure_token(path: Path, tell: Callable[[str], None] = lambda _: None) -> str:
    """The installation's token; created on first use, readable by its owner only.

    A token that could be guessed is replaced: what a crash left of the file, or what a person wrote there. `tell`
    receives a note.
    """
    found = (bytes_of(path) or b"").decode("utf-8", "replace").strip()
    if _TOKEN.fullmatch(found):
        return found
    if found:
        why = "too short to be safe" if len(found) < _SHORTEST else "not a valid token"
        tell(f"{path} held {len(found)} characters, {why}; grid replaced them with a new token")
    token = secrets.token_urlsafe(32)
    try:
        replace_durably(path, f"{token}\n".encode())  # an empty file, left by a crash, must not admit every caller
    except OSError as error:
        raise StoreBroken(f"Cannot write {path}: {error.strerror}") from error
    return token


class Tokens:
    """Read at every call; changed by one event loop. A change holds at once, and is on disk before it is reported."""

    def __init__(self, installation: str, file: TokenFile, now: Callable[[], datetime], *, strict: bool = True) -> None:
        """With `strict`, an unreadable file raises `StoreBroken`; else users' tokens are invalid until it can be."""
        self.installation = installation
        self._file = file
        self._now = now
        self._users: tuple[StoredToken, ...] = ()
        self._damage: tuple[str, ...] = ()
        self._unread: StoreBroken | None = None
        self._unwritten: StoreBroken | None = None
        self._writing = asyncio.Lock()
        self._stamp: tuple[int, int, int] | None = None
        """The stamp of the file that was read or written last."""
        try:
            self._load()
        except StoreBroken as error:
            if strict:
                raise
            self._unread = error

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems with the file, for a person."""
        unread = () if self._unread is None else (f"{self._unread.message}: until it can be, no user's token is valid",)
        unwritten = () if self._unwritten is None else (f"{self._unwritten.message}: {_ONLY_IN_MEMORY}",)
        return (*self._damage, *unread, *unwritten)

    @property
    def installation(self) -> str:
        raise AttributeError("the token itself is not kept")

    @installation.setter
    def installation(self, token: str) -> None:
        self._installation = _digest(token.encode())

    async def catch_up(self) -> None:
        """Read or write again what the disk refused before, and read a file that was put in its place."""
        async with self._writing:
            try:
                if self._unread is not None:
                    await threads.DISK.run(self._load)
                elif self._unwritten is not None:
                    await self._save(self._users)
                elif await threads.DISK.run(stamp, self._file.path) != self._stamp:
                    await threads.DISK.run(self._load)
            except StoreBroken:
                return

    def _load(self) -> None:
        before = stamp(self._file.path)
        self._users, self._damage = self._file.load()
        self._stamp = None if self._damage else before
        self._unread = None

    def who_has(self, given: bytes) -> Principal | None:
        """The owner of this token; None if it is unknown, or no longer valid.

        Every known token is compared, whichever matches, and in constant time, so that the duration reveals nothing.
        """
        digest = _digest(given)
        owner = hmac.compare_digest(self._installation, digest)
        found: StoredToken | None = None
        for token in self._users:
            if hmac.compare_digest(token.digest, digest):
                found = token
        if owner:
            return THE_OWNER
        return None if found is None or found.is_expired(self._now()) else found.user

    def is_valid(self, principal: Principal) -> bool:
        """True if a token that was valid when its request came still is; asked by long requests."""
        if principal.token_id is None:
            return True
        now = self._now()
        return any(token.id == principal.token_id and not token.is_expired(now) for token in self._users)

    def listed(self) -> list[StoredToken]:
        return sorted(self._users, key=lambda token: (token.user.name, token.created_at, token.id))

    async def create(
        self,
        name: str,
        team: str,
        scopes: frozenset[Scope],
        lasts: timedelta | None,
        *,
        by: str,
        max_priority: AllocationPriority | None = None,
    ) -> tuple[str, StoredToken]:
        """A new token: the secret, which only the caller knows from now on, and what is stored of it."""
        secret = _PREFIX + secrets.token_urlsafe(32)
        now = self._now()
        expires_at = None if lasts is None else now + lasts
        async with self._writing:
            user = Principal(check_name(name), check_team(team), scopes, self._new_id(), expires_at, max_priority)
            token = StoredToken(user, _digest(secret.encode()), now, by)
            self._check_readable()
            living = tuple(known for known in self._users if not known.is_expired(now))  # so that they never pile up
            await self._save((*living, token))
            self._users = (*living, token)
        return secret, token

    async def revoke(self, id_or_name: str) -> tuple[list[StoredToken], str | None]:
        """End one token by its id, or all of a user's by name. They fail at the next call, whatever the disk does.

        Also returns why the disk did not take the change, if so; `catch_up` repeats the write until it succeeds.
        """
        async with self._writing:
            self._check_readable()
            ending = [token for token in self._users if id_or_name in (token.id, token.user.name)]
            if not ending:
                raise TokenNotFound(
                    f"No token has the id or the name {id_or_name!r}", try_next="See all of them: grid token ls"
                )
            self._users = tuple(token for token in self._users if token not in ending)
            try:
                await self._save(self._users)
            except StoreBroken as error:
                self._unwritten = error
                return ending, f"{error.message}: {_ONLY_IN_MEMORY}"
        return ending, None

    async def _save(self, tokens: tuple[StoredToken, ...]) -> None:
        await threads.DISK.run(self._file.save, tokens)
        self._stamp = await threads.DISK.run(stamp, self._file.path)
        self._unwritten, self._damage = None, ()

    def _check_readable(self) -> None:
        if self._unread is not None:
            raise self._unread

    def _new_id(self) -> str:
        taken = {token.id for token in self._users}
        while (new := secrets.token_hex(4)) in taken:
            pass
        return new


def me(principal: Principal, teams: Teams) -> Me:
    """The answer to a caller that asks about itself."""
    expires_at = principal.expires_at
    return {
        "name": principal.name,
        "team": principal.team,
        "scopes": sorted(principal.scopes),
        "max_priority": str(most_allowed(principal, teams)),
        "token_id": principal.token_id,
        "expires_at": None if expires_at is None else expires_at.isoformat().replace("+00:00", "Z"),
    }


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
