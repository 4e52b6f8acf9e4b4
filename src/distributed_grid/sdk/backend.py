"""Where a Python caller's requests go: to a running controller, or to an engine in this process.

`Connected` is what the public classes share: the first call finds the controller, or starts the engine.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

from distributed_grid import threads
from distributed_grid.config import ConfigLike, GridConfig, loaded_config
from distributed_grid.engine.views import cluster_dict
from distributed_grid.errors import NoCluster, RequestNotFound, Unavailable
from distributed_grid.leases.view import boost_dict, status_dict
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.principals import THE_OWNER
from distributed_grid.model.snapshots import NodeSnapshot
from distributed_grid.model.teams import DEFAULT_TEAM
from distributed_grid.monitoring.views import snapshots_from
from distributed_grid.scheduler.view import decision_dict, request_from, scheduling_dict
from distributed_grid.store.home import GridHome

if TYPE_CHECKING:
    from distributed_grid.client import GridClient
    from distributed_grid.engine.engine import Engine
    from distributed_grid.wire.audit import Entry
    from distributed_grid.wire.boosts import Boost, BoostList, BoostRequest, ReleaseRequest
    from distributed_grid.wire.nodes import ClusterSeen, ClusterStatus
    from distributed_grid.wire.offload import (
        OffloadAnswer,
        OffloadCandidates,
        OffloadedProcess,
        OffloadLog,
        OffloadRequest,
        OffloadStatus,
    )
    from distributed_grid.wire.queue import Allocation, AllocationRequest, Plan, PlanRequest, QueueStatus
    from distributed_grid.wire.scheduling import TaskDecision, TaskDone, TaskList, TaskRequest
    from distributed_grid.wire.sharing import SharingStatus


async def connect(config: ConfigLike, home: GridHome | None = None, *, measuring: bool = False) -> Backend:
    """The controller's client where one answers. Otherwise this process takes its place, if Ray is connected.

    A user who is logged in to a remote controller always gets that one, even while it does not answer. `measuring`: in
    the controller's place, also measure the nodes and share by the policy.
    """
    home = home or GridHome.find()
    if home.controller.exists() or home.login.exists():
        from distributed_grid.client import GridClient

        remote = cast("Backend", RemoteBackend(GridClient(home)))
        try:
            await remote.boost_status()
        except NoCluster:  # a record of a cluster that is gone
            await remote.close()
        else:
            return remote
    return await LocalBackend.start(loaded_config(config), home, measuring=measuring)


class RemoteBackend:
    """A controller, over HTTP: each call of `LocalBackend` is the client's call of that name, in a thread."""

    def __init__(self, client: GridClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        return partial(asyncio.to_thread, getattr(self._client, name))

    def snapshots(self) -> dict[NodeName, NodeSnapshot]:
        return snapshots_from(self._client.nodes())

    async def close(self) -> None:
        self._client.close()


class LocalBackend:
    """The engine in this process, under the writer's lock: there is never a second writer.

    Its calls have the names, parameters and answers of `GridClient`.
    """

    def __init__(self, engine: Engine) -> None:
        from distributed_grid.client import user_name
        from distributed_grid.engine.allocations import Allocations

        self._engine = engine
        self._allocations = Allocations(engine)
        # The process that holds the store's lock and files owns the installation.
        self._caller = THE_OWNER.claiming(user_name())
        self._who = self._caller.name

    @classmethod
    async def start(cls, config: GridConfig, home: GridHome, *, measuring: bool = False) -> LocalBackend:
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
        return cls(engine)

    async def request_boost(self, body: BoostRequest, *, idempotency_key: str | None = None) -> Boost:
        return self._shown(await self._engine.request(body, caller=self._caller, idempotency_key=idempotency_key))

    async def release_boost(self, boost_id: str, body: ReleaseRequest | None = None) -> Boost:
        from distributed_grid.leases.release import units_to_give

        given = body or {}
        units = units_to_give(self._engine.parts, boost_id, given.get("amount"))
        grace_s = given.get("grace_seconds")
        return self._shown(await self._engine.service.release(boost_id, units=units, grace_s=grace_s, who=self._who))

    async def checkpointed(self, boost_id: str) -> Boost:
        return self._shown(await self._engine.service.checkpointed(boost_id, who=self._who))

    async def renew_boost(self, boost_id: str, duration_s: object = None) -> Boost:
        return self._shown(await self._engine.service.renew(boost_id, duration_s, who=self._who))

    async def boost(self, boost_id: str) -> Boost:
        return self._shown(self._engine.parts.ledger.find(boost_id))

    async def boost_status(self) -> BoostList:
        return status_dict(self._engine.service.boosts(), self._engine.parts.notes)

    async def request_allocation(self, body: AllocationRequest, *, idempotency_key: str | None = None) -> Allocation:
        return await self._allocations.request(body, caller=self._caller, idempotency_key=idempotency_key)

    async def allocation(self, request_id: str) -> Allocation:
        return self._allocations.find(request_id)

    async def release_allocation(self, request_id: str) -> Allocation:
        return await self._allocations.release(request_id, caller=self._caller)

    async def sharing_status(self) -> SharingStatus:
        return await self._allocations.status()

    async def queue(self) -> QueueStatus:
        return self._allocations.queue()

    async def plan(self, body: PlanRequest) -> Plan:
        return await self._allocations.plan(body, caller=self._caller)

    async def schedule_task(self, body: TaskRequest) -> TaskDecision:
        request = request_from(body, task_id=body.get("task_id") or uuid.uuid4().hex)
        return decision_dict(await self._engine.scheduling.schedule(request, who=self._who, team=DEFAULT_TEAM))

    async def task(self, task_id: str) -> TaskDecision:
        return decision_dict(self._engine.scheduling.find(task_id))

    async def task_started(self, task_id: str) -> TaskDecision:
        return decision_dict(await self._engine.scheduling.started(task_id, who=self._who))

    async def complete_task(self, task_id: str) -> TaskDone:
        if not await self._engine.scheduling.complete(task_id, who=self._who):
            raise RequestNotFound(f"No task with the id {task_id!r:.80}")
        return {"task_id": task_id, "completed": True}

    async def tasks(self) -> TaskList:
        return scheduling_dict(self._engine.parts)

    async def offload_candidates(self, node: str | None = None) -> OffloadCandidates:
        raise _only_a_controller()

    async def offload(self, body: OffloadRequest) -> OffloadAnswer:
        raise _only_a_controller()

    async def offloads(self) -> OffloadStatus:
        raise _only_a_controller()

    async def offload_log(self, offload_id: str, begin: int = 0) -> OffloadLog:
        raise _only_a_controller()

    async def cancel_offload(self, offload_id: str, grace_s: float) -> OffloadedProcess:
        raise _only_a_controller()

    async def audit_log(self, *, limit: int) -> list[Entry]:
        from distributed_grid.store.audit_log import Wanted

        return await threads.READING.run(self._engine.parts.journal.recorded, Wanted(), limit)

    async def cluster_status(self) -> ClusterSeen | ClusterStatus:
        return await cluster_dict(self._engine)

    def snapshots(self) -> dict[NodeName, NodeSnapshot]:
        watching = self._engine.watching
        return watching.collector.snapshots() if watching is not None else {}

    async def close(self) -> None:
        if self._engine.watching is not None:
            await self._engine.watching.leave()
        await self._engine.stop()

    def _shown(self, lease: Lease) -> Boost:
        return boost_dict(lease, self._engine.parts.notes.get(lease.id, ()))


Backend: TypeAlias = LocalBackend
"""The calls behind the public classes, to which `RemoteBackend` conforms. Answers are the API's JSON."""


def _only_a_controller() -> Unavailable:
    """Only a controller reaches the processes of every node, and outlives this process."""
    return Unavailable("Processes are moved by a controller", try_next="Put one into the cluster: grid start")


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
