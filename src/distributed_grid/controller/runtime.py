"""The controller's life: a thread with an event loop that runs the engine and answers HTTP."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import uvloop

from distributed_grid.config import GridConfig
from distributed_grid.controller.api import make_app
from distributed_grid.controller.listening import checked, fingerprint, listen, url_of
from distributed_grid.controller.server import make_server
from distributed_grid.controller.tokens import Tokens, ensure_token
from distributed_grid.errors import AlreadyRunning, StoreBroken
from distributed_grid.execution.port import Cluster
from distributed_grid.execution.process_port import Hands
from distributed_grid.execution.ray_start import LOOPBACK, LOOPBACK_HOST
from distributed_grid.execution.role_records import RoleRecords
from distributed_grid.model.listening import Listening
from distributed_grid.monitoring.senses import Senses
from distributed_grid.orchestration.engine import Engine
from distributed_grid.orchestration.parts import utc_now
from distributed_grid.store.durable import replace_durably
from distributed_grid.store.home import GridHome
from distributed_grid.store.token_file import TokenFile

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
        listening: Listening | None = None,
        adopt: bool = False,
        senses: Senses | None = None,
        hands: Hands | None = None,
        role_records: RoleRecords | None = None,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._home = home.create()
        self._ray_address = ray_address
        self._config_source = config_source
        self._leave = leave
        self._listening = checked(listening or Listening())
        self._fingerprint = fingerprint(self._listening.tls_cert) if self._listening.tls_cert else None
        self._adopt = adopt
        self._senses = senses
        self._hands = hands
        self._role_records = role_records
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._url = ""
        self.notes: tuple[str, ...] = ()
        """What whoever started the controller should know."""

    def where(self) -> dict[str, Any]:
        """How to reach the controller; the same is written to `controller.json`."""
        return {
            "url": self._url,
            "tls_sha256": self._fingerprint,
            "pid": os.getpid(),
            "ray_address": self._ray_address,
            "ray_auth_mode": os.environ.get("RAY_AUTH_MODE") or "disabled",  # a node hands its own on to all it starts
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
        engine = Engine(
            self._cluster, self._config, self._home, adopt=self._adopt, senses=self._senses, hands=self._hands
        )
        await _when_unlocked(engine.start)
        self.notes = engine.notes
        tokens = Tokens(ensure_token(self._home.token), TokenFile(self._home.tokens), utc_now)
        for problem in tokens.problems:
            engine.parts.journal.note("store_problem", problem)
        socket = listen(self._listening.host, self._listening.port or _last_port(self._home))
        own_address = self._ray_address.rpartition(":")[0].replace(LOOPBACK_HOST, LOOPBACK)
        self._url = url_of(socket, tls=self._fingerprint is not None, own_address=own_address)
        hosts = self._listening.allow_hosts
        app = make_app(engine, tokens, self.where, self._leave_on_purpose, hosts, self._role_records)
        server = make_server(app, self._listening)
        # Signals belong to the Ray worker that we live in.
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        serving = asyncio.create_task(server.serve(sockets=[socket]))
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.005)
        self._announce()
        self._ready.set()
        await serving
        raise RuntimeError("the HTTP server ended")

    async def _leave_on_purpose(self) -> None:
        """Whoever supervises must not put grid in again; said before leaving, so that nobody sees it just gone."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        self._home.stopped.write_text(json.dumps({"at": at, "ray_address": self._ray_address}) + "\n")
        await self._leave()

    def _announce(self) -> None:
        """On a disk that cannot be written, what the controller before this one said still tells where to ask."""
        with suppress(OSError):
            self._home.stopped.unlink(missing_ok=True)
        try:
            replace_durably(self._home.controller, json.dumps(self.where(), indent=2).encode() + b"\n")
        except OSError as error:
            if not self._url.endswith(f":{_last_port(self._home)}"):
                raise StoreBroken(
                    f"Cannot write {self._home.controller}: {error.strerror}",
                    try_next=f"Let your user write to {self._home.path}, and see that it has space.",
                ) from error


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
