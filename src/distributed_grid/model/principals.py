"""Principals: the callers of the API, and what they may do."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from distributed_grid.errors import InvalidRequest, ScopeMissing
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.validators import one_of

GRID: Final = "grid"
OWNER: Final = "owner"
TEAM_PREFIX: Final = "team:"
"""Where both users and teams can be named, a team is `team:NAME`. No user name has a colon."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_ID: Final = re.compile(r"[0-9a-f]{8}")
# The audit log's names for grid itself, and for a caller with the installation's token that gives no name.
_RESERVED: Final = (GRID, OWNER)


class Scope(StrEnum):
    """The rights of a token. No scope includes another, except `admin`, which includes all."""

    VIEW = "view"
    LEND = "lend"
    RUN = "run"
    ADMIN = "admin"


MEANINGS: Final = {
    Scope.VIEW: "see the cluster, the boosts and the events",
    Scope.LEND: "request boosts; renew and release your own and your team's",
    Scope.RUN: "run work through grid, and move your own processes",
    Scope.ADMIN: "everything, including tokens and stopping grid",
}


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller with a valid token."""

    name: str
    team: str
    scopes: frozenset[Scope]
    token_id: str | None = None
    """None: the installation's own token, whose owner is trusted to name the caller."""
    expires_at: datetime | None = None
    max_priority: AllocationPriority | None = None
    """The highest priority that the token may ask for. None: its team's, or `normal` if the team has none."""

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def claiming(self, name: str) -> "Principal":
        """The installation's token may name the person. A user's token always stands for its user."""
        return replace(self, name=name) if name and self.token_id is None else self

    def own_key(self, idempotency_key: str | None) -> str | None:
        """Scopes the key to its user, so that two users with the same key do not get each other's boost."""
        if idempotency_key is None or self.token_id is None:
            return idempotency_key
        return f"{self.name}/{idempotency_key}"


THE_OWNER: Final = Principal(OWNER, "", frozenset({Scope.ADMIN}))


def check_may(principal: Principal, scope: Scope) -> None:
    """Raise `ScopeMissing` unless the token permits this."""
    if not principal.may(scope):
        wanted = " ".join(f"--scope {each}" for each in sorted({*principal.scopes, scope}))
        raise ScopeMissing(
            f"This needs the scope {scope}, which the token of {principal.name} does not have",
            because=[f"{scope}: {MEANINGS[scope]}", f"the token has: {', '.join(sorted(principal.scopes))}"],
            try_next=f"Ask an administrator (scope admin) for a new token: grid token create {principal.name} {wanted}",
        )


def make_scopes(names: Iterable[str]) -> frozenset[Scope]:
    """Scopes by their names, at least one; or `InvalidRequest`."""
    given = frozenset(one_of("scope", Scope, name) for name in names)
    if not given:
        raise InvalidRequest("A token needs at least one scope", try_next="Give one, for example --scope view.")
    return given


def check_name(name: str) -> str:
    """A name for a token's user, as the audit log shows it; or `InvalidRequest`."""
    if name.lower() in _RESERVED:
        raise InvalidRequest(f"{name!r} is grid's own name in the audit log", try_next="Use the person's name.")
    if is_token_id(name):
        raise InvalidRequest(f"{name!r} looks like the id of a token", try_next="Use the person's name.")
    return _word("name", name)


def check_team(team: str) -> str:
    return _word("team", team) if team else ""


def is_token_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def is_token_word(text: str) -> bool:
    """Whether a token's user, team or id may be written like this."""
    return _NAME.fullmatch(text) is not None


def _word(what: str, text: str) -> str:
    if not is_token_word(text):
        raise InvalidRequest(
            f"{text!r} cannot be the {what} of a token",
            try_next="Up to 64 letters, digits, dots, underscores, @ and hyphens; the first a letter or digit.",
        )
    return text
