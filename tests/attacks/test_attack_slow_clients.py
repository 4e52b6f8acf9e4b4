"""Slow clients: half-sent requests, answers that are not read, too many connections, streams of revoked tokens."""

import contextlib
import http.client
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from served_grid import ServedGrid

from distributed_grid.controller import server
from distributed_grid.controller.tokens import ensure_token
from distributed_grid.execution.on_node_runner import own_folder

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes half a minute elsewhere takes a moment here."""
    for name in ("HEAD_S", "BODY_S", "UNREAD_S"):
        monkeypatch.setattr(server, name, 0.5)


@contextlib.contextmanager
def connected(grid: ServedGrid, **options: int) -> Iterator[socket.socket]:
    place = urlsplit(grid.url)
    with socket.socket() as client:
        for name, value in options.items():
            client.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        client.settimeout(PATIENCE_S)
        client.connect((place.hostname, place.port))
        yield client


def all_of(client: socket.socket) -> bytes:
    """What is answered until the connection is ended."""
    answer = b""
    with contextlib.suppress(ConnectionError):
        while piece := client.recv(65536):
            answer += piece
    return answer


POST = b"POST /api/v1/boosts HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer TOKEN\r\nContent-Length: 50\r\n\r\n"
HALVES = {
    "nothing": b"",
    "half a line": b"GET /api/v1/he",
    "half a header": b"GET /api/v1/health HTTP/1.1\r\nHost: loc",
    "no body": POST,
    "half a body": POST + b'{"target',
}


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES.keys())
def test_a_client_that_sends_half_a_request_is_not_waited_for(served: ServedGrid, half: bytes) -> None:
    token = served.home.token.read_text().strip()
    with connected(served) as client:
        client.sendall(half.replace(b"TOKEN", token.encode()))
        answer = all_of(client)

    assert b" 408 " in answer
    assert served.client.cluster_status()


def test_a_client_that_sends_a_byte_now_and_then_is_not_waited_for_either(served: ServedGrid) -> None:
    with connected(served) as client:
        client.sendall(b"GET /api/v1/health HTTP/1.1\r\nX-Slow: ")
        answers: list[bytes] = []
        reading = threading.Thread(target=lambda: answers.append(all_of(client)))
        reading.start()
        with contextlib.suppress(ConnectionError):
            while reading.is_alive():
                client.send(b"x")
                time.sleep(0.05)
        reading.join(PATIENCE_S)

    assert b" 408 " in answers[0]


def test_a_client_that_takes_its_time_between_requests_is_answered(
    served: ServedGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_S", PATIENCE_S)
    with connected(served) as client:
        for _ in range(3):
            client.sendall(b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while b"}" not in answer:
                piece = client.recv(65536)
                assert piece, answer
                answer += piece
            assert answer.startswith(b"HTTP/1.1 200")
            monkeypatch.setattr(server, "HEAD_S", 0.05)
            time.sleep(0.2)


def test_a_client_that_does_not_read_its_answer_is_left(served: ServedGrid) -> None:
    served.in_its_loop(note_many(served))
    token = served.home.token.read_text().strip()
    ask = f"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    with connected(served, SO_RCVBUF=4096) as client:
        client.sendall(ask.encode() * 3)
        until(lambda: not connections(served), "the connection is ended by the controller")


async def note_many(grid: ServedGrid) -> None:
    for number in range(1000):
        grid.engine.parts.journal.note("granted", "x" * 900, number=number, padding=["y" * 900] * 3)


def connections(grid: ServedGrid) -> list[Any]:
    return [each for each in grid.server.server_state.connections if each.transport.get_write_buffer_size()]


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_new_client_finds_room_however_many_hold_connections_and_say_nothing(
    served: ServedGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_S", PATIENCE_S)
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 5)
    with contextlib.ExitStack() as many:
        for _ in range(20):
            many.enter_context(connected(served))
        assert served.ask("GET", "/health")[0] == 200


# -- streams and their tokens --------------------------------------------------------------------------------


@contextlib.contextmanager
def stream(grid: ServedGrid, token: str) -> Iterator[http.client.HTTPResponse]:
    place = urlsplit(grid.url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE_S)
    headers = {"Accept": "text/event-stream", "Authorization": f"Bearer {token}"}
    connection.request("GET", "/api/v1/events", headers=headers)
    try:
        yield connection.getresponse()
    finally:
        connection.close()


def test_a_stream_ends_soon_after_its_token_was_revoked_and_others_go_on(served: ServedGrid) -> None:
    eve, ana = served.token("eve", "view"), served.token("ana", "view")
    with stream(served, eve) as of_eve, stream(served, ana) as of_ana:
        assert of_eve.readline() and of_ana.readline()
        served.client.revoke_tokens("eve")
        served.token("somebody-new", "view")

        told_eve = of_eve.read()  # returns when the stream has ended
        while b"somebody-new" not in of_ana.readline():
            pass

    assert b"somebody-new" not in told_eve


def test_a_stream_ends_when_its_token_expires(served: ServedGrid) -> None:
    short = served.token("short", "view", expires_seconds=2)
    with stream(served, short) as listening:
        listening.read()
    assert served.ask("GET", "/me", token=short)[0] == 401


def test_a_request_that_waits_is_not_granted_to_a_token_that_was_revoked(fresh: ServedGrid) -> None:
    eve = fresh.token("eve", "lend")
    all_of_it = fresh.client.request_boost(
        {"target_node": "a", "resource_type": "cpu", "amount": 8, "source_node": "b"}
    )
    body = {"target_node": "a", "resource_type": "cpu", "amount": 8, "source_node": "b", "wait_seconds": 600}
    answers: list[tuple[int, Any]] = []
    waiting = threading.Thread(target=lambda: answers.append(fresh.ask("POST", "/boosts", body, token=eve)))
    waiting.start()
    until(lambda: fresh.engine.parts.sharing.waiting, "it waits")
    fresh.client.revoke_tokens("eve")
    waiting.join(PATIENCE_S)

    assert answers and answers[0][0] >= 400
    fresh.client.release_boost(all_of_it["boost_id"])
    until(lambda: not fresh.client.boost_status()["boosts"], "no caller has it")


# -- files that are not what they should be ------------------------------------------------------------------


@pytest.mark.parametrize("found", [b"x", b"\n", b"short-token\n", b"\xff" * 8])
def test_a_token_file_that_holds_what_could_be_guessed_gets_a_new_token(tmp_path: Any, found: bytes) -> None:
    path, reported = tmp_path / "token", []
    path.write_bytes(found)
    token = ensure_token(path, reported.append)

    assert len(token) >= 32 and path.read_text().strip() == token
    assert path.stat().st_mode & 0o777 == 0o600
    assert ensure_token(path) == token
    assert len(reported) == (0 if found == b"\n" else 1) and not any(token in line for line in reported)


def test_a_folder_in_a_place_that_all_can_write_to_is_used_only_if_it_is_ours(tmp_path: Any) -> None:
    mine, theirs, link = (str(tmp_path / name) for name in ("mine", "theirs", "link"))
    assert own_folder(mine) == own_folder(mine) == mine
    (tmp_path / "mine").chmod(0o777)
    own_folder(mine)
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(mine)
    with pytest.raises(PermissionError, match="not a folder owned by user"):
        own_folder(link)
    (tmp_path / "theirs").mkdir()
    try:
        os.chown(theirs, 12345, 12345)
    except PermissionError:
        pytest.skip("this needs the right to give a folder away")
    with pytest.raises(PermissionError, match="not a folder owned by user"):
        own_folder(theirs)
