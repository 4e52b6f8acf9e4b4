"""The controller's life: a thread with an event loop that runs the engine and answers HTTP."""

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Any

import uvicorn
import uvloop

from distributed_grid.config import GridConfig
from distributed_grid.controller.access import ensure_token
from distributed_grid.controller.api import make_app
from distributed_grid.errors import AlreadyRunning
from distributed_grid.execution.port import Cluster
from distributed_grid.orchestration.engine import Engine
from distributed_grid.store.home import GridHome

_LOCK_PATIENCE_S = 15.0


class ControllerRuntime:
    """Runs until its process ends. `start` returns once the controller answers."""

    def __init__(
        self,
        cluster: Cluster,
        config: GridConfig,
        home: GridHome,
        *,
        ray_address: str,
        config_source: str,
        leave: Callable[[], Awaitable[None]],
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._home = home.create()
        self._ray_address = ray_address
        self._config_source = config_source
        self._leave = leave
        self._host = host
        self._port = port or _last_port(home)
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._url = ""

    def where(self) -> dict[str, Any]:
        """How to reach the controller; the same is written to `controller.json`."""
        return {
            "url": self._url,
            "pid": os.getpid(),
            "ray_address": self._ray_address,
            "cluster": self._config.name,
            "config_source": self._config_source,
            "config_digest": self._config.digest(),
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def start(self) -> None:
        threading.Thread(target=self._run, name="grid-controller", daemon=True).start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            uvloop.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - told to whoever waits for the start, or to Ray by dying
            self._failure = error
            if self._ready.is_set():
                # A controller that no longer answers is of no use: Ray starts it again.
                os._exit(1)
            self._ready.set()

    async def _serve(self) -> None:
        engine = Engine(self._cluster, self._config, self._home)
        await _when_unlocked(engine.start)
        token = ensure_token(self._home.token)
        listening = _listen(self._host, self._port)
        host, port = listening.getsockname()[:2]
        self._url = f"http://{host}:{port}"
        app = make_app(engine, token, self.where, self._leave)
        server = uvicorn.Server(
            uvicorn.Config(
                app, log_level="warning", access_log=False, lifespan="off", http="httptools", timeout_keep_alive=30
            )
        )
        # Signals belong to the Ray worker that we live in.
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.005)
        self._announce()
        self._ready.set()
        await serving
        raise RuntimeError("the HTTP server ended")

    def _announce(self) -> None:
        new = self._home.controller.with_suffix(".new")
        new.write_text(json.dumps(self.where(), indent=2) + "\n")
        new.chmod(0o600)
        new.replace(self._home.controller)


async def _when_unlocked(start: Callable[[], Awaitable[None]]) -> None:
    """After a crash the old process may need a moment to die and let go of the lock."""
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            await start()
            return
        except AlreadyRunning:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


def _last_port(home: GridHome) -> int:
    """The port of the controller before this one, so that clients find the new one where the old one was."""
    with suppress(OSError, ValueError, KeyError):
        return int(json.loads(home.controller.read_text())["url"].rsplit(":", 1)[1])
    return 0


def _listen(host: str, port: int) -> socket.socket:
    for candidate in (port, 0):
        # The protocol is named because asyncio turns Nagle's algorithm off only then; it costs 40 ms an answer.
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, candidate))
        except OSError:
            with closing(listening):
                if candidate == 0:
                    raise
            continue
        listening.listen(1024)
        listening.setblocking(False)
        return listening
    raise AssertionError("unreachable")
