"""Calling a holder's hook: bounded in time and size, whatever is at the other end."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from hook_server import HookServer

from distributed_grid.decide.leases.hooks import hook_place
from distributed_grid.leases.notices import HookFailed, call_hook


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that speaks no HTTP unless `answer` does."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            answer(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
    finally:
        thread.join(20)
        server.close()


def call(url: str, within_s: float = 60.0) -> bytes:
    return call_hook(hook_place(url, {}), b'{"boost_id": "1"}', within_s).body


def test_the_notice_is_posted_and_the_answer_comes_back() -> None:
    with HookServer({"release": True}) as holder:
        assert call(holder.url) == b'{"release": true}'
    assert holder.asked == [{"boost_id": "1"}]


def test_one_that_sends_a_byte_now_and_then_is_left_in_the_end() -> None:
    ended = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while not ended.wait(0.02):
            connection.sendall(b" ")

    with listening(drip) as url:
        with pytest.raises(HookFailed):
            call(url, within_s=0.3)
        ended.set()


def test_one_that_never_answers_is_left() -> None:
    def never(connection: socket.socket) -> None:
        while connection.recv(1 << 16):
            pass

    with listening(never) as url, pytest.raises(HookFailed):
        call(url, within_s=0.2)


def test_one_that_speaks_something_else_is_reported() -> None:
    with listening(lambda connection: connection.sendall(b"SSH-2.0-OpenSSH\r\n")) as url, pytest.raises(HookFailed):
        call(url)


def test_no_more_is_read_than_an_answer_may_have() -> None:
    with HookServer(b"x" * 1_000_000) as holder, pytest.raises(HookFailed, match="more than"):
        call(holder.url)


def test_a_redirect_is_an_answer_like_any_other() -> None:
    with HookServer() as other, HookServer(status=307, headers={"Location": other.url}) as holder:
        assert call_hook(hook_place(holder.url, {}), b"{}").status == 307
    assert not other.asked


def test_no_server_there() -> None:
    with HookServer() as holder:
        url = holder.url
    with pytest.raises(HookFailed):
        call(url)
