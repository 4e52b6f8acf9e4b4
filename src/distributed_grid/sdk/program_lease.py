"""`async with grid.lease(cpus=4) as lease:` capacity for one block of a program."""

import asyncio
import inspect
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from distributed_grid.client import GridClient
from distributed_grid.config import ConfigLike
from distributed_grid.errors import InvalidRequest, LeaseLost, NoCapacity, NotFound
from distributed_grid.loops import Loop
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.requests import on_nodes
from distributed_grid.monitoring.cpu_meter import CpuMeter
from distributed_grid.sdk.backend import connect_to_ray, head_of, ray_process
from distributed_grid.sdk.boosts import (
    OnCapacity,
    OnIdle,
    OnReclaim,
    ResourceBoost,
    ResourceBoostManager,
    ResourceBoostRequest,
)

__all__ = ["ProgramLease", "lease"]

_LASTS_S: Final = 120.0
_REPORT_S: Final = 2.0


class ProgramLease:
    """Requested on entry, renewed meanwhile, and released on exit, whatever happened inside.

    Reserved on one node: a lender, or the target itself if no other node has the capacity. If no single node has it, as
    few nodes as possible divide it. Work still running in the lease at the end is ended.
    """

    def __init__(
        self,
        *,
        cpus: float | str | None = None,
        gpus: float | None = None,
        memory: float | None = None,
        nodes: int | None = None,
        spread: bool = False,
        target: str | None = None,
        source: str | None = None,
        priority: AllocationPriority | str = AllocationPriority.NORMAL,
        duration: float | str = _LASTS_S,
        wait: float | str = 0.0,
        label: str = "",
        grace: float | str | None = None,
        on_reclaim: OnReclaim | None = None,
        on_capacity: OnCapacity | None = None,
        idle_after: float | str | None = None,
        on_idle: OnIdle | None = None,
        cluster_config: ConfigLike = None,
        manager: ResourceBoostManager | None = None,
    ) -> None:
        """`cpus` may be a range: "2..16" has 2 and grows up to 16 while capacity is idle, and yields what it grew by to
        every request; "..16" reserves nothing. `capacity` is what it has now, and `on_capacity` is called in the event
        loop with that, once and whenever it has changed.

        `memory` is in GB. `nodes`: these amounts on each of so many nodes; 1: all on one node, never divided.
        `spread`: the amounts are divided among as many nodes as possible, in whole GPUs or CPUs.

        `duration`: how long the lease lasts at a time. It is renewed while this process lives, and ends when Ray
        reports that this process is gone.

        `wait`: how long to wait if the capacity is not free now. `target`: by default the head. `grace`: how
        long the block keeps the lease when it is reclaimed for another request; by default the configuration's.
        `on_reclaim`: called then with a `ReclaimNotice`; what it returns is given up.

        `idle_after`: how long neither this process nor its work in the lease may use it before it counts as idle;
        "never" if it never does. `on_idle`: called then with an `IdleNotice`; what it returns is given up.
        """
        amounts = {"gpu": gpus, "cpu": cpus, "memory": memory}
        asked = {kind: amount for kind, amount in amounts.items() if amount is not None} or {"cpu": 1.0}
        self._asked, self._layout = on_nodes(asked, nodes, spread=spread)
        self._target, self._source, self._priority = target, source, priority
        self._duration, self._wait, self._label = duration, wait, label
        self._grace, self._on_reclaim, self._on_capacity = grace, on_reclaim, on_capacity
        self._idle_after, self._on_idle = idle_after, on_idle
        self._capacity: dict[str, float] = {}
        self._given = manager
        self._manager = manager or ResourceBoostManager(cluster_config)
        self._boost: ResourceBoost | None = None
        self._measuring: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        backend = await self._manager._ready()
        cluster = await backend.ask(GridClient.cluster_status)
        connect_to_ray(cluster)
        target = self._target or head_of(cluster)
        (kind, amount), *others = self._asked.items()
        boost_id = await self._manager.request_boost(
            ResourceBoostRequest(
                target,
                kind,
                amount if isinstance(amount, str) else float(amount),
                **self._layout,
                priority=self._priority,
                duration_seconds=self._duration,
                preferred_source=self._source,
                delivery="reserve",
                wait_seconds=self._wait,
                grace_seconds=self._grace,
                on_grace_end="kill",
                on_reclaim=self._on_reclaim,
                on_capacity=self._capacity_changed if ".." in str(amount) else None,
                idle_after=self._idle_after,
                on_idle=self._on_idle,
                auto_renew=True,
                along={name: float(more) for name, more in others},
                purpose="run",
                label=self._label,
                own_too=True,
                ends_with=ray_process(),
            )
        )
        if boost_id is None:
            await self._let_go()
            raise self._manager.last_refusal or NoCapacity("No nodes have sufficient available resources")
        self._boost = await self._manager.get_boost(boost_id)
        self._capacity = self._boost.capacity
        reports = Loop("reporting the use of a lease", partial(self._report, CpuMeter(os.getpid())), lambda: _REPORT_S)
        self._measuring = asyncio.create_task(reports.run())
        return self

    async def _capacity_changed(self, capacity: dict[str, float]) -> None:
        self._capacity = capacity
        if self._on_capacity is not None and inspect.isawaitable(answer := self._on_capacity(capacity)):
            await answer

    async def _report(self, meter: CpuMeter) -> None:
        """Report the CPU time of this process, without which the lease never counts as idle."""
        backend, cpu_s = await self._manager._ready(), await asyncio.to_thread(meter.read)
        process = f"process-{os.getpid()}"
        with suppress(NotFound):  # the lease has ended meanwhile
            await backend.ask(GridClient.report_program, self.id, process, self._label, is_inside=False, cpu_s=cpu_s)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        boost, self._boost = self._boost, None
        if self._measuring is not None:
            self._measuring.cancel()
        try:
            if boost is not None:
                await self._manager.release_boost(boost.boost_id, grace_seconds=0.0)
        finally:
            await self._let_go()

    async def _let_go(self) -> None:
        if self._given is None:
            await self._manager.close()

    @property
    def boost(self) -> ResourceBoost:
        if self._boost is None:
            raise LeaseLost("The lease is not held", try_next="Use it inside its `async with` block.")
        return self._boost

    @property
    def capacity(self) -> dict[str, float]:
        """What the lease has now, by kind, at most a second old; it changes only if `cpus` is a range."""
        return dict(self._capacity)

    @property
    def id(self) -> str:
        return self.boost.boost_id

    @property
    def node(self) -> str:
        """The node where its work runs; of several, the first."""
        return self.boost.source_node

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes where its work runs. Those that have left the cluster since it began are still among them."""
        return tuple(dict.fromkeys(part["source_node"] for part in self.boost.parts)) or (self.node,)

    def options(self, *, bundle: int | None = None, **more: Any) -> dict[str, Any]:
        """Ray options that put a task or actor into it: `f.options(**lease.options()).remote()`.

        `bundle`: on several nodes, the number of one bundle, as in `lease.boost.parts`; by default any that has room.
        """
        return self.boost.options(bundle=bundle, **more)

    def remote(self, *given: Any, **more: Any) -> Any:
        """`@lease.remote`, or `@lease.remote(num_gpus=1)`: `ray.remote` for functions and classes, inside the lease."""
        import ray

        inside: Callable[[Any], Any] = ray.remote(**self.options(**more))
        if not given:
            return inside
        if len(given) != 1 or not callable(given[0]):
            raise InvalidRequest("lease.remote takes a function or a class", try_next="@lease.remote(num_cpus=2)")
        return inside(given[0])


lease = ProgramLease
"""As programs write it: `async with grid.lease(cpus=4)`."""
