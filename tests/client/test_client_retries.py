"""A client whose controller is away for a while: what changes something is tried again until it is back."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.client import GridClient, calls
from distributed_grid.client.calls import RETRY_S
from distributed_grid.controller.listening import listen
from distributed_grid.errors import ControllerUnreachable
from distributed_grid.store.home import GridHome


class Controller(BaseHTTPRequestHandler):
    """Answers every request, and keeps how it was asked."""

    asked: list[tuple[str, str, dict[str, str]]]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.asked.append((self.command, self.path, dict(self.headers)))
        body = json.dumps({"state": "released"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def ray_head() -> Iterator[str]:
    """Something listens there, so the cluster is not gone."""
    with listen("127.0.0.1", 0) as head:
        yield f"127.0.0.1:{head.getsockname()[1]}"


@pytest.fixture
def away(tmp_path: Path, ray_head: str) -> tuple[GridHome, int]:
    """A home whose controller does not answer, and the port at which it did."""
    home = GridHome(tmp_path / "home").create()
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    home.token.write_text("token")
    home.controller.write_text(json.dumps({"url": f"http://127.0.0.1:{port}", "ray_address": ray_head}))
    return home, port


def test_a_release_outlasts_a_controller_that_is_away_for_longer_than_a_look_would_wait(
    away: tuple[GridHome, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, port = away
    monkeypatch.setattr(Controller, "asked", [], raising=False)
    away_s = RETRY_S + 2.0
    servers: list[ThreadingHTTPServer] = []

    def come_back() -> None:
        time.sleep(away_s)
        servers.append(ThreadingHTTPServer(("127.0.0.1", port), Controller))
        servers[0].serve_forever(poll_interval=0.05)

    thread = threading.Thread(target=come_back, daemon=True)
    thread.start()
    told: list[str] = []
    began = time.monotonic()
    client = GridClient(home, on_wait=told.append)
    try:
        assert client.release_boost("b1") == {"state": "released"}
    finally:
        client.close()
        thread.join(0) if not servers else servers[0].shutdown()
        for server in servers:
            server.server_close()

    assert time.monotonic() - began >= away_s
    assert told == ["The controller does not answer; trying again for 60 s ..."]
    ((_, path, headers),) = Controller.asked
    assert path == "/api/v1/boosts/b1/release"
    assert headers["X-Grid-Retry"] == "1" and headers["Idempotency-Key"], "done once, however often it was sent"


def test_a_look_gives_up_sooner(away: tuple[GridHome, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "RETRY_S", 0.5)
    client = GridClient(away[0])
    with pytest.raises(ControllerUnreachable, match="does not answer"):
        client.boost_status()
