"""Where a Python caller's requests go: to a running controller, or to an engine in this process.

Both answer through the client's calls. `Connected` is what the public classes share: the first call finds the
controller, or starts the engine.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, Self, TypeVar, cast
from urllib.parse import unquote

from distributed_grid.client import GridClient
from distributed_grid.client.connections import Answer, Call, Unreachable
from distributed_grid.client.whereabouts import Whereabouts
from distributed_grid.config import ConfigLike, GridConfig, loaded_config
from distributed_grid.errors import NoCluster
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.snapshots import NodeSnapshot
from distributed_grid.model.times import instant
from distributed_grid.monitoring.views import snapshots_from
from distributed_grid.store.home import GridHome

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Scope

    from distributed_grid.engine.engine import Engine
    from distributed_grid.wire.controller import Whereabouts as ControllerPlace
    from distributed_grid.wire.nodes import ClusterSeen, ClusterStatus

P = ParamSpec("P")
T = TypeVar("T")
_HERE: Final = "the engine in this process"
_CALLS_AT_ONCE: Final = 128
"""A request that waits for capacity occupies a thread for as long."""


async def connect(config: ConfigLike, home: GridHome | None = None, *, measuring: bool = False) -> Backend:
    """The controller's client where one answers. Otherwise this process takes its place, if Ray is connected.

    A user who is logged in to a remote controller always gets that one, even while it does not answer. `measuring`: in
    the controller's place, also measure the nodes and share by the policy.
    """
    home = home or GridHome.find()
    if home.controller.exists() or home.login.exists():
        remote = Backend(GridClient(home))
        try:
            await remote.ask(GridClient.boost_status)
        except NoCluster:  # a record of a cluster that is gone
            await remote.close()
        else:
            return remote
    return await _in_this_process(loaded_config(config), home, measuring=measuring)


async def _in_this_process(config: GridConfig, home: GridHome, *, measuring: bool) -> Backend:
    """An engine in this event loop, under the writer's lock: there is never a second writer."""
    import ray

    if not ray.is_initialized():
        raise NoCluster(
            "No cluster is running",
            because=["no controller answers, and this process is not connected to Ray"],
            try_next="Start one with `grid cluster start`, or call ray.init(address=...) first.",
        )
    from distributed_grid.engine.engine import Engine
    from distributed_grid.execution.ray_cluster import RayCluster
    from distributed_grid.monitoring.telemetry import RayTelemetry

    address = ray.get_runtime_context().gcs_address
    engine = Engine(RayCluster(address), config, home, telemetry=RayTelemetry(address) if measuring else None)
    await engine.start()
    return Backend.of(engine, address)


class Backend:
    """The client's calls, each in a thread, so that none blocks the event loop. Answers are the API's JSON."""

    def __init__(self, client: GridClient, engine: Engine | None = None) -> None:
        """`engine`: the one in this process that the client reaches; it ends with the backend."""
        self._client, self._engine = client, engine
        self._threads = ThreadPoolExecutor(_CALLS_AT_ONCE, "grid-calls")

    @classmethod
    def of(cls, engine: Engine, ray_address: str = "") -> Backend:
        """The API of an engine that runs in the present event loop."""
        client = GridClient(engine.parts.home, at=Whereabouts(_HERE, ""), through=InProcess(engine, ray_address))
        return cls(client, engine)

    async def ask(self, call: Callable[Concatenate[GridClient, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """One call of the client, such as `ask(GridClient.boost, boost_id)`."""
        bound = partial(call, self._client, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, bound)

    def snapshots(self) -> dict[NodeName, NodeSnapshot]:
        if self._engine is None:
            return snapshots_from(self._client.nodes())
        watching = self._engine.watching
        return watching.collector.snapshots() if watching is not None else {}

    async def close(self) -> None:
        self._client.close()
        if self._engine is not None:
            if self._engine.watching is not None:
                await self._engine.watching.leave()
            await self._engine.stop()
        self._threads.shutdown(wait=False)


class InProcess:
    """The API of an engine in this process: a call is a call of the application, in the engine's event loop.

    The API's checks apply here, too; the token that they require lives as long as this object.
    """

    def __init__(self, engine: Engine, ray_address: str) -> None:
        from distributed_grid.client import user_name
        from distributed_grid.controller.api import make_app
        from distributed_grid.controller.tokens import Tokens
        from distributed_grid.leases.state import utc_now
        from distributed_grid.store.token_file import TokenFile

        token = secrets.token_urlsafe(32)
        # The process that holds the store's lock and files owns the installation.
        self._headers = {"host": "localhost", "authorization": f"Bearer {token}", "x-grid-user": user_name()}
        tokens = Tokens(token, TokenFile(engine.parts.home.tokens), utc_now, strict=False)
        self._app: ASGIApp = make_app(engine, tokens, lambda: self._where(engine, ray_address), _stays)
        self._loop = asyncio.get_running_loop()

    def ask(self, call: Call[object]) -> Answer:
        """One call and its answer, as `Connections.ask`; from any thread but the event loop's."""
        headers = call.all_headers(self._headers)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": call.method,
            "path": unquote(call.path),
            "raw_path": call.path.encode(),
            "root_path": "",
            "query_string": call.query.encode(),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 0),
        }
        answer = asyncio.run_coroutine_threadsafe(self._answer(scope, call.content), self._loop)
        try:
            return answer.result(call.answer_s)
        except TimeoutError:
            answer.cancel()
            raise Unreachable(f"no answer in {call.answer_s:g} s") from None

    async def _answer(self, scope: Scope, content: bytes) -> Answer:
        unread = [content]
        status, parts = 0, []

        async def receive() -> Message:
            if not unread:
                await asyncio.Event().wait()  # the caller stays until it has its answer
            return {"type": "http.request", "body": unread.pop(), "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        await self._app(scope, receive, send)
        return Answer(status, b"".join(parts))

    @staticmethod
    def _where(engine: Engine, ray_address: str) -> ControllerPlace:
        """No other process reaches it."""
        return {
            "url": _HERE,
            "tls_sha256": None,
            "pid": os.getpid(),
            "ray_address": ray_address,
            "ray_auth_mode": os.environ.get("RAY_AUTH_MODE") or "disabled",
            "cluster": engine.config.name,
            "config_source": _HERE,
            "config_digest": engine.config.digest(),
            "started_at": instant(engine.parts.now()),
        }

    def close(self) -> None:
        """Nothing is open between two calls."""


async def _stays() -> None:
    """A program that is its own controller goes on after it has returned all capacity."""


class Connected:
    """Where a controller runs (`grid cluster start`, `grid start`), this is its client. Where none runs, this process
    takes the controller's place, and must then be connected to Ray: expiry and recovery continue for as long as its
    event loop runs.

    `cluster_config` is a loaded configuration or a path; without one, nodes are discovered. `shared`: another of these
    classes, whose connection is used and stays its own.
    """

    def __init__(
        self,
        cluster_config: ConfigLike = None,
        *,
        backend: Backend | None = None,
        shared: Connected | None = None,
        **_historic: object,
    ) -> None:
        self._config = cluster_config
        self._shared = shared
        self._given = backend
        self._backend: Backend | None = backend
        self._connecting = asyncio.Lock()

    async def initialize(self) -> None:
        """Find the controller, or become it. The other calls do this by themselves."""
        async with self._connecting:
            if self._backend is None and self._shared is not None:
                self._backend = self._given = await self._shared._ready()
            if self._backend is None:
                self._backend = await connect(self._config)

    async def start(self) -> None:
        await self.initialize()

    async def close(self) -> None:
        """Disconnect. Leases stay until they expire or are released. A backend that was given is left to its owner."""
        if self._backend is not None and self._given is None:
            await self._backend.close()
            self._backend = None

    async def stop(self) -> None:
        await self.close()

    async def __aenter__(self) -> Self:
        await self.initialize()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _ready(self) -> Backend:
        await self.initialize()
        assert self._backend is not None
        return self._backend

    async def _ask(self, call: Callable[Concatenate[GridClient, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """One call of the client, once the controller is found."""
        return await (await self._ready()).ask(call, *args, **kwargs)


def connect_to_ray(cluster: ClusterSeen | ClusterStatus) -> None:
    """Connect to the controller's cluster, as the backend shows it. Without a controller, Ray is already connected."""
    import ray

    address = cast("Mapping[str, str]", cluster).get("ray_address")
    if address is not None and not ray.is_initialized():
        ray.init(address=address, log_to_driver=True, logging_level="WARNING")


def head_of(cluster: ClusterSeen) -> str:
    """The node for work that names none."""
    return str(next(node["name"] for node in cluster["nodes"] if node["is_head"]))


def ray_process() -> str | None:
    """This process's Ray id; None if it is not connected to Ray."""
    import ray

    return str(ray.get_runtime_context().get_worker_id()) if ray.is_initialized() else None
