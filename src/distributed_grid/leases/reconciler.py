"""The reconciler: compares the ledger with the cluster and does what is missing, whatever happened before.

It ends what expires, drains what winds down, completes grants that a crash interrupted, and repairs reservations: it
recreates missing groups and removes unknown ones.
"""

import contextlib
from datetime import datetime, timedelta
from typing import Final

from distributed_grid.decide.leases.lifecycle import is_expired, is_gone, is_lost_with, lost_lenders, pressure_on
from distributed_grid.errors import StoreBroken
from distributed_grid.execution.capacity import Convergence
from distributed_grid.execution.port import Group, holders_in_words
from distributed_grid.leases.elastic import ElasticLeases
from distributed_grid.leases.grant import deliver, join_if_due, leave_off, lose_part
from distributed_grid.leases.notices import Notices
from distributed_grid.leases.programs import PrivateClusters
from distributed_grid.leases.reclaim import reclaim_from_cordoned, take_what_is_due
from distributed_grid.leases.recovery import Recovery
from distributed_grid.leases.release import begin_release, end_all_if_file_was_removed, try_finish
from distributed_grid.leases.rules import charge
from distributed_grid.leases.state import EngineContext
from distributed_grid.logs import logger
from distributed_grid.loops import Loop
from distributed_grid.model.endings import EndCause, Ending
from distributed_grid.model.lease_changes import Delivered, GroupLost, NodeLost, Resumed, regrouped
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import describe
from distributed_grid.model.roles.runs import RunId


async def repair_reservations(p: EngineContext) -> None:
    """Remove groups that belong to no boost. Recreate the group of a reservation that has lost it, or end the
    reservation."""
    # Recorded before groups are listed: a group that is created meanwhile may be missing or not stand yet; one that is
    # removed meanwhile may still be listed.
    before = _reserved(p)
    active = [lease for lease in before if lease.state is LeaseState.ACTIVE]
    groups = await p.applier.groups()
    known = {lease.group_name for lease in (*before, *_reserved(p))}
    for name, group in groups.items():
        if name not in known:
            p.journal.note("unknown_group", f"removed the {group.delivery.held_in} {name}: it belongs to no boost")
            await p.applier.remove_group(group.delivery, group.id)
    of_name = {lease.group_name: lease for lease in active}
    standing = {
        name: group.id
        for name, group in groups.items()
        if group.stands or (name in of_name and group.holds(of_name[name]))
    }
    for lease in active:
        if standing.get(lease.group_name, lease.held_by) != lease.held_by:
            _keep(p, lease, standing[lease.group_name])  # it was made again, but the reply was lost
    fallen = [lease for lease in active if lease.group_name not in standing]
    if fallen:
        await p.look()  # a source may have gone, or come back, since the turn began
    for lease in fallen:
        if p.ledger.active(lease) and p.observer.naming.raylets.keys() >= {*lease.sources}:  # else soon lost
            await without_remnant(p, groups.get(lease.group_name))
            await _reserve_again(p, lease)


async def without_remnant(p: EngineContext, group: Group | None) -> str | None:
    """The id of a group that stands. One that does not is removed, because the next one has the same name.

    Work that waits in it is cancelled, as it would wait for ever.
    """
    if group is None:
        return None
    if group.stands:
        return group.id
    await p.applier.remove_group(group.delivery, group.id)
    return None


async def _reserve_again(p: EngineContext, lease: Lease) -> None:
    group = await p.applier.reserve(lease)
    current = p.ledger.active(lease)
    if current is None:
        if group is not None:  # it was released while its group was made
            await p.applier.remove_group(lease.delivery, group)
    elif group is not None:
        _keep(p, lease, group)
        p.journal.note("reserved_again", f"{lease.describe()}: its placement group was recreated", lease=lease)
    else:
        reason = "its placement group disappeared"
        lost = p.ledger.apply(current, GroupLost(reason, p.now()))
        p.journal.note("lost", f"{lease.describe()}: {reason} and could not be recreated", lease=lost)
        p.commit_soon()


def _keep(p: EngineContext, lease: Lease, group_id: str) -> None:
    """Record the group of a lease that may have been renewed meanwhile."""
    if (current := p.ledger.active(lease)) is not None:
        p.ledger.apply(current, regrouped(current, lease, group_id))
        p.commit_soon()


def _reserved(p: EngineContext) -> list[Lease]:
    return [lease for lease in p.ledger if not lease.delivery.moves_totals]


log = logger()

_IDLE_S: Final = 1.0
_DRAINING_S: Final = 0.05
_TELL_EVERY = timedelta(seconds=2)
_NOTE_HELD_EVERY = timedelta(minutes=5)
_KILL_EVERY = timedelta(seconds=1)
_RUNS_EVERY = timedelta(seconds=2)
_CHARGE_EVERY = timedelta(seconds=30)
_KEEP_CHARGES_EVERY = timedelta(minutes=5)


class Reconciler:
    """Runs beside a `BoostService`, on the same parts."""

    def __init__(self, parts: EngineContext, recovery: Recovery | None = None) -> None:
        self._p = parts
        self.recovery = recovery or Recovery(parts)
        self._notices = Notices(parts)
        self._private_clusters = PrivateClusters(parts)
        self._elastic = ElasticLeases(parts)
        self._began = parts.now()
        self._seen: set[NodeName] = set()
        self._absent_since: dict[NodeName, datetime] = {}
        self._reported_at: dict[str, datetime] = {}
        self._held: dict[str, tuple[datetime, str]] = {}
        """By lease: when its holders were last reported in an event, and the text."""
        self._killed_at: dict[str, datetime] = {}
        self._missing: set[str] = set()
        self._dead: frozenset[str] = frozenset()
        """Owners of leases that were gone at the last look."""
        self._lost_runs: frozenset[RunId] = frozenset()
        """Runs of roles whose owners were gone at the last look."""
        self._cleared_runs: set[RunId] = set()
        self._runs_seen_at = parts.now()
        self._warned: set[tuple[str, datetime]] = set()
        self._last_full: datetime | None = None
        self._charged_at = self._charges_kept_at = parts.now()
        self._loop = Loop("the reconciler", self._turn, self._pause, news=parts.changed, sets_news=True)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        """Stop after the current turn: an interrupted turn would leave the next writer more to repair."""
        await self._loop.stop()
        await self._notices.stop()
        await self._private_clusters.stop()
        await self._tidy()

    async def _tidy(self) -> None:
        """Remove the markers of boosts whose capacity has returned."""
        try:
            await self._p.applier.tidy()
        except Exception:
            log.exception("markers are left on nodes; the next start of grid removes them")

    async def try_turn(self) -> bool:
        """Run a turn, and log a failure instead of raising it: the next turn repeats what is missing."""
        return await self._loop.try_turn()

    async def _turn(self) -> None:
        try:
            await self.turn()
        except Exception:
            self._last_full = None  # the next turn is a full one
            raise

    async def turn_fully(self) -> bool:
        """Run a full turn for a caller that waits for it, beside the regular ones."""
        self._last_full = None
        return await self.try_turn()

    def _pause(self) -> float:
        if any(lease.is_winding_down for lease in self._p.ledger):
            return _DRAINING_S
        now = self._p.now()
        next_end = min((lease.next_due for lease in self._p.ledger), default=now + timedelta(seconds=_IDLE_S))
        return min(_IDLE_S, max(0.0, (next_end - now).total_seconds()))

    async def turn(self) -> None:
        """One turn, in the steps of docs/architecture.md: 1 state files; 2 lost nodes, dead owners, lost runs;
        3 expiry, notices, cordoned nodes; 4 warnings, interrupted grants; 5 groups; 6 draining, markers. A short
        turn takes steps 3 and 6.
        """
        p = self._p
        self._check_lock()
        full = self._last_full is None or p.now() - self._last_full >= timedelta(seconds=_IDLE_S * 0.9)
        if full:
            self._last_full = p.now()
            await self.recovery.go_on()
            if self.recovery.holds:
                return
            await end_all_if_file_was_removed(p)
            nodes = await p.look()
            await self._end_lost({node.name for node in nodes.alive})
            await self._end_orphaned()
            await self._clear_lost_runs()
            await p.applier.clear_gates()
        growth_changed = self._elastic.turn()
        await self._end_expired()
        due = take_what_is_due(p)
        if reclaim_from_cordoned(p) or due or growth_changed:
            await p.try_commit()
        await self._notices.deliver()
        if full:
            self._private_clusters.drain()
            if p.unwritten is not None:
                await p.try_commit()
            p.journal.catch_up()
            await self._charge()
            self._warn_before_expiry()
            await self._finish_grants()
            await repair_reservations(p)
            await self._elastic.settle()
        elif self.recovery.holds:
            return
        await self._drain(full)
        await p.applier.tidy()

    def _check_lock(self) -> None:
        """End here if another process took over: two writers with two ledgers would work against each other."""
        with contextlib.suppress(StoreBroken):  # the folder is gone, so no other process has the lock
            self._p.lock.keep()

    async def _charge(self) -> None:
        """Charge teams for their use, also while no request waits; now and then, write the accounts to disk."""
        p = self._p
        if p.now() - self._charged_at >= _CHARGE_EVERY:
            self._charged_at = p.now()
            charge(p)
        if p.sharing.accounts and p.now() - self._charges_kept_at >= _KEEP_CHARGES_EVERY:
            self._charges_kept_at = p.now()
            with contextlib.suppress(StoreBroken):
                await p.commit_sharing()

    async def _end_lost(self, alive: set[NodeName]) -> None:
        """End the leases of nodes that are gone, and undo them on the other side."""
        p = self._p
        now = p.now()
        named = {name for lease in p.ledger for name in (*lease.sources, lease.target)}
        self._absent_since = {name: self._absent_since.get(name, now) for name in named - alive}
        self._seen |= alive
        gone = {
            name
            for name, since in self._absent_since.items()
            if is_gone(since, now, began=self._began, was_seen=name in self._seen)
        }
        changed = replaces = False
        for lease in p.ledger:
            for source in lost_lenders(lease, gone):
                changed = True
                replaces |= lose_part(p, lease, source)
            if not is_lost_with(lease, gone):
                continue
            missing = min(lease.needed_nodes & gone)
            why, ending = f"{missing} left the cluster", Ending(EndCause.LOST, "grid")
            lost = p.ledger.apply(lease, NodeLost(why, now, ending))
            p.journal.note("lost", f"{lost.describe()}: {why}", lease=lost, node=missing)
            changed = True
        if changed:
            await p.try_commit()
        if replaces:
            p.news_for_the_queue.set()
            with contextlib.suppress(StoreBroken):
                await p.commit_sharing()

    async def _end_orphaned(self) -> None:
        """End leases that end with a process that is gone: nothing is left that could use or release them.

        Two looks must agree: a process that has just started may not be known yet.
        """
        p = self._p
        held = [lease for lease in p.ledger if lease.ends_with is not None and lease.state is LeaseState.ACTIVE]
        processes = {lease.ends_with for lease in held if lease.ends_with is not None}
        dead = await p.applier.dead_processes(processes) if processes else frozenset()
        sure, self._dead = dead & self._dead, dead
        orphaned = [lease for lease in held if lease.ends_with in sure and p.ledger.get(lease.id) is lease]
        for lease in orphaned:
            why = "the process that held it is gone"
            begin_release(p, lease, why, grace_s=0.0, ending=Ending(EndCause.ORPHANED, "grid"))
        if orphaned:
            await p.try_commit()

    async def _clear_lost_runs(self) -> None:
        """Remove the placement groups of runs whose owner is gone: Ray keeps them until the owner's job ends.

        Two looks must agree here, too.
        """
        p = self._p
        if p.now() - self._runs_seen_at < _RUNS_EVERY:
            return
        self._runs_seen_at = p.now()
        lost = await p.applier.lost_runs()
        sure, self._lost_runs = lost & self._lost_runs, lost
        self._cleared_runs &= lost
        for run in sorted(sure - self._cleared_runs):
            groups = await p.applier.remove_groups_of_run(run)
            if groups is not None:
                self._cleared_runs.add(run)
            if groups:
                message = f"{run.name}: its owner is gone; removed its {groups} placement group{'s' * (groups != 1)}"
                p.journal.note("role_run_cleared", message, run=run.name)

    async def _end_expired(self) -> None:
        p = self._p
        due = [lease for lease in p.ledger if is_expired(lease, p.now())]
        for lease in due:
            # A lease with a notice keeps its deadline and the ending that the notice stated.
            begin_release(p, lease, "expired", ending=lease.ending or Ending(EndCause.EXPIRED, "grid"))
        if due:
            await p.try_commit()

    def _warn_before_expiry(self) -> None:
        p = self._p
        now = p.now()
        for lease in p.ledger:
            if lease.state is not LeaseState.ACTIVE:
                continue
            ahead = min(p.config.resource_sharing.expiry_warning_seconds, lease.duration_s / 2)
            left = (lease.expires_at - now).total_seconds()
            if left > ahead:
                continue
            p.notes[lease.id] = (f"expires in {max(0, left):.0f} s; to keep it: grid boost renew {lease.id[:8]}",)
            if (lease.id, lease.expires_at) not in self._warned:
                self._warned.add((lease.id, lease.expires_at))
                p.journal.note("expiring", f"{lease.describe()} expires in {max(0, left):.0f} s", lease=lease)
        self._warned = {key for key in self._warned if p.ledger.get(key[0])}

    async def _finish_grants(self) -> None:
        """Complete or undo grants that a crash interrupted."""
        p = self._p
        for lease in p.ledger:
            join_if_due(p, lease)
            if lease.state is not LeaseState.INTERRUPTED:
                continue
            p.ledger.apply(lease, Resumed())  # a release waits until the grant is settled
            try:
                groups = {} if lease.delivery.moves_totals else await p.applier.groups()
                if (group := await without_remnant(p, groups.get(lease.group_name))) is not None:
                    p.ledger.apply(lease, Delivered(group))
                else:
                    await deliver(p, lease)
            finally:
                leave_off(p, lease)
            p.commit_soon()

    async def _drain(self, full: bool) -> None:
        """Take winding-down leases back, and act at the end of their grace period."""
        p = self._p
        winding = [lease for lease in p.ledger if lease.is_winding_down]
        if not winding and not full:
            return
        convergence = await p.applier.converge()
        self._note_what_is_missing(convergence)
        gated: set[NodeName] = set()
        finished = False
        for lease in winding:
            current = await try_finish(p, lease, convergence)
            if current.state is LeaseState.RELEASED:
                finished = True
            elif lease.delivery.moves_totals and await self._press(current, convergence):
                gated.add(lease.target)
        self._reported_at = {key: at for key, at in self._reported_at.items() if p.ledger.get(key)}
        self._held = {key: last for key, last in self._held.items() if p.ledger.get(key)}
        await p.applier.gate(gated, convergence.totals)
        if finished:
            p.commit_soon()
            p.something_changed()

    def _note_what_is_missing(self, convergence: Convergence) -> None:
        """Record what boosts still lack: after its nodes restarted, a boost may find its source busy."""
        p = self._p
        missing: set[str] = set()
        for part in p.ledger.parts():
            units = convergence.growth.untaken.get(part.id)
            if units and part.state is LeaseState.ACTIVE:
                what = describe(part.kind, units)
                missing.add(part.whole_id)
                p.notes[part.whole_id] = (f"{part.source} is busy: the missing {what} arrive as work there ends",)
        for lease_id in self._missing - missing:
            p.notes.pop(lease_id, None)
        self._missing = missing

    async def _press(self, lease: Lease, convergence: Convergence) -> bool:
        """Report what holds the capacity, and end it if that is due. True: let no new work start on the target."""
        p = self._p
        now = p.now()
        units = convergence.outstanding(lease) or lease.units
        reported_at = self._reported_at.get(lease.id)
        if reported_at is None or now - reported_at >= _TELL_EVERY:
            self._reported_at[lease.id] = now
            holders = await p.applier.holders(lease)
            message = holders_in_words(holders, lease.kind, units)
            p.notes[lease.id] = (message,)
            # A queue changes the holders every few seconds: the log does not list them all. What has just begun has no
            # name yet, so the first event about it waits for the next look.
            noted = self._held.get(lease.id)
            if noted is None:
                is_due = reported_at is not None or any(holder.since_ms is not None for holder in holders)
            else:
                is_due = message != noted[1] and now - noted[0] >= _NOTE_HELD_EVERY
            if holders and is_due:
                self._held[lease.id] = now, message
                p.journal.note("held", f"{lease.describe()}: {message}", lease=lease, node=lease.target)
        pressure = pressure_on(lease, now)
        # The gate stands before anything is killed: otherwise the node's queue would take what the kill frees.
        if pressure.kills and lease.target in p.applier.gated:
            last = self._killed_at.get(lease.id)
            if last is None or now - last >= _KILL_EVERY:
                self._killed_at[lease.id] = now
                for victim in await p.applier.kill_youngest(lease, units):
                    p.journal.note(
                        "killed",
                        f"{victim.describe()}: killed to reclaim {lease.describe()}",
                        lease=lease,
                        node=lease.target,
                    )
        return pressure.gates
