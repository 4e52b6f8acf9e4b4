"""The engine of one cluster: state, request service, reconciler, scheduler, rebalancing, offloading and measuring,
started and stopped together in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from distributed_grid.config import GridConfig
from distributed_grid.decide.leases.hooks import check_hook
from distributed_grid.decide.leases.ownership import check_priority
from distributed_grid.decide.monitoring.pressure import PressureChange
from distributed_grid.decide.monitoring.snapshots import Answers
from distributed_grid.engine.auditor import Auditor
from distributed_grid.errors import GridError, Refused, StoreBroken
from distributed_grid.execution.port import Cluster
from distributed_grid.execution.processes import ProcessControl
from distributed_grid.leases.idle import IdleLeases, withdraw_idle_notices
from distributed_grid.leases.reconciler import Reconciler
from distributed_grid.leases.recovery import Recovery
from distributed_grid.leases.release import begin_release
from distributed_grid.leases.state import EngineContext, utc_now
from distributed_grid.model.demand import Pending
from distributed_grid.model.endings import EndCause, Ending
from distributed_grid.model.lease_changes import EndForced
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeName, NodeTable
from distributed_grid.model.principals import Principal
from distributed_grid.model.requests import Ask, Waiting, make_ask
from distributed_grid.model.series import RunTimes
from distributed_grid.model.snapshots import NodeSnapshot
from distributed_grid.model.validators import LONGEST_GRANT_WAIT_S, waiting_time
from distributed_grid.monitoring.collector import Collector, settings_of
from distributed_grid.monitoring.kept_history import KeptHistory
from distributed_grid.monitoring.observer import HardwareReader
from distributed_grid.monitoring.telemetry import Telemetry
from distributed_grid.offload.offloader import Offloading
from distributed_grid.queue.ownership import check_room
from distributed_grid.queue.service import BoostService
from distributed_grid.rebalance.rebalancer import Rebalancing
from distributed_grid.scheduler.scheduler import Scheduling
from distributed_grid.store.boost_file import ClusterIdentity
from distributed_grid.store.history_file import HistoryFile
from distributed_grid.store.home import GridHome

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import BoostRequest, PlannedRequest, RequestedBoost
    from distributed_grid.wire.queue import AllocationRequest


class Watching:
    """Runs the collector for one engine: pressure goes to the journal, measurements to the observer."""

    def __init__(self, parts: EngineContext, telemetry: Telemetry) -> None:
        self._p = parts
        self._telemetry = telemetry
        self.collector = Collector(_EngineSources(parts, telemetry), settings_of(parts.config), parts.now)
        self.collector.on_pressure(self._note)
        parts.observer.silent = self.collector.silent
        parts.observer.hardware = lambda _: self.collector.hardware()
        parts.observer.in_use = self.collector.in_use
        parts.forecast = self.collector.forecast
        file = HistoryFile(parts.home.history)
        self._kept = KeptHistory(file, self.collector, lambda: parts.identity, parts.lock.keep)

    async def start(self) -> None:
        await self._kept.restore()
        self.collector.start()
        self._kept.start()

    async def stop(self) -> None:
        await self.collector.stop()
        await self._kept.stop()

    async def leave(self) -> None:
        """Stop measuring and remove the probes, because grid leaves."""
        await self.stop()
        await self._telemetry.leave()

    def _note(self, change: PressureChange) -> None:
        message, node, kind = change.describe(), change.node, change.kind
        if change.is_high:
            self._p.journal.note("pressure_high", message, node=node, resource_type=kind, value=change.value)
        else:
            self._p.journal.note("pressure_low", message, node=node, resource_type=kind, value=change.value)


class _EngineSources:
    def __init__(self, parts: EngineContext, telemetry: Telemetry) -> None:
        self._p = parts
        self._telemetry = telemetry

    async def nodes(self) -> NodeTable:
        return await self._p.look()

    def leases(self) -> tuple[Lease, ...]:
        return self._p.ledger.snapshot()

    async def answers(self, within_s: float) -> Answers:
        return await self._telemetry.read(dict(self._p.observer.naming.raylets), within_s)

    async def pending(self, nodes: NodeTable) -> tuple[Pending, ...]:
        return await self._telemetry.pending({node.node_id: node.name for node in nodes.alive})


_TRIES = 3


class Engine:
    """Runs in one event loop of one process, which holds the writer's lock meanwhile."""

    def __init__(
        self,
        cluster: Cluster,
        config: GridConfig,
        home: GridHome,
        *,
        adopt: bool = False,
        telemetry: Telemetry | None = None,
        control: ProcessControl | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`adopt`: take over boosts of other clusters that this home holds. Without `telemetry` nothing is measured,
        and without `control` no process is moved.
        """
        self.config = config
        self.parts = EngineContext(cluster, config, home, now=now)
        self.service = BoostService(self.parts)
        self._adopt = adopt
        self._recovery = Recovery(self.parts, adopt=adopt)
        self.reconciler = Reconciler(self.parts, self._recovery)
        self.watching = Watching(self.parts, telemetry) if telemetry is not None else None
        if self.watching is None:
            self.parts.observer.hardware = HardwareReader(cluster)
        self.rebalancing = (
            Rebalancing(self.parts, self.service, self.watching.collector) if self.watching is not None else None
        )
        self.idle_leases = None if self.watching is None else IdleLeases(self.parts, self.watching.collector)
        self.offloading = None if control is None else Offloading(self.parts, self.service, control, self._snapshots)
        self.runs = RunTimes()
        collector = self.watching.collector if self.watching else None
        self.scheduling = Scheduling(self.parts, self.service, self.runs, collector)
        self.has_started = False
        self.trouble: tuple[str, ...] = ()
        """Why the engine cannot start, and other problems of its process, for `problems`."""

    def _snapshots(self) -> Mapping[NodeName, NodeSnapshot]:
        return {} if self.watching is None else self.watching.collector.snapshots()

    @property
    def notes(self) -> tuple[str, ...]:
        """For the user who started grid: what recovery did, and problems."""
        return (*self._recovery.adoption.notes, *self.problems())

    async def start(self, *, strict: bool = True) -> None:
        """Take the lock, read the store, settle what a crash left, and start the reconciler.

        With `strict`, a store that cannot be read raises `StoreBroken`. Without, the engine starts with what it can
        read. The engine starts even if the store cannot be written: lent capacity must return all the same. If another
        process holds the lock, `start` raises `AlreadyRunning`. After any error, `start` can be repeated.
        """
        self._recovery = self.reconciler.recovery = Recovery(self.parts, adopt=self._adopt)
        self._recovery.lock(strict=strict)
        try:
            await self._start(strict=strict)
        except BaseException:
            for lease in self.parts.ledger:
                self.parts.ledger.forget(lease)
            self.parts.lock.release()
            raise

    async def _start(self, *, strict: bool) -> None:
        p = self.parts
        nodes = await p.look()
        names = frozenset(node.name for node in self.config.nodes) or frozenset(nodes)
        p.identity = ClusterIdentity(self.config.name, names)
        await self._recovery.load(nodes, strict=strict)
        withdraw_idle_notices(p)
        if await p.try_commit():
            self._recovery.settle()
        p.journal.note("started", f"grid manages {len(nodes)} nodes; {len(p.ledger)} boosts are known")
        # What a crash interrupted is settled before any request is answered.
        for _ in range(_TRIES):
            if await self.reconciler.try_turn():
                break
        self.reconciler.start()
        self.service.queue.start()
        self.scheduling.start()
        if self.watching is not None:
            await self.watching.start()
        if self.idle_leases is not None:
            self.idle_leases.start()
        if self.rebalancing is not None:
            self.rebalancing.start()
        if self.offloading is not None:
            self.offloading.processes.start()
        self.has_started = True

    async def request(self, body: BoostRequest, *, caller: Principal, idempotency_key: str | None = None) -> Lease:
        """Grant what the body of a request asks for. Every request is audited; a granted one through its grant."""
        with self._refusals_noted(body, caller.name):
            ask = self.ask_of(body, caller=caller, idempotency_key=idempotency_key)
            wait_s = waiting_time(body.get("wait_seconds", 0), LONGEST_GRANT_WAIT_S)
            return await self.service.request(ask, wait_s=wait_s)

    async def enqueue(
        self, body: AllocationRequest, *, caller: Principal, idempotency_key: str | None = None
    ) -> Lease | Waiting:
        """Like `request`, for a request that waits in the queue while its caller does not."""
        with self._refusals_noted(body, caller.name):
            ask = self.ask_of(body, caller=caller, idempotency_key=idempotency_key)
            wait = body.get("wait_seconds")
            return await self.service.enqueue(ask, wait_s=None if wait is None else waiting_time(wait))

    def ask_of(self, body: RequestedBoost, *, caller: Principal, idempotency_key: str | None = None) -> Ask:
        """The request in the body of a call, checked, including whether the caller may make it."""
        check_room(self.parts, self.config.limits, caller)
        ask = make_ask(
            body,
            requester=caller.name,
            team=caller.team,
            idempotency_key=idempotency_key,
            reclaim_hook=check_hook(body.get("reclaim_url"), self.parts.addresses()),
            fractional_gpus=self.config.resource_sharing.fractional_gpus,
            longest_grace_s=self.parts.longest_grace_s,
        )
        check_priority(caller, ask.priority, self.parts.teams)
        return ask

    @contextlib.contextmanager
    def _refusals_noted(self, body: PlannedRequest, who: str) -> Iterator[None]:
        try:
            yield
        except GridError as error:
            what = f"{body['amount']} {body['resource_type']} for {body['target_node']}"
            self.parts.journal.note(
                "refused",
                f"{what}: {error.message}",
                node=body["target_node"],
                who=who,
                code=error.code,
                because=list(error.because),
            )
            raise

    @property
    def auditor(self) -> Auditor:
        return Auditor(self.parts, self.reconciler)

    @property
    def is_degraded(self) -> bool:
        """Whether a problem keeps the controller from doing all that it should."""
        p = self.parts
        return bool(self.trouble or self._recovery.is_degraded or p.unwritten is not None or p.journal.problems)

    def problems(self) -> tuple[str, ...]:
        """Current problems, for users."""
        p = self.parts
        unwritten = (
            () if p.unwritten is None else (f"{str(p.unwritten) or 'A write was interrupted'}; grid tries again",)
        )
        return (
            *self.trouble,
            *self._recovery.problems(),
            *unwritten,
            *p.journal.problems,
            *p.observer.naming.problems,
        )

    async def give_all_back(self, *, force: bool = False, wait_s: float = 30.0, who: str = "grid") -> int:
        """End all boosts and return their number. Raises `Refused` if work still holds some; `force` ends that work.

        Raises `StoreBroken` if all capacity has returned but the file does not say so: the next start would bring the
        boosts back.
        """
        self.take_requests(False)
        try:
            async with contextlib.nullcontext() if self.rebalancing is None else self.rebalancing.at_rest():
                return await self._give_all_back(force, wait_s, who)
        except BaseException:
            self.take_requests()
            raise

    def take_requests(self, is_open: bool = True) -> None:
        """Resume granting requests; or stop, because grid is leaving."""
        self.service.queue.is_open = self.scheduling.flights.is_open = is_open

    async def _give_all_back(self, force: bool, wait_s: float, who: str) -> int:
        p = self.parts
        ending = list(p.ledger)
        for lease in ending:
            winding = lease
            if not lease.is_winding_down:
                stops = Ending(EndCause.STOPPED, who)
                winding = begin_release(p, lease, "grid stops", grace_s=0.0, who=who, is_reclaimed=False, ending=stops)
            if force:
                p.ledger.apply(winding, EndForced())
        await p.try_commit()
        p.something_changed()
        deadline = p.now() + timedelta(seconds=wait_s)
        while len(p.ledger) and p.now() < deadline:  # noqa: ASYNC110 - the end of the reconciler's work, not one event
            await asyncio.sleep(0.05)
        if len(p.ledger):
            raise Refused(
                f"{len(p.ledger)} boosts are still in use",
                because=[f"{lease.describe()}: {'; '.join(p.notes.get(lease.id, ('in use',)))}" for lease in p.ledger],
                try_next="Wait for that work to end, or end it: grid stop --force",
            )
        await p.commit()
        return len(ending)

    async def stop(self) -> None:
        """Stop all loops and release the lock; boosts stay as they are."""
        if self.offloading is not None:
            await self.offloading.processes.stop()
        if self.idle_leases is not None:
            await self.idle_leases.stop()
        if self.rebalancing is not None:
            await self.rebalancing.stop()
        if self.watching is not None:
            await self.watching.stop()
        await self.scheduling.stop()
        await self.service.queue.stop()
        await self.reconciler.stop()
        await self.parts.flush()
        with contextlib.suppress(StoreBroken):
            await self.parts.commit_sharing()
        if self.parts.unwritten is not None:
            await self.parts.try_commit()
        self.parts.journal.pass_on()
        await self.parts.audit_log.finish()
        self.parts.lock.release()
