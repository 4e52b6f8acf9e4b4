"""What the boost service and its upkeep are made of, and both work on."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from distributed_grid.config import GridConfig
from distributed_grid.execution.port import Cluster
from distributed_grid.model.leases import Delivery, Lease, LeaseState
from distributed_grid.model.nodes import NodeTable
from distributed_grid.orchestration.applier import Applier
from distributed_grid.orchestration.journal import Journal
from distributed_grid.orchestration.ledger import Ledger
from distributed_grid.orchestration.observer import Observer
from distributed_grid.store.audit_log import AuditLog
from distributed_grid.store.boost_file import BoostFile
from distributed_grid.store.group_commit import GroupCommit
from distributed_grid.store.home import GridHome
from distributed_grid.store.identity import ClusterIdentity

log = structlog.get_logger()

# The cluster's view of a change of ours may be this old.
VIEW_LAG: Final = timedelta(seconds=0.4)


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Parts:
    """One cluster's ledger, store, journal and hands, wired together."""

    cluster: Cluster
    config: GridConfig
    home: GridHome
    now: Callable[[], datetime] = utc_now
    ledger: Ledger = field(default_factory=Ledger)
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Boost id -> what a person should know about it just now; not worth a write to disk."""

    def __post_init__(self) -> None:
        self.observer = Observer(self.cluster, self.config)
        self.applier = Applier(self.cluster, self.observer, self.ledger)
        self.file = BoostFile(self.home.boosts)
        self.journal = Journal(AuditLog(self.home.audit_log), self.now)
        self.changed = asyncio.Event()
        self.in_flight: set[str] = set()
        self.last_change = datetime.min.replace(tzinfo=UTC)
        self.identity = ClusterIdentity(self.config.name, frozenset(node.name for node in self.config.nodes))
        self._store = GroupCommit(self._save, self.ledger.snapshot)
        self.unwritten = False
        """True after a write that failed: the next turn of the upkeep repeats it."""
        self._committing: set[asyncio.Task[None]] = set()

    def _save(self, leases: tuple[Lease, ...]) -> None:
        self.file.save(leases, self.identity)

    async def commit(self) -> None:
        """Put the ledger on disk."""
        try:
            await self._store.commit()
        except BaseException:
            self.unwritten = True
            raise
        self.unwritten = False

    def commit_soon(self) -> None:
        """Put an outcome on disk without waiting for it.

        What was intended is there already, and from that a restart reaches the same outcome.
        """
        task = asyncio.create_task(self.commit())
        self._committing.add(task)
        task.add_done_callback(self._committed)

    async def flush(self) -> None:
        """Wait for outcomes that are still being written."""
        if self._committing:
            await asyncio.wait(self._committing)

    def _committed(self, task: "asyncio.Task[None]") -> None:
        self._committing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("an outcome could not be written; the next write repeats it", error=str(error))

    async def look(self, max_age_s: float = 0.0, *, to_decide: bool = False) -> NodeTable:
        """The nodes now; `to_decide`: with what the cluster may not show yet counted as taken."""
        if not to_decide:
            return await asyncio.to_thread(self.observer.look, max_age_s=max_age_s)
        recent = self.now() - VIEW_LAG
        unseen = [
            lease
            for lease in self.ledger
            if lease.state is LeaseState.GRANTING
            or (lease.delivery is Delivery.RESERVE and lease.state is LeaseState.ACTIVE and lease.allocated_at > recent)
        ]
        return await asyncio.to_thread(self.observer.look, unseen, max_age_s=max_age_s)

    def something_changed(self) -> None:
        self.last_change = self.now()
        self.changed.set()
