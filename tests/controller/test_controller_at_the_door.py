"""The door without a network: calls from other machines, which a test cannot make by itself."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.config import CallerLimits
from distributed_grid.controller.access import HostChecked, TokenRequired
from distributed_grid.controller.limits import BLOCKED_S, MOST_FAILURES, FailedAttempts, TokenLimits
from distributed_grid.controller.tokens import Tokens
from distributed_grid.model.teams import Teams
from distributed_grid.store.token_file import TokenFile

HERE, AWAY = "192.0.2.1", "192.0.2.7"


class Door:
    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.passed: list[Any] = []
        tokens = Tokens("right", TokenFile(folder / "tokens.json"), lambda: datetime.now(UTC))
        inner = TokenRequired(
            self._inside, tokens, FailedAttempts(), TokenLimits(CallerLimits()), Teams(), clock=lambda: self.now
        )
        self._app = HostChecked(inner)

    async def _inside(self, scope: Any, receive: Any, send: Any) -> None:
        self.passed.append(scope)

    def knock(self, token: str | None, address: str = AWAY, *, host: str = HERE, kind: str = "http") -> tuple[int, Any]:
        """The status, 200 if it came through, and the error's code or the value of Retry-After."""
        headers = [(b"host", host.encode())]
        if token is not None:
            headers.append((b"authorization", f"Bearer {token}".encode()))
        scope = {
            "type": kind,
            "path": "/api/v1/boosts",
            "headers": headers,
            "client": (address, 5),
            "server": (HERE, 80),
        }
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        before = len(self.passed)
        asyncio.run(self._app(scope, None, send))  # type: ignore[arg-type]
        if len(self.passed) > before:
            return 200, None
        if not sent:
            return 0, None
        assert b"right" not in sent[1]["body"]
        retry = dict(sent[0]["headers"]).get(b"retry-after")
        return sent[0]["status"], int(retry) if retry else json.loads(sent[1]["body"])["error"]["code"]


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path)


def test_a_guesser_elsewhere_is_put_off_even_with_the_right_token_and_let_in_afterwards(door: Door) -> None:
    answers = [door.knock(f"guess-{n}") for n in range(MOST_FAILURES)]

    assert answers[0] == (401, "ACCESS_DENIED")
    assert answers[-1] == (429, BLOCKED_S)
    assert door.knock("right") == (429, BLOCKED_S)
    assert door.knock("right", "192.0.2.8") == (200, None)
    door.now = BLOCKED_S
    assert door.knock("right") == (200, None)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", HERE])
def test_no_caller_locks_out_those_on_the_machine_itself(door: Door, address: str) -> None:
    for n in range(3 * MOST_FAILURES):
        door.knock(f"guess-{n}", address)

    assert door.knock("wrong", address)[0] == 429
    assert door.knock("right", address) == (200, None)


def test_a_job_with_an_old_token_does_not_lock_out_its_neighbours(door: Door) -> None:
    for _ in range(3 * MOST_FAILURES):
        door.knock("revoked")

    assert door.knock("revoked")[0] == 429
    assert door.knock("right") == (200, None)


def test_the_name_is_asked_before_the_token(door: Door) -> None:
    assert door.knock("right", host="evil.example") == (421, "WRONG_HOST")
    assert door.knock(None, host="evil.example") == (421, "WRONG_HOST")


def test_nothing_but_http_gets_through(door: Door) -> None:
    for kind in ("websocket", "lifespan"):
        assert door.knock("right", kind=kind) == (0, None)
    assert door.passed == []
