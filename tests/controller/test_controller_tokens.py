"""The set of valid tokens: made, revoked and expired in any order, over restarts, exactly the living ones let in."""

import asyncio
import errno
import json
import os
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from property_examples import examples

from distributed_grid.controller.tokens import Tokens, ensure_token
from distributed_grid.errors import ScopeMissing, StoreBroken, TokenNotFound
from distributed_grid.model.principals import THE_OWNER, Principal, Scope, check_may
from distributed_grid.store import token_file
from distributed_grid.store.token_file import TokenFile

NOON = datetime(2025, 6, 1, 12, 0, tzinfo=UTC)


class LivingTokens(RuleBasedStateMachine):
    """Against the simplest model: a dictionary of secrets and what they are good for, and when until."""

    made = Bundle("made")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "tokens.json"
        self.now = NOON
        self.alive: dict[str, tuple[str, frozenset[Scope], datetime | None]] = {}
        self.dead: set[str] = {"", "wrong", "grid_"}
        self.start()

    @rule()
    def start(self) -> None:
        self.tokens = Tokens("the-installations-own", TokenFile(self.path), lambda: self.now)
        assert self.tokens.problems == ()

    @rule(
        target=made,
        name=st.sampled_from(["ana", "bob"]),
        scopes=st.frozensets(st.sampled_from(Scope), min_size=1),
        lasts=st.none() | st.integers(1, 100),
    )
    def create(self, name: str, scopes: frozenset[Scope], lasts: int | None) -> tuple[str, str]:
        length = None if lasts is None else timedelta(seconds=lasts)
        secret, token = asyncio.run(self.tokens.create(name, "", scopes, length, by="owner"))
        self.alive[secret] = (name, scopes, None if length is None else self.now + length)
        return secret, token.id

    @rule(token=consumes(made))
    def revoke(self, token: tuple[str, str]) -> None:
        secret, id = token
        if any(entry.id == id for entry in self.tokens.listed()):
            asyncio.run(self.tokens.revoke(id))
        self._died(secret)

    @rule(name=st.sampled_from(["ana", "bob"]))
    def revoke_all_of(self, name: str) -> None:
        if not any(token.user.name == name for token in self.tokens.listed()):
            with pytest.raises(TokenNotFound):
                asyncio.run(self.tokens.revoke(name))
            return
        asyncio.run(self.tokens.revoke(name))
        for secret in [secret for secret, (of, _, _) in self.alive.items() if of == name]:
            self._died(secret)

    @rule(seconds=st.integers(1, 60))
    def wait(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        for secret in [secret for secret, (_, _, until) in self.alive.items() if until and self.now >= until]:
            self._died(secret)

    def _died(self, secret: str) -> None:
        if self.alive.pop(secret, None) is not None:
            self.dead.add(secret)

    @invariant()
    def exactly_the_living_get_in_as_who_they_are(self) -> None:
        for secret, (name, scopes, _) in self.alive.items():
            found = self.tokens.who_has(secret.encode())
            assert found is not None and (found.name, found.scopes) == (name, scopes)
        assert all(self.tokens.who_has(secret.encode()) is None for secret in self.dead)
        assert self.tokens.who_has(b"the-installations-own") is THE_OWNER

    @invariant()
    def no_secret_is_on_disk(self) -> None:
        text = self.path.read_text() if self.path.exists() else ""
        assert not any(secret in text for secret in self.alive)

    def teardown(self) -> None:
        self.folder.cleanup()


TestLivingTokens = LivingTokens.TestCase
TestLivingTokens.settings = settings(max_examples=examples(40), stateful_step_count=25, deadline=None)


@given(st.frozensets(st.sampled_from(Scope)), st.sampled_from(Scope))
def test_a_principal_may_do_what_its_scopes_say_and_admin_everything(scopes: frozenset[Scope], asked: Scope) -> None:
    principal = Principal("ana", "", scopes, "0123abcd")

    if asked in scopes or Scope.ADMIN in scopes:
        check_may(principal, asked)
    else:
        with pytest.raises(ScopeMissing):
            check_may(principal, asked)


def one_token(path: Path) -> str:
    tokens = Tokens("own", TokenFile(path), lambda: NOON)
    return asyncio.run(tokens.create("ana", "vision", frozenset({Scope.VIEW}), None, by="owner"))[0]


@pytest.mark.parametrize("keep", range(0, 320, 7))
def test_a_file_that_was_cut_off_anywhere_lets_no_caller_in(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "tokens.json"
    secret = one_token(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: min(keep, len(whole) - 3)])

    tokens = Tokens("own", TokenFile(path), lambda: NOON)

    assert tokens.who_has(secret.encode()) is None
    assert tokens.who_has(b"own") is THE_OWNER
    assert "damaged" in tokens.problems[0]
    assert not path.exists()
    assert len(list(tmp_path.glob("tokens.json.broken-*"))) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"scopes": ["everything"]},
        {"scopes": []},
        {"scopes": "admin"},
        {"scopes": None},
        {"sha256": ""},
        {"sha256": "00"},
        {"sha256": None},
        {"id": "../.."},
        {"name": ["x"]},
        {"name": "grid"},
        {"expires_at": "soon"},
        {"expires_at": 5},
    ],
    ids=str,
)
def test_an_entry_that_is_no_token_lets_no_caller_in(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "tokens.json"
    secret = one_token(path)
    content = json.loads(path.read_text())
    content["tokens"][0] |= change
    path.write_text(json.dumps(content))

    tokens = Tokens("own", TokenFile(path), lambda: NOON)

    assert tokens.who_has(secret.encode()) is None
    assert tokens.problems


def test_a_revocation_that_the_disk_refused_is_in_force_told_and_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens.json"
    secret = one_token(path).encode()
    tokens = Tokens("own", TokenFile(path), lambda: NOON)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def revoke_on_a_full_disk() -> str | None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(token_file, "replace_durably", full)
            _, unwritten = await tokens.revoke("ana")
            await tokens.catch_up()
        return unwritten

    unwritten = asyncio.run(revoke_on_a_full_disk())

    assert tokens.who_has(secret) is None
    assert unwritten is not None and "No space left" in unwritten and "only in memory" in unwritten
    assert tokens.problems and "only in memory" in tokens.problems[0]
    asyncio.run(tokens.catch_up())
    assert not tokens.problems
    assert Tokens("own", TokenFile(path), lambda: NOON).who_has(secret) is None  # after a restart, too


def test_tokens_that_cannot_be_read_let_no_user_in_until_they_can_be(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    secret = one_token(path).encode()
    kept = path.rename(tmp_path / "kept")
    path.mkdir()

    tokens = Tokens("own", TokenFile(path), lambda: NOON, strict=False)

    assert tokens.who_has(secret) is None
    assert tokens.who_has(b"own") is THE_OWNER
    assert "Is a directory" in tokens.problems[0]
    asyncio.run(tokens.catch_up())
    assert tokens.problems
    path.rmdir()
    kept.rename(path)
    asyncio.run(tokens.catch_up())
    assert not tokens.problems
    assert tokens.who_has(secret) is not None


def test_a_file_of_a_later_grid_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text('{"version": 2}')

    with pytest.raises(StoreBroken, match="later version"):
        Tokens("own", TokenFile(path), lambda: NOON)
    assert path.read_text() == '{"version": 2}'


def test_the_installations_token_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "token"

    first = ensure_token(path)

    assert len(first) >= 40
    assert path.stat().st_mode & 0o777 == 0o600
    assert ensure_token(path) == first
    path.write_text("")
    assert len(ensure_token(path)) >= 40
