"""The controller's life: a thread with an event loop that runs the engine and answers HTTP."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import secrets
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
import uvicorn
import uvloop

from distributed_grid import threads
from distributed_grid.config import GridConfig
from distributed_grid.controller.api import make_app
from distributed_grid.controller.listening import checked, fingerprint, listen, url_of
from distributed_grid.controller.server import make_server
from distributed_grid.controller.tokens import Tokens, ensure_token
from distributed_grid.engine.engine import Engine
from distributed_grid.errors import AlreadyRunning, GridError, StoreBroken
from distributed_grid.execution.port import Cluster
from distributed_grid.execution.processes import ProcessControl
from distributed_grid.execution.ray_start import LOOPBACK, LOOPBACK_HOST
from distributed_grid.execution.role_records import RoleRecords
from distributed_grid.leases.state import utc_now
from distributed_grid.logs import logger
from distributed_grid.loops import Loop
from distributed_grid.model.listening import Listening
from distributed_grid.monitoring.telemetry import Telemetry
from distributed_grid.store.durable import bytes_of, record_of, replace_durably, stamp, text_in
from distributed_grid.store.home import GridHome
from distributed_grid.store.token_file import TokenFile

if TYPE_CHECKING:
    from distributed_grid.wire.controller import Whereabouts

log = logger()
T = TypeVar("T")

_LOCK_PATIENCE_S: Final = 15.0  # after a crash the old process may need a moment to die and release the lock
_RETRY_S: Final = 1.0
_QUIET_S: Final = 3.0  # a start that fails for this long is not reported
_SETTLE_S: Final = 30.0


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
        telemetry: Telemetry | None = None,
        control: ProcessControl | None = None,
        role_records: RoleRecords | None = None,
        patient: bool = False,
    ) -> None:
        """`patient`: start despite faults that can be repaired; until then the status names them."""
        self._cluster = cluster
        self._config = config
        self._home = home
        self._patient = patient
        self._trouble: dict[str, str] = {}
        """Faults of parts of the process, by part."""
        self._ray_address = ray_address
        self._config_source = config_source
        self._leave = leave
        self._listening = listening or Listening()
        self._fingerprint: str | None = None
        self._adopt = adopt
        self._telemetry = telemetry
        self._control = control
        self._role_records = role_records
        self._thread = threading.Thread(target=self._run, name="grid-controller", daemon=True)
        self._serving: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self._server: uvicorn.Server | None = None
        self._is_ending = self._is_leaving = False
        self._token_stamp: tuple[int, int, int] | None = None
        self._record_stamp: tuple[int, int, int] | None = None
        """The stamp of the record that this controller wrote, or found to be right."""
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._engine: Engine | None = None
        self._url = ""
        self.notes: tuple[str, ...] = ()
        """Notes for the person who started the controller."""

    def where(self) -> Whereabouts:
        """How to reach the controller; the same is written to `controller.json`."""
        return {
            "url": self._url,
            "tls_sha256": self._fingerprint,
            "pid": os.getpid(),
            "ray_address": self._ray_address,
            "ray_auth_mode": os.environ.get("RAY_AUTH_MODE") or "disabled",  # a node passes its own on to all it starts
            "cluster": self._config.name,
            "config_source": self._config_source,
            "config_digest": self._config.digest(),
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Stop answering and release the lock; boosts stay. For a process that continues without the controller."""
        self._is_ending = True
        if self._thread.is_alive() and self._serving is not None:
            loop, serving = self._serving
            if self._server is not None:
                self._server.should_exit = True
            else:
                with suppress(RuntimeError):  # the loop is closed by now
                    loop.call_soon_threadsafe(serving.cancel)
            self._thread.join()

    async def _serve_until_the_end(self) -> None:
        serving = asyncio.ensure_future(self._serve())
        self._serving = asyncio.get_running_loop(), serving
        try:
            await serving
        finally:
            if self._is_ending and self._engine is not None:
                await self._engine.stop()

    def _run(self) -> None:
        try:
            uvloop.run(self._serve_until_the_end())
        except BaseException as error:  # noqa: BLE001 - raised in `start`, or reported to Ray by dying
            self._failure = error
            if self._ready.is_set() and not self._is_ending:
                # A controller that no longer answers is of no use: Ray starts it again.
                os._exit(1)
            self._ready.set()

    async def _serve(self) -> None:
        """Settle what a crash interrupted before answering requests; if that fails, the status says why."""
        await self._make_home()
        self._engine = engine = Engine(
            self._cluster,
            self._config,
            self._home,
            adopt=self._adopt,
            telemetry=self._telemetry,
            control=self._control,
        )
        tokens = Tokens(
            await self._installation_token(), TokenFile(self._home.tokens), utc_now, strict=not self._patient
        )
        begin, opens = partial(engine.start, strict=not self._patient), partial(self._open, engine, tokens)
        starting = asyncio.create_task(self._until_it_works("engine", begin, "The controller has not started yet"))
        await self._until_settled(starting)
        serving = await self._until_it_works("server", opens, "The controller's HTTP server has not started yet")
        keeping = Loop("keeping the controller's files", lambda: self._keep(tokens), lambda: _RETRY_S, waits_first=True)
        keeping.start()
        self.notes = (*self.notes, *engine.notes)
        await self._announce()
        _load_what_comes_late()
        _keep_collections_short()
        self._ready.set()
        await asyncio.wait([serving])
        keeping.end()
        await serving
        raise RuntimeError("the HTTP server ended")

    async def _until_settled(self, starting: asyncio.Task[None]) -> None:
        """Wait for the engine; a patient controller only until it is clear that something prevents the start."""
        until = time.monotonic() + _SETTLE_S
        while not starting.done() and (
            not self._patient or ("engine" not in self._trouble and time.monotonic() < until)
        ):
            await asyncio.wait([starting], timeout=0.1)
        if starting.done():
            await starting

    async def _open(self, engine: Engine, tokens: Tokens) -> asyncio.Task[None]:
        listening = checked(self._listening)
        self._fingerprint = fingerprint(listening.tls_cert) if listening.tls_cert else None
        # A requested port is used or is an error. A controller that comes back must be reachable at any port.
        port = listening.port or _last_port(self._home)
        socket = listen(listening.host, port, or_another=self._patient or not listening.port)
        own_address = self._ray_address.rpartition(":")[0].replace(LOOPBACK_HOST, LOOPBACK)
        self._url = url_of(socket, tls=self._fingerprint is not None, own_address=own_address)
        if port and not self._url.endswith(f":{port}"):
            message = f"Port {port} is taken: the controller answers at {self._url} instead"
            if listening.port:
                self._note_trouble("port", message)
            else:
                self.notes = (*self.notes, message)
        hosts = listening.allow_hosts
        app = make_app(engine, tokens, self.where, self._leave_on_purpose, hosts, self._role_records)
        app.openapi()  # FastAPI keeps it; the first caller would make all others wait while it is worked out
        self._server = server = make_server(app, listening)
        # Signals belong to the Ray worker that the controller lives in.
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        serving = asyncio.create_task(server.serve(sockets=[socket]))
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.005)
        return serving

    async def _keep(self, tokens: Tokens) -> None:
        """Repeat what the disk refused: users' tokens, the installation's, and where the controller is reached."""
        await tokens.catch_up()
        self._note_trouble("tokens", "; ".join(tokens.problems) or None)
        if "token" in self._trouble or await threads.DISK.run(stamp, self._home.token) != self._token_stamp:
            await self._renew_installation_token(tokens)
        if "announce" in self._trouble or await self._is_record_another():
            await self._announce()

    async def _renew_installation_token(self, tokens: Tokens) -> None:
        """Use a token that was put into the file; until the file can be read, the last token stays valid."""
        try:
            tokens.installation = await self._read_token()
        except StoreBroken:
            return

    async def _is_record_another(self) -> bool:
        """True if commands would no longer find this controller, though they should."""
        if self._is_leaving or "engine" in self._trouble:
            return False
        return await threads.DISK.run(stamp, self._home.controller) != self._record_stamp

    async def _installation_token(self) -> str:
        try:
            return await self._read_token()
        except StoreBroken as error:
            if not self._patient:
                raise
            self._note_trouble("token", f"{_reason(error)}. Until it can be, only users' tokens are valid")
            return secrets.token_urlsafe(32)

    async def _read_token(self) -> str:
        weak: list[str] = []
        token = await threads.DISK.run(ensure_token, self._home.token, weak.append)
        self._token_stamp = await threads.DISK.run(stamp, self._home.token)
        self._note_trouble("token", None)
        self._note_trouble("weak token", weak[0] if weak else None)
        return token

    async def _make_home(self) -> None:
        """Create GRID_HOME. Without it the controller still ends known boosts that expire; commands find it later."""
        try:
            await threads.DISK.run(self._home.create)
        except StoreBroken as error:
            if not self._patient:
                raise
            log.error("GRID_HOME is not available; the controller retries", error=_reason(error))

    async def _until_it_works(self, part: str, work: Callable[[], Awaitable[T]], problem: str) -> T:
        """Start a part, however many tries that takes. Unless `patient`, raise what is wrong, except for a lock that
        the last controller is about to release."""
        began = time.monotonic()
        while True:
            try:
                done = await work()
            except Exception as error:
                passed = time.monotonic() - began
                if not self._patient and not (isinstance(error, AlreadyRunning) and passed < _LOCK_PATIENCE_S):
                    raise
                if self._patient and passed > _QUIET_S:
                    self._note_trouble(part, f"{problem}: {_reason(error)}. It tries again")
                    log.error("the controller cannot start fully", part=part, error=_reason(error))
                await asyncio.sleep(0.1 if passed < _QUIET_S else _RETRY_S)
            else:
                self._note_trouble(part, None)
                return done

    def _note_trouble(self, part: str, problem: str | None) -> None:
        """Record a fault: the status shows it until it is over, the audit log keeps it."""
        before = self._trouble.pop(part, None)
        if problem is not None:
            self._trouble[part] = problem
        if self._engine is None:
            return
        self._engine.trouble = tuple(self._trouble.values())
        if problem is not None and problem != before:
            self._engine.parts.journal.note("degraded", problem)
        elif problem is None and before is not None:
            self._engine.parts.journal.note("recovered", f"over: {before}")

    async def _leave_on_purpose(self) -> None:
        """Leave a record that keeps supervisors from starting grid again. It is written before grid leaves, so that
        none takes the controller for crashed."""
        at = datetime.now(UTC).isoformat(timespec="microseconds")
        text = json.dumps({"at": at, "ray_address": self._ray_address}).encode() + b"\n"
        try:
            await threads.DISK.run(replace_durably, self._home.stopped, text)
        except OSError as error:
            raise StoreBroken(
                f"Cannot write {self._home.stopped}: {error.strerror}",
                because=["without this file, a supervisor would add grid to the cluster again"],
                try_next=f"Make {self._home.path} writable for your user, and check its free space; "
                "then grid stop again.",
            ) from error
        self._is_leaving = True
        if self._engine is not None and self._engine.watching is not None:
            await self._engine.watching.leave()
        await self._leave()

    async def _announce(self) -> None:
        """Write how to reach the controller. If the disk refuses, its predecessor's record may still be right."""
        with suppress(OSError):
            self._home.stopped.unlink(missing_ok=True)
        try:
            text = json.dumps(self.where(), indent=2).encode() + b"\n"
            await threads.DISK.run(replace_durably, self._home.controller, text)
        except OSError as error:
            if self._url.endswith(f":{_last_port(self._home)}"):
                self._record_stamp = await threads.DISK.run(stamp, self._home.controller)
                self._note_trouble("announce", None)
                return
            broken = StoreBroken(
                f"Cannot write {self._home.controller}: {error.strerror}",
                try_next=f"Make {self._home.path} writable for your user, and check its free space.",
            )
            if not self._patient:
                raise broken from error
            self._note_trouble("announce", f"{broken.message}: commands do not find {self._url}")
        else:
            self._record_stamp = await threads.DISK.run(stamp, self._home.controller)
            self._note_trouble("announce", None)


def _reason(error: Exception) -> str:
    if isinstance(error, GridError):
        return "; ".join((error.message, *error.because))
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def _last_port(home: GridHome) -> int:
    """The port of the controller before this one, so that clients find the new one where the old one was."""
    with suppress(StoreBroken, ValueError, IndexError):
        port = int(text_in(record_of(bytes_of(home.controller) or b""), "url").rsplit(":", 1)[1])
        return port if 0 < port < 2**16 else 0
    return 0


def _load_what_comes_late() -> None:
    """Load what the first request would otherwise load while all others wait."""
    anyio.CancelScope()


def _keep_collections_short() -> None:
    """Exempt all loaded objects from garbage collection: scanning them again would stop every thread for 0.1 s."""
    gc.collect()
    gc.freeze()
    gc.enable()
