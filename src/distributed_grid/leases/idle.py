"""Watches for idle leases: reports them, and takes back what a waiting request needs of them.

`decide/leases/idle.py` says what counts as use. Queue and preemption choose which idle leases yield. The notice of such
a lease lasts for its whole grace period, and is withdrawn if the lease is used meanwhile.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

from distributed_grid import threads
from distributed_grid.config.sharing import IdleAction
from distributed_grid.decide.leases.elastic import growth_of
from distributed_grid.decide.leases.idle import (
    Occupant,
    Unused,
    idle_after_of,
    is_due,
    is_idle,
    measured_each,
    programs_inside,
    sampled,
    why_borrowed,
    why_devices_used,
    why_never_idle,
    why_occupied,
    why_unmeasured,
)
from distributed_grid.decide.monitoring.naming import Raylet
from distributed_grid.execution.port import NodeView, RayMap
from distributed_grid.leases.reclaim import take_what_is_noticed
from distributed_grid.leases.state import EngineContext
from distributed_grid.loops import Loop
from distributed_grid.model.demand import Demand
from distributed_grid.model.lease_changes import IdleChanged, NoticeWithdrawn
from distributed_grid.model.leases import Idle, Lease
from distributed_grid.model.nodes import NodeId, NodeName
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.snapshots import NodeSnapshot
from distributed_grid.model.times import span

_EVERY_S: Final = 1.0


class Measured(Protocol):
    """What the collector knows."""

    def snapshots(self) -> Mapping[NodeName, NodeSnapshot]: ...

    @property
    def demand(self) -> tuple[Demand, ...]: ...


@dataclass(frozen=True, slots=True)
class _Inside:
    """The part of a reservation that is occupied on one node, as of the node's last reading."""

    held: RayMap
    occupants: tuple[Occupant, ...]
    read_at: datetime | None
    why: str
    """Why it counts as in use; empty: it is unused."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """One look at a lease."""

    why: str
    """Why it counts as in use; empty: it is unused."""
    at: datetime
    """The moment up to which that is known."""
    used_until: datetime | None = None
    """The last moment at which it is known to have been used, also between two looks."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What all leases are compared with in one turn."""

    now: datetime
    view: Mapping[NodeId, NodeView]
    snapshots: Mapping[NodeName, NodeSnapshot]
    groups_waited_for: frozenset[str]
    targets_waited_for: frozenset[tuple[NodeName, str]]


def withdraw_idle_notices(p: EngineContext) -> None:
    """After a restart no lease is known to be idle: requests that wait are planned anew. The caller commits."""
    for lease in p.ledger:
        if lease.is_reclaimed_as_idle:
            _withdraw(p, lease, "grid was started again, and measures anew")


def _withdraw(p: EngineContext, lease: Lease, why: str) -> None:
    kept = p.ledger.apply(lease, NoticeWithdrawn())
    message = f"{kept.describe()}: it is not reclaimed: {why}"
    p.journal.note("reclaim_withdrawn", message, lease=kept, node=kept.target)
    p.something_changed()


class IdleLeases:
    """Runs beside the reconciler, on the same parts."""

    def __init__(self, parts: EngineContext, measured: Measured) -> None:
        sharing = parts.config.resource_sharing
        self._p = parts
        self._measured = measured
        self._action = sharing.idle_action
        self._idle_after = timedelta(seconds=float(sharing.idle_after))
        _, self._longest_gap = measured_each(float(sharing.monitoring_interval_seconds))
        self._unused: dict[str, Unused | None] = {}
        """By lease; None: in use at the last sample."""
        self._inside: dict[tuple[str, NodeName], _Inside] = {}
        self._loop = Loop("idle leases", self.turn, lambda: _EVERY_S)

    def start(self) -> None:
        if self._action is not IdleAction.OFF:
            self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()

    async def turn(self) -> None:
        """1 look, 2 decide, 3 report what has changed, 4 take what is due."""
        p = self._p
        view = await threads.ENGINE.run(p.cluster.view, _EVERY_S)
        seen = self._all_seen(view)
        await self._look_inside(seen)
        before, self._unused = self._unused, {}
        changed = False
        for lease in p.ledger:
            if lease.grows:
                continue  # it is taken whenever a request waits
            sample = self._sample(lease, seen)
            unused = sampled(before.get(lease.id), not sample.why, sample.at, self._longest_gap, sample.used_until)
            self._unused[lease.id] = unused
            changed |= self._report(lease, unused, sample.why)
        changed |= await self._take_what_is_due()
        if changed:
            await p.try_commit()

    def _all_seen(self, view: Mapping[NodeId, NodeView]) -> _Seen:
        demand = self._measured.demand
        shapes = [(one, one.pending.shape) for one in demand]
        return _Seen(
            self._p.now(),
            view,
            self._measured.snapshots(),
            frozenset(shape.in_group for _, shape in shapes if shape.in_group is not None),
            frozenset(
                (node, kind)
                for one, shape in shapes
                for node in one.wanted_on
                if len(one.wanted_on) == 1
                for kind in shape.needs
            ),
        )

    # -- one lease -------------------------------------------------------------------------------------------

    def _sample(self, lease: Lease, seen: _Seen) -> _Sample:
        if (why := why_never_idle(lease)) is not None:
            return _Sample(why, seen.now)
        if lease.elastic is not None and any(each.idle is None for each in growth_of(lease, self._p.ledger)):
            return _Sample("work uses what it has grown by", seen.now)
        if lease.delivery.moves_totals:
            return _Sample(*self._sample_transfer(lease, seen))
        programs = programs_inside(lease, self._p.inside.get(lease.id), seen.now, self._longest_gap)
        if isinstance(programs, str):
            return _Sample(programs, seen.now)
        why, known_until = self._sample_reservation(lease, seen)
        if programs is None or why:
            return _Sample(why, known_until)
        if lease.is_inhabited(seen.now):
            why = next(filter(None, (why_devices_used(lease, seen.snapshots.get(each)) for each in lease.sources)), "")
        return _Sample(why, min(known_until, programs.until), programs.since)

    def _sample_reservation(self, lease: Lease, seen: _Seen) -> tuple[str, datetime]:
        """Why a lease counts as in use, or empty; and the moment up to which that is known."""
        if lease.held_by in seen.groups_waited_for:
            return "work waits to run in it", seen.now
        known_until = seen.now
        for source in lease.sources:
            raylet, snapshot = self._raylet(source), seen.snapshots.get(source)
            held = None if raylet is None else self._held(lease, raylet, seen)
            if held is None:
                return f"{source} does not show it", seen.now
            if why := why_unmeasured(snapshot):
                return why, seen.now
            if held:
                inside = self._inside.get((lease.id, source))
                if inside is None or inside.read_at is None or inside.held != held:
                    return "what runs in it has changed", seen.now
                if inside.why:
                    return inside.why, seen.now
                known_until = min(known_until, inside.read_at)
        return "", known_until

    def _sample_transfer(self, lease: Lease, seen: _Seen) -> tuple[str, datetime]:
        raylet, snapshot = self._raylet(lease.target), seen.snapshots.get(lease.target)
        if (lease.target, lease.kind) in seen.targets_waited_for:
            return f"work waits for {lease.target}", seen.now
        shown = None if raylet is None else seen.view.get(raylet.node_id)
        if raylet is None or shown is None or snapshot is None or snapshot.measured_at is None:
            return "its target has no recent measurement", seen.now
        used = ResourceVector.from_ray(shown.total) - ResourceVector.from_ray(shown.free)
        why = why_borrowed(lease, used, ResourceVector.from_ray(raylet.base), snapshot)
        return why, seen.now if why else snapshot.measured_at

    def _raylet(self, name: NodeName) -> Raylet | None:
        return self._p.observer.naming.raylets.get(name)

    def _held(self, lease: Lease, raylet: Raylet, seen: _Seen) -> RayMap | None:
        shown = seen.view.get(raylet.node_id)
        if shown is None or lease.held_by is None:
            return None
        return self._p.cluster.mechanisms[lease.delivery].held(raylet, lease.held_by, shown)

    async def _look_inside(self, seen: _Seen) -> None:
        """Compare what occupies reservations with each new reading of its node."""
        p, before, self._inside = self._p, self._inside, {}
        to_ask: dict[NodeName, list[tuple[Lease, RayMap]]] = {}
        for lease in p.ledger:
            if lease.delivery.moves_totals or why_never_idle(lease) is not None:
                continue
            for source in lease.sources:
                raylet = self._raylet(source)
                if raylet is None or not (held := self._held(lease, raylet, seen)):
                    continue
                known, snapshot = before.get((lease.id, source)), seen.snapshots.get(source)
                if known is not None and known.held != held:
                    known = None
                if known is not None:
                    self._inside[lease.id, source] = known
                if snapshot is not None and snapshot.measured_at != (known.read_at if known else None):
                    to_ask.setdefault(source, []).append((lease, held))
        for source, leases in to_ask.items():
            raylet = self._raylet(source)
            if raylet is None:
                continue
            for delivery in {lease.delivery for lease, _ in leases}:
                occupants = await threads.ENGINE.run(p.cluster.mechanisms[delivery].occupants, raylet)
                for lease, held in leases:
                    if lease.delivery is delivery and lease.held_by is not None:
                        inside = None if occupants is None else occupants.get(lease.held_by, ())
                        self._compare(lease, source, held, inside, seen.snapshots[source])

    def _compare(
        self,
        lease: Lease,
        source: NodeName,
        held: RayMap,
        occupants: tuple[Occupant, ...] | None,
        snapshot: NodeSnapshot,
    ) -> None:
        known = self._inside.get((lease.id, source))
        if occupants is None:
            self._inside[lease.id, source] = _Inside(held, (), snapshot.measured_at, "its node does not answer")
            return
        why = why_occupied(occupants, () if known is None else known.occupants, snapshot)
        self._inside[lease.id, source] = _Inside(held, occupants, snapshot.measured_at, why)

    # -- what follows ----------------------------------------------------------------------------------------

    def _report(self, lease: Lease, unused: Unused | None, why: str) -> bool:
        """Report a lease that has become idle, or is used again. True: the caller commits."""
        p = self._p
        if unused is not None and is_idle(unused, idle_after_of(lease, self._idle_after)):
            if lease.idle is None:
                yields = self._action is IdleAction.RECLAIM
                idle = p.ledger.apply(lease, IdleChanged(Idle(unused.since, yields)))
                for_how_long = span((unused.until - unused.since).total_seconds())
                then = "; it yields to requests that wait" if yields else ""
                message = f"{idle.describe()}: idle, its work has not used it for {for_how_long}{then}"
                p.journal.note("idle", message, lease=idle, node=idle.target)
                p.news_for_the_queue.set()
            return False
        why = why or "there was no measurement for a while"
        if lease.idle is not None:
            used = p.ledger.apply(lease, IdleChanged(None))
            p.journal.note("in_use_again", f"{used.describe()}: {why}", lease=used, node=used.target)
        if lease.is_reclaimed_as_idle:
            _withdraw(p, lease, why)
            return True
        return False

    async def _take_what_is_due(self) -> bool:
        p, taken = self._p, False
        for lease in p.ledger:
            unused = self._unused.get(lease.id)
            if not is_due(lease, unused, idle_after_of(lease, self._idle_after)):
                continue
            is_empty = not any((lease.id, source) in self._inside for source in lease.sources)
            if not lease.delivery.moves_totals and is_empty and not await p.applier.is_idle(lease):
                continue  # work has just begun: the next turn sees it
            current, inside = p.ledger.active(lease), p.inside.get(lease.id)
            if inside is not None and unused is not None and inside.changed_at > unused.until:
                continue  # a program has just entered or left
            if current is not None and current.is_reclaimed_as_idle and why_never_idle(current) is None:
                take_what_is_noticed(p, current, is_idle=True)
                taken = True
        return taken
