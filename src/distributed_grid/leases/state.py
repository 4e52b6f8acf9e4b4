"""The state of one cluster's leases, and everything that reads or changes it.

`EngineContext` wires the ledger, the stores, the journal and the cluster together. `SharingState` holds what was
decided beside the leases: the policy in force, cordoned nodes, waiting requests. `SchedulingState` holds tasks and how
accurate earlier predictions were.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from distributed_grid import threads
from distributed_grid.config import GridConfig
from distributed_grid.decide.leases.idle import InsideUse
from distributed_grid.decide.queue.claims import Account
from distributed_grid.decide.scheduler.confidence import Calibrator, Outcome, Predicted, StartDelays
from distributed_grid.errors import StoreBroken
from distributed_grid.execution.port import Cluster
from distributed_grid.leases.applier import Applier
from distributed_grid.leases.journal import Journal
from distributed_grid.leases.ledger import Ledger
from distributed_grid.logs import logger
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.policies import SharingMode, SharingPolicy
from distributed_grid.model.requests import Waiting
from distributed_grid.model.scheduling import ScheduledTask, SchedulingRecord
from distributed_grid.model.series import Forecast
from distributed_grid.model.teams import Teams
from distributed_grid.model.windows import Window
from distributed_grid.monitoring.observer import Observer
from distributed_grid.store.audit_log import QueuedAuditLog
from distributed_grid.store.boost_file import BoostFile, ClusterIdentity
from distributed_grid.store.home import GridHome
from distributed_grid.store.sharing_file import SharingFile, SharingRecord
from distributed_grid.store.writer_lock import WriterLock

if TYPE_CHECKING:
    from distributed_grid.wire.queue import NodeVerdict

# Every task rewrites all of these, so only this many survive a restart.
_OUTCOMES_KEPT: Final = 200
_DELAYS_KEPT: Final = 50


@dataclass
class SchedulingState:
    """Owned by the one writer."""

    tasks: dict[str, ScheduledTask] = field(default_factory=dict)
    """By id: placed and waiting tasks, in order of arrival."""
    calibrator: Calibrator = field(default_factory=Calibrator)
    delays: StartDelays = field(default_factory=StartDelays)
    results: Counter[str] = field(default_factory=Counter)
    """How many decisions were accepted, queued, rejected."""

    @property
    def decisions(self) -> dict[str, int]:
        return {result: self.results[result] for result in ("accepted", "queued", "rejected")}

    def take(self, record: SchedulingRecord) -> None:
        """Restore the state from disk."""
        self.tasks = {task.id: task for task in record.tasks}
        found = (Outcome(Predicted(model, said), happened) for model, said, happened in record.outcomes)
        self.calibrator, self.delays = Calibrator(found), StartDelays(record.start_delays_s)

    def record(self) -> SchedulingRecord:
        last = list(self.calibrator.outcomes)[-_OUTCOMES_KEPT:]
        return SchedulingRecord(
            tuple(task for task in self.tasks.values() if not task.waits or task.request.wait),
            tuple((round(o.predicted.model, 4), round(o.predicted.said, 4), o.happened) for o in last),
            tuple(round(delay, 3) for delay in list(self.delays.known)[-_DELAYS_KEPT:]),
        )

    @property
    def placed(self) -> list[ScheduledTask]:
        return [task for task in self.tasks.values() if not task.waits]

    @property
    def waiting(self) -> list[ScheduledTask]:
        """In order of arrival. The order of claims decides which is next."""
        return [task for task in self.tasks.values() if task.waits]


@dataclass
class SharingState:
    """Owned by the one writer."""

    configured_policy: SharingPolicy
    configured_mode: SharingMode
    set_policy: SharingPolicy | None = None
    set_mode: SharingMode | None = None
    cordoned: set[NodeName] = field(default_factory=set)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    """By id, in order of arrival."""
    accounts: dict[str, Account] = field(default_factory=dict)
    scheduling: SchedulingState = field(default_factory=SchedulingState)
    windows: dict[str, Window] = field(default_factory=dict)
    """By name, in order of creation."""

    @classmethod
    def configured(cls, config: GridConfig) -> SharingState:
        return cls(config.resource_sharing.policy, config.resource_sharing.mode)

    @property
    def policy(self) -> SharingPolicy:
        return self.set_policy or self.configured_policy

    @property
    def mode(self) -> SharingMode:
        return self.set_mode or self.configured_mode

    def take(self, record: SharingRecord) -> None:
        """Restore the state from disk. Decisions made since the start take precedence."""
        self.set_policy = self.set_policy or record.policy
        self.set_mode = self.set_mode or record.mode
        self.cordoned |= set(record.cooling)
        self.waiting = {each.id: each for each in record.waiting} | self.waiting
        self.accounts = dict(record.accounts) | self.accounts
        self.scheduling.take(record.scheduling)
        self.windows = {each.name: each for each in record.windows} | self.windows

    def record(self) -> SharingRecord:
        """The record for the disk, without requests that have a caller on an open connection: such a caller asks
        again."""
        return SharingRecord(
            self.set_policy,
            self.set_mode,
            tuple(sorted(self.cordoned)),
            tuple(_without_nodes(each) for each in self.waiting.values() if each.is_durable),
            dict(self.accounts),
            self.scheduling.record(),
            tuple(self.windows.values()),
        )


def _without_nodes(waiting: Waiting) -> Waiting:
    """Drop the eligible nodes: they are computed again before every plan."""
    return waiting if not waiting.ask.nodes else replace(waiting, ask=replace(waiting.ask, nodes=()))


log = logger()

# The cluster's view may lag this far behind a change that grid made.
VIEW_LAG: Final = timedelta(seconds=0.4)
# The reconciler looks every second; decisions can use its view until it looks again.
_KNOWN_FOR: Final = timedelta(seconds=1.5)
_JOINED_WITHIN: Final = timedelta(seconds=0.25)
"""A request for an unknown node is refused by a look that is at most this old; each look costs Ray's head a call."""
_PROVEN_FOR: Final = timedelta(seconds=0.5)
# Outcomes are written after the answer is sent; those of one moment share a write.
_SOON_S: Final = 0.005
_AFTER_THE_ANSWER_S: Final = 0.001
# A change without an outcome, such as a renewal, is in the changes file only for this long.
_LATER_S: Final = 0.25


Foresight = Callable[[NodeName, str, float], Forecast | None]
"""Node, kind and horizon in seconds -> the fraction that will be in use."""


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass
class EngineContext:
    """One cluster's ledger, stores, journal and cluster access, wired together."""

    cluster: Cluster
    config: GridConfig
    home: GridHome
    now: Callable[[], datetime] = utc_now
    ledger: Ledger = field(default_factory=Ledger)
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Boost id -> current notes for users; not written to disk."""
    inside: dict[str, InsideUse] = field(default_factory=dict)
    """Boost id -> how much the programs inside use, by their own reports; not written to disk."""
    reasons: dict[str, list[NodeVerdict]] = field(default_factory=dict)
    """Boost id of a grant under way -> why each node was chosen or not."""

    def __post_init__(self) -> None:
        self.observer = Observer(self.cluster, self.config)
        self.applier = Applier(self.cluster, self.observer, self.ledger)
        self.lock = WriterLock(self.home.lock)
        self.file = BoostFile(self.home.boosts, appends=True)
        self.audit_log = QueuedAuditLog(self.home.audit_log)
        self.journal = Journal(self.audit_log, self.now)
        self.sharing = SharingState.configured(self.config)
        self.teams = Teams(team.team() for team in self.config.resource_sharing.teams)
        self.forecast: Foresight | None = None
        """The forecast of a node's use; None if nothing is measured."""
        self.changed = asyncio.Event()
        self.news_for_the_queue = asyncio.Event()
        self.news_for_the_scheduler = asyncio.Event()
        self.extended = True
        """Whether a group may have something beside its bundles; unknown at first."""
        self.last_change = self.last_return = datetime.min.replace(tzinfo=UTC)
        self.identity = ClusterIdentity(self.config.name, frozenset(node.name for node in self.config.nodes))
        self._store = threads.GroupCommit(self._save, self._leases_to_save)
        self._sharing_file = SharingFile(self.home.sharing)
        self._sharing_store = threads.GroupCommit(self._save_sharing, self.sharing.record)
        self._looks = threads.GroupCommit(self._look, self.now, threads.ENGINE)
        self.unwritten: BaseException | None = None
        """Why the last write failed; the reconciler's next turn repeats the write."""
        self._written_at = self.last_change
        self._committing: set[asyncio.Task[None]] = set()
        self._rewriting: asyncio.Task[None] | None = None
        self._as_a_whole = True
        """The next write is of the whole boost file."""
        self._seen: tuple[datetime, NodeTable] = (self.last_change, NodeTable(()))

    def _leases_to_save(self) -> tuple[Lease, ...]:
        if self.journal.is_waiting("returned"):  # these boosts leave the disk now: how they ended goes first
            self.journal.pass_on()
        return self.ledger.snapshot()

    def _save(self, leases: tuple[Lease, ...]) -> None:
        self.lock.keep()  # its file may have been removed, and another process may have taken the lock
        quickly, self._as_a_whole = not self._as_a_whole, False
        self.file.save(leases, self.identity, quickly=quickly)

    def load_sharing(self) -> tuple[str, ...]:
        """Restore the sharing state beside what was decided since the start; returns the problems to report."""
        record, problems = self._sharing_file.load(self.identity)
        self.sharing.take(record)
        return problems

    def _save_sharing(self, record: SharingRecord) -> None:
        self.lock.keep()
        self._sharing_file.save(record, self.identity)

    async def commit_sharing(self) -> None:
        """Write the sharing state to disk: waiting requests, cordoned nodes, and what was set."""
        await self._sharing_store.commit()

    async def commit(self) -> None:
        """Write the ledger to disk: what has changed goes to the changes file, and the boost file follows."""
        try:
            await self._store.commit()
        except BaseException as error:
            before, self.unwritten = self.unwritten, error
            if isinstance(error, StoreBroken) and not isinstance(before, StoreBroken):
                self.journal.note("store_unwritable", "; ".join([error.message, *error.because]))
            raise
        before, self.unwritten, self._written_at = self.unwritten, None, self.now()
        if self.file.is_behind and (self._rewriting is None or self._rewriting.done()):
            self._rewriting = asyncio.create_task(self._rewrite())
        if isinstance(before, StoreBroken):
            self.journal.note("store_written", f"{self.file.path.name} shows all boosts as they are again")

    async def _rewrite(self) -> None:
        """Write the boost file itself, if no outcome did so meanwhile: people read that."""
        await asyncio.sleep(_LATER_S)
        if self.file.is_behind:
            self.commit_soon()

    async def check_writable(self) -> None:
        """Raise if the disk refuses writes. A successful write a moment ago is proof enough."""
        if self.unwritten is not None or self.now() - self._written_at > _PROVEN_FOR:
            await self.commit()

    async def try_commit(self) -> bool:
        """Write the ledger to disk if possible; for steps that must go on anyway because they return capacity.

        False: a crash before a later write would bring back what has ended.
        """
        try:
            await self.commit()
        except StoreBroken:
            return False
        return True

    def commit_soon(self) -> None:
        """Write an outcome to disk without waiting for it.

        The intent is on disk already, and a restart reaches the same outcome from it.
        """
        task = asyncio.create_task(self._commit_in_a_moment())
        self._committing.add(task)
        task.add_done_callback(self._committed)

    async def _commit_in_a_moment(self) -> None:
        await asyncio.sleep(_SOON_S)
        # After a crash, only the audit log tells a client that asks again how its boost ended.
        self.journal.pass_on()
        await self.audit_log.finish()
        self._as_a_whole = True
        await self.commit()

    async def flush(self) -> None:
        """Wait for outcomes that are still being written; the boost file then has all changes."""
        if self._rewriting is not None:
            self._rewriting.cancel()
        if self.file.is_behind:
            self.commit_soon()
        if self._committing:
            await asyncio.wait(self._committing)

    def _committed(self, task: asyncio.Task[None]) -> None:
        self._committing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("an outcome could not be written; the next write repeats it", error=str(error))

    async def look(self) -> NodeTable:
        """The nodes as the cluster shows them now. Concurrent callers share one look."""
        self._seen = await self._looks.commit()
        return self._seen[1]

    def _look(self, began: datetime) -> tuple[datetime, NodeTable]:
        return began, self.observer.look()

    @property
    def last_seen(self) -> NodeTable:
        """The nodes as of the last look, however long ago."""
        return self._seen[1]

    async def joined(self) -> NodeTable:
        """The nodes, for the question whether one has joined: callers that ask it share a look for a moment."""
        return self.last_seen if self.now() - self._seen[0] < _JOINED_WITHIN else await self.look()

    async def look_to_decide(self) -> NodeTable:
        """The nodes now; grants that the cluster may not show yet count as taken."""
        recent = self.now() - VIEW_LAG
        nodes = await self.look()
        return _less(nodes, (lease for lease in self._taken_since(recent) if not _is_shown(lease)))

    def known(self) -> NodeTable | None:
        """The nodes as last seen, with everything granted since counted as taken; None if the last look is too old.

        Good enough to try a grant, which the cluster itself checks; too old to refuse one.
        """
        seen_at, nodes = self._seen
        if self.now() - seen_at > _KNOWN_FOR:
            return None
        return _less(nodes, self._taken_since(seen_at - VIEW_LAG))

    def _taken_since(self, instant: datetime) -> list[Lease]:
        return [
            lease
            for lease in self.ledger
            if lease.is_granting or (lease.state is LeaseState.ACTIVE and lease.allocated_at > instant)
        ]

    def addresses(self) -> dict[NodeName, str]:
        """The IP address of each connected node."""
        return {name: raylet.ip for name, raylet in self.observer.naming.raylets.items()}

    @property
    def longest_grace_s(self) -> float:
        """The configured limit on grace periods, or the configured default if that is longer."""
        sharing = self.config.resource_sharing
        return float(max(sharing.max_grace_seconds, sharing.grace_seconds))

    def something_was_granted(self) -> None:
        """Like `something_changed`, but the loops that it wakes begin once the answer to the caller is on its way."""
        self.last_change = self.now()
        asyncio.get_running_loop().call_later(_AFTER_THE_ANSWER_S, self.something_changed)

    def something_changed(self) -> None:
        self.last_change = self.now()
        self.changed.set()
        self.news_for_the_queue.set()
        self.news_for_the_scheduler.set()


def _is_shown(lease: Lease) -> bool:
    """A transfer is active only once the cluster shows what its source gave up; a reservation is active at once."""
    return lease.delivery.moves_totals and lease.state is LeaseState.ACTIVE


def _less(nodes: NodeTable, leases: Iterable[Lease]) -> NodeTable:
    """The nodes without the capacity that these leases take from their sources."""
    less: dict[NodeName, Node] = {}
    for lease in leases:
        if (node := less.get(lease.source) or nodes.get(lease.source)) is not None:
            less[node.name] = node.reserving(lease.resources)
    return NodeTable(less.get(name, node) for name, node in nodes.items()) if less else nodes
