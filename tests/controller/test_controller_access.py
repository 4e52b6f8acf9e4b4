"""Tokens at the door of a real HTTP server: who gets in, under what name, and what never gets out."""

import http.client
import json
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from served_grid import ServedGrid

from distributed_grid.client import GridClient
from distributed_grid.controller.direct_route import LONGEST_BODY
from distributed_grid.controller.limits import MOST_FAILURES
from distributed_grid.errors import InvalidRequest, StoreBroken, TokenNotFound
from distributed_grid.model.listening import Listening

BOOST = {"target_node": "a", "resource_type": "cpu", "amount": 1}


def test_an_ambiguous_beginning_of_an_id_names_only_boosts_that_the_caller_may_see(fresh: ServedGrid) -> None:
    eve, ana, cy = fresh.token("eve", "lend"), fresh.token("ana", "lend"), fresh.token("cy", "lend", "view")
    body = BOOST | {"amount": 0.01}
    ids: list[str] = []
    while not (shared := [id_ for id_ in ids if sum(other[0] == id_[0] for other in ids) > 1]):
        ids.append(fresh.ask("POST", "/boosts", body, token=eve)[1]["boost_id"])
    first = shared[0][0]

    def reported(method: str, path: str, token: str) -> str:
        status, answer = fresh.ask(method, path, {}, token=token)
        assert (status, answer["error"]["code"]) == (409, "AMBIGUOUS_BOOST")
        assert "2 boosts have an id that begins with" in answer["error"]["message"]
        return json.dumps(answer)

    for path in (f"/boosts/{first}/release", f"/boosts/{first}/renew", f"/boosts/{first}/checkpoint"):
        assert not any(id_ in reported("POST", path, ana) for id_ in ids)
        assert all(id_ in reported("POST", path, eve) for id_ in ids if id_[0] == first), "they are hers"
        assert all(id_ in reported("POST", path, cy) for id_ in ids if id_[0] == first), "who may see all boosts"


# -- tokens --------------------------------------------------------------------------------------------------


def test_a_token_is_shown_once_and_kept_as_a_hash_only(served: ServedGrid) -> None:
    token = served.token("ana", "view", team="vision")

    assert served.ask("GET", "/boosts", token=token)[0] == 200
    assert served.home.tokens.stat().st_mode & 0o777 == 0o600
    assert served.home.token.stat().st_mode & 0o777 == 0o600
    for path in served.home.path.rglob("*"):
        if path.is_file():
            assert token.encode() not in path.read_bytes(), path
            assert token.removeprefix("grid_").encode() not in path.read_bytes(), path
    assert token not in json.dumps(served.client.tokens())
    assert token not in json.dumps(served.client.events())


def test_a_caller_with_the_token_is_told_who_it_is(served: ServedGrid) -> None:
    token = served.token("bob", "view", "lend", expires_seconds=3600)

    _, me = served.ask("GET", "/me", token=token)
    owner = served.client.me()

    assert (me["name"], me["team"], me["scopes"]) == ("bob", "", ["lend", "view"])
    assert me["token_id"] and me["expires_at"]
    assert (owner["scopes"], owner["token_id"]) == (["admin"], None)


def teams_told(grid: ServedGrid, token: str) -> set[str]:
    """Every team that any answer about this token, and about what it asks for, names."""
    _, boost = grid.ask("POST", "/boosts", BOOST, token=token)
    _, waiting = grid.ask("POST", "/requests", BOOST | {"amount": 100}, token=token)
    wanted = {"task_id": f"task-{boost['boost_id']}", "target": "a", "cpu": 1, "wait": True}
    assert grid.ask("POST", "/tasks", wanted, token=token)[0] < 300
    _, plan = grid.ask("POST", "/plan", BOOST, token=token)
    [task] = [one for one in grid.client.tasks()["tasks"] if one["task_id"] == wanted["task_id"]]
    tokens = [grid.ask("GET", "/me", token=token)[1], *grid.client.tokens()["tokens"]]
    status = [one["name"] for one in grid.client.sharing_status()["teams"] if any(one["held"].values())]
    return {one["team"] for one in (boost, waiting["waiting"], task, plan, *tokens)} | {*status}


def test_a_team_that_is_not_configured_counts_as_default_in_every_answer(fresh: ServedGrid) -> None:
    ana, bo = (fresh.token(name, "view", "lend", team="visoin") for name in ("ana", "bo"))

    assert teams_told(fresh, ana) == {"default"}
    [boost] = [one for one in fresh.client.boost_status()["boosts"] if one["purpose"] == "boost"]
    status, answer = fresh.ask("POST", f"/boosts/{boost['boost_id']}/release", {}, token=bo)
    assert (status, answer["error"]["code"]) == (403, "NOT_OWNER"), "the users in `default` are no team-mates"


def test_a_token_whose_team_has_left_the_configuration_counts_as_default_until_it_is_back(tmp_path: Path) -> None:
    vision = [{"name": "vision", "max_priority": "high"}]
    reported, may, token = [], [], ""
    for teams in (vision, [], [{"name": "audio"}], vision):
        grid = ServedGrid(tmp_path, teams=teams)
        try:
            token = token or grid.token("ana", "view", "lend", team="vision")
            reported.append(teams_told(grid, token))
            may.append(grid.ask("GET", "/me", token=token)[1]["max_priority"])
            grid.in_its_loop(grid.engine.give_all_back(force=True))
        finally:
            grid.close()

    assert reported == [{"vision"}, {"default"}, {"default"}, {"vision"}]
    assert may == ["high", "normal", "normal", "high"]


def test_a_revoked_token_fails_at_the_next_call(served: ServedGrid) -> None:
    one, two, other = served.token("cy", "view"), served.token("cy", "view"), served.token("dee", "view")
    first, second = [t["id"] for t in served.client.tokens()["tokens"] if t["name"] == "cy"]

    served.client.revoke_tokens(first)
    alive = [served.ask("GET", "/me", token=token)[0] for token in (one, two, other)]
    served.client.revoke_tokens("cy")
    after = [served.ask("GET", "/me", token=token)[0] for token in (one, two, other)]

    assert sorted(alive) == [200, 200, 401]
    assert after == [401, 401, 200]
    assert second not in [token["id"] for token in served.client.tokens()["tokens"]]
    with pytest.raises(TokenNotFound):
        served.client.revoke_tokens("cy")


def test_a_token_expires(fresh: ServedGrid) -> None:
    token = fresh.token("eve", "view", expires_seconds=0.2)

    deadline = time.monotonic() + 20
    while fresh.ask("GET", "/me", token=token)[0] != 401:
        assert time.monotonic() < deadline
    fresh.token("fay", "view")

    assert [entry["name"] for entry in fresh.client.tokens()["tokens"]] == ["fay"]


def test_tokens_survive_a_restart(tmp_path: Path) -> None:
    first = ServedGrid(tmp_path)
    kept, revoked = first.token("ana", "view"), first.token("bob", "view")
    first.client.revoke_tokens("bob")
    first.close()

    second = ServedGrid(tmp_path)
    try:
        assert second.ask("GET", "/me", token=kept)[1]["name"] == "ana"
        assert second.ask("GET", "/me", token=revoked)[0] == 401
    finally:
        second.close()


@pytest.mark.parametrize(
    "body",
    [
        {"name": ""},
        {"name": "grid"},
        {"name": "Owner"},
        {"name": "0123abcd"},
        {"name": "two words"},
        {"name": "a" * 65},
        {"name": "new\nline"},
        {"name": "ana", "scopes": []},
        {"name": "ana", "scopes": ["everything"]},
        {"name": "ana", "team": "../etc"},
        {"name": "ana", "expires_seconds": -1},
        {"name": "ana", "expires_seconds": 0},
        {"name": "ana", "expires_seconds": "soon"},
        {"name": "ana", "unknown": 1},
    ],
    ids=str,
)
def test_a_token_that_makes_no_sense_is_not_made(served: ServedGrid, body: dict[str, object]) -> None:
    before = served.client.tokens()

    with pytest.raises(InvalidRequest):
        served.client.create_token(body)

    assert served.client.tokens() == before


def test_a_token_that_could_not_be_written_is_not_valid(fresh: ServedGrid) -> None:
    fresh.home.tokens.mkdir()  # no file can be renamed over it

    with pytest.raises(StoreBroken):
        fresh.client.create_token({"name": "ana"})

    assert fresh.client.tokens() == {"tokens": []}


# -- names in the audit log ----------------------------------------------------------------------------------


def test_a_users_name_is_that_of_the_token_whatever_they_claim(served: ServedGrid) -> None:
    token = served.token("gil", "lend")

    _, boost = served.ask("POST", "/boosts", BOOST, token=token, X_Grid_User="root")
    served.ask("POST", f"/boosts/{boost['boost_id']}/renew", {}, token=token, X_Grid_User="root")
    served.ask("POST", f"/boosts/{boost['boost_id']}/release", {}, token=token, X_Grid_User="root")
    served.ask("POST", "/boosts", BOOST | {"amount": 99}, token=token, X_Grid_User="root")

    lines = [line for line in served.audit() if line["event"] in ("granted", "renewed", "release_asked", "refused")]
    assert [line["who"] for line in lines[-4:]] == ["gil"] * 4
    assert [line["event"] for line in lines[-4:]] == ["granted", "renewed", "release_asked", "refused"]


def test_an_admins_token_has_its_own_name_too(served: ServedGrid) -> None:
    admin = served.token("head-admin", "admin")

    _, made = served.ask("POST", "/tokens", {"name": "hal"}, token=admin, X_Grid_User="somebody")
    served.ask("DELETE", f"/tokens/{made['id']}", token=admin)

    assert made["created_by"] == "head-admin"
    lines = served.audit()[-2:]
    assert [(line["event"], line["who"], line["token_id"]) for line in lines] == [
        ("token_created", "head-admin", made["id"]),
        ("token_revoked", "head-admin", made["id"]),
    ]


def test_the_owner_on_the_head_says_who_it_is(served: ServedGrid) -> None:
    owner = served.home.token.read_text().strip()

    _, named = served.ask("GET", "/me", token=owner, X_Grid_User="ida")
    _, unnamed = served.ask("GET", "/me", token=owner)

    assert (named["name"], unnamed["name"]) == ("ida", "owner")


def test_every_line_has_a_name(served: ServedGrid) -> None:
    assert all(line["who"] for line in served.audit())


def test_two_users_with_the_same_idempotency_key_do_not_get_each_others_boost(served: ServedGrid) -> None:
    one, two = served.token("jo", "lend"), served.token("kim", "lend")

    _, first = served.ask("POST", "/boosts", BOOST, token=one, Idempotency_Key="nightly")
    _, again = served.ask("POST", "/boosts", BOOST, token=one, Idempotency_Key="nightly")
    _, other = served.ask("POST", "/boosts", BOOST, token=two, Idempotency_Key="nightly")

    assert first["boost_id"] == again["boost_id"] != other["boost_id"]
    for boost in (first, other):
        served.client.release_boost(boost["boost_id"])


# -- the door ------------------------------------------------------------------------------------------------


def test_too_many_wrong_tokens_are_put_off_but_never_a_right_one_on_loopback(fresh: ServedGrid) -> None:
    statuses = [fresh.ask("GET", "/boosts", token=f"guess-{n}")[0] for n in range(MOST_FAILURES + 5)]

    assert statuses[:5] == [401] * 5
    assert statuses[-5:] == [429] * 5
    connection = http.client.HTTPConnection(urlsplit(fresh.url).netloc)
    connection.request("GET", "/api/v1/boosts", headers={"Authorization": "Bearer guess"})
    assert 0 < int(connection.getresponse().headers["Retry-After"]) <= 60
    connection.close()
    assert fresh.client.boost_status()["boosts"] == []
    assert [line["message"][:9] for line in fresh.audit() if line["event"] == "address_blocked"] == ["127.0.0.1"]
    assert "guess" not in fresh.home.audit_log.read_text()


def test_an_empty_token_file_lets_no_caller_in(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "token").write_text("\n")
    grid = ServedGrid(tmp_path)
    try:
        for value in ("Bearer ", "Bearer", "", "Basic Og=="):
            assert grid.ask("GET", "/boosts", Authorization=value)[0] == 401
        assert grid.client.boost_status()["boosts"] == []
    finally:
        grid.close()


def host_answers(grid: ServedGrid, *hosts: str, path: str = "/api/v1/health") -> int:
    """The status for a request with exactly these Host headers."""
    place = urlsplit(grid.url)
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=20) as connection:
        lines = [f"GET {path} HTTP/1.1", *(f"Host: {host}" for host in hosts), "Connection: close", "", ""]
        connection.sendall("\r\n".join(lines).encode())
        return int(connection.makefile("rb").readline().split()[1])


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "127.0.0.1:80", "[::1]:80", "localhost."])
def test_loopback_names_are_its_own(served: ServedGrid, host: str) -> None:
    assert host_answers(served, host) == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "10.0.0.1", "@"]
)
def test_a_name_that_was_made_to_point_here_is_refused(served: ServedGrid, host: str) -> None:
    for path in ("/api/v1/health", "/api/v1/boosts", "/api/v1/openapi.json", "/nowhere"):
        assert host_answers(served, host, path=path) in (400, 421)


def test_a_request_must_name_one_host(served: ServedGrid) -> None:
    assert host_answers(served) in (400, 421)
    assert host_answers(served, "localhost", "evil.example") in (400, 421)


def test_other_names_can_be_allowed(tmp_path: Path) -> None:
    grid = ServedGrid(tmp_path, Listening(allow_hosts=("Head.example.org",)))
    try:
        assert host_answers(grid, "head.example.org:8080") == 200
        assert host_answers(grid, "evil.example") == 421
    finally:
        grid.close()


def test_a_body_has_a_longest_size_also_if_it_does_not_say_how_long_it_is(served: ServedGrid) -> None:
    token = served.home.token.read_text().strip()
    body = json.dumps(BOOST | {"source_node": "x" * LONGEST_BODY})
    statuses = []
    for chunked in (False, True):
        connection = http.client.HTTPConnection(urlsplit(served.url).netloc)
        content = iter([body.encode()]) if chunked else body.encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request("POST", "/api/v1/boosts", content, headers, encode_chunked=chunked)
        answer = connection.getresponse()
        statuses.append((answer.status, json.load(answer)["error"]["code"]))
        connection.close()

    assert statuses == [(413, "TOO_LARGE")] * 2


def test_headers_have_a_longest_size_too(served: ServedGrid) -> None:
    place = urlsplit(served.url)
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=20) as connection:
        connection.sendall(b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\nX: ")
        sent = 0
        try:
            while sent < 64 * 2**20:
                connection.sendall(b"x" * 65536)
                sent += 65536
        except OSError:  # it has hung up
            pass

    assert sent < 64 * 2**20
    assert served.client.boost_status()["boosts"] == []


def test_many_requests_on_one_connection_do_not_add_up(served: ServedGrid) -> None:
    connection = http.client.HTTPConnection(urlsplit(served.url).netloc)
    for _ in range(40):
        connection.request("GET", "/api/v1/health", headers={"X-Long": "x" * 4000})
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b'{"status":"ok"}')
    connection.close()


def test_no_caller_can_say_that_it_comes_from_elsewhere(fresh: ServedGrid) -> None:
    for n in range(MOST_FAILURES + 1):
        fresh.ask("GET", "/boosts", token=f"guess-{n}", X_Forwarded_For="192.0.2.1")

    (line,) = [line for line in fresh.audit() if line["event"] == "address_blocked"]
    assert line["message"].startswith("127.0.0.1")


def test_a_damaged_token_file_lets_no_user_in_and_is_kept(tmp_path: Path) -> None:
    first = ServedGrid(tmp_path)
    token = first.token("ana", "view")
    first.close()
    first.home.tokens.write_bytes(first.home.tokens.read_bytes()[:-9])

    second = ServedGrid(tmp_path)
    try:
        assert second.ask("GET", "/me", token=token)[0] == 401
        assert GridClient(second.home).me()["scopes"] == ["admin"]
        assert list(second.home.path.glob("tokens.json.broken-*"))
        again = second.token("ana", "view")
        assert second.ask("GET", "/me", token=again)[0] == 200
    finally:
        second.close()
