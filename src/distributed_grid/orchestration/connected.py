"""What the public classes have in common: they find the controller when first asked, or become it."""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from distributed_grid.config import ConfigLike
from distributed_grid.orchestration.backend import Backend, connect


class Connected:
    """Where a controller runs (`grid cluster start`, `grid start`), its client. Where none does, this process takes the
    controller's place, and must then be connected to Ray: expiry and recovery go on for as long as its event loop runs.

    `cluster_config` is a loaded configuration or a path; without one, nodes are discovered. `shared`: another of these
    classes, whose connection is used, and left to it.
    """

    def __init__(
        self,
        cluster_config: ConfigLike = None,
        *,
        backend: Backend | None = None,
        shared: "Connected | None" = None,
        **_historic: Any,
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
        """Let go; leases stay until they expire or are released. A backend that was given is left to its owner."""
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


def connect_to_ray(cluster: Mapping[str, Any]) -> None:
    """To the controller's cluster, as the backend shows it; without a controller, this process is connected already."""
    import ray

    address = cluster.get("ray_address")
    if address is not None and not ray.is_initialized():
        ray.init(address=address, log_to_driver=True, logging_level="WARNING")


def head_of(cluster: Mapping[str, Any]) -> str:
    """The node for which work is that names none."""
    return str(next(node["name"] for node in cluster["nodes"] if node["is_head"]))


def ray_process() -> str | None:
    """This process as Ray knows it; None: it is not connected to Ray."""
    import ray

    return str(ray.get_runtime_context().get_worker_id()) if ray.is_initialized() else None
