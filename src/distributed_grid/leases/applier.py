"""Applying leases to the cluster: transfers in shared rounds, reservations one by one."""

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Final

from distributed_grid import threads
from distributed_grid.decide.leases.elastic import growth_of
from distributed_grid.decide.monitoring.naming import Raylet
from distributed_grid.errors import GridError, Unavailable
from distributed_grid.execution.capacity import Capacity, Convergence
from distributed_grid.execution.port import (
    Cluster,
    Extension,
    Group,
    Holder,
    Mechanism,
    NodeView,
    RayletGone,
    RayletSilent,
    youngest_covering,
)
from distributed_grid.faults import Point, fault_point
from distributed_grid.leases.ledger import Ledger
from distributed_grid.model.leases import Delivery, Lease, LeaseState
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import CPU, ResourceVector, scale, total
from distributed_grid.model.roles.runs import RunId
from distributed_grid.monitoring.observer import Observer

# Ray may take up to a second to see freed capacity.
GROUP_S: Final = 2
_SWEEP_AFTER_S: Final = 0.05
_STEADY_TRIES: Final = 3
_VIEW_S: Final = 1.0


class Applier:
    """The only path from the ledger to the cluster. Blocking calls run in threads."""

    def __init__(self, cluster: Cluster, observer: Observer, ledger: Ledger) -> None:
        self._cluster = cluster
        self._observer = observer
        self._ledger = ledger
        self.capacity = Capacity(cluster)
        self._one_at_a_time = threading.Lock()
        """Held by rounds and by other changes to nodes. API callers cannot prolong the work under it."""
        self._reached: Mapping[NodeName, ResourceVector] = {}
        """Every node's total, as of the last round."""
        self.unwritten: set[str] = set()
        """The grants whose intent is not on disk yet: no round carries them out."""
        self._rounds = threads.GroupCommit(self._converge, self._written, threads.ENGINE)
        self._extending = asyncio.Lock()
        """Held while what a group has beside its bundles changes."""
        self._gated: set[NodeName] = set()
        self._sweeps: set[asyncio.Task[None]] = set()

    async def converge(self) -> Convergence:
        """Run one round over all nodes; concurrent callers share it."""
        return await self._rounds.commit()

    def _written(self) -> tuple[Lease, ...]:
        parts = self._ledger.parts()
        return tuple(part for part in parts if part.whole_id not in self.unwritten) if self.unwritten else parts

    def _converge(self, leases: tuple[Lease, ...]) -> Convergence:
        raylets = self._observer.naming.raylets
        with self._one_at_a_time:
            done = self.capacity.converge(
                {name: raylet.node_id for name, raylet in raylets.items()},
                {name: ResourceVector.from_ray(raylet.base) for name, raylet in raylets.items()},
                leases,
                frozenset(self._gated),
            )
            self._reached = done.totals
            return done

    async def tidy(self) -> None:
        """Update the nodes' markers, after rounds that had no time for it."""
        if not self.capacity.is_tidy:
            await threads.ENGINE.run(self._tidy)

    def _tidy(self) -> None:
        with self._one_at_a_time:
            self.capacity.tidy()

    async def take_over(self, name: NodeName, kinds: frozenset[str]) -> bool:
        """Take over a change on a node that grid did not make, so that the next round undoes it."""
        return await threads.ENGINE.run(self._take_over, name, kinds)

    def _take_over(self, name: NodeName, kinds: frozenset[str]) -> bool:
        raylet = self._observer.naming.raylets.get(name)
        if raylet is None:
            return False
        with self._one_at_a_time:
            return self.capacity.take_over(raylet.node_id, ResourceVector.from_ray(raylet.base), set(kinds))

    async def ask_nodes(self) -> dict[NodeName, NodeView | None]:
        """The resources that every raylet reports; None for one that does not answer. For the auditor."""
        return await threads.AUDITS.run(self._ask_nodes)

    def _ask_nodes(self) -> dict[NodeName, NodeView | None]:
        """Ask again if a round moved something meanwhile. A round never waits for this."""
        reached = self._settled()
        for _ in range(_STEADY_TRIES):
            before = reached
            said = {name: self._cluster.reported_by(raylet) for name, raylet in self._observer.naming.raylets.items()}
            if (reached := self._settled()) == before:
                break
        return said

    def _settled(self) -> Mapping[NodeName, ResourceVector]:
        """Every node's total, once no round is under way."""
        with self._one_at_a_time:
            return self._reached

    async def groups_afresh(self) -> tuple[Group, ...]:
        """All of grid's groups in the cluster, without any cache. For the auditor."""
        return await threads.AUDITS.run(self._groups, afresh=True)

    async def work_on(self, name: NodeName, kind: str) -> tuple[str, ...]:
        """The work that holds a kind of resource on a node, in words. For the auditor."""
        raylet = self._observer.naming.raylets.get(name)
        found = () if raylet is None else await threads.AUDITS.run(self._cluster.holders_of, raylet, kind)
        return tuple(holder.describe() for holder in found)

    async def work_in(self, delivery: Delivery, group_id: str, name: NodeName) -> tuple[str, ...]:
        """The work that runs in a group on a node, in words. For the auditor."""
        raylet, mechanism = self._observer.naming.raylets.get(name), self._cluster.mechanisms[delivery]
        found = () if raylet is None else await threads.AUDITS.run(mechanism.holders, raylet, group_id)
        return tuple(holder.describe() for holder in found)

    async def look_ahead(self, lease: Lease) -> None:
        """Read ahead what a round for this lease needs, while the caller waits for something else."""
        if lease.delivery.moves_totals:
            await threads.ENGINE.run(self.capacity.look_ahead)

    async def reserve(self, lease: Lease, within_s: int = GROUP_S) -> str | None:
        """The new group's id, or None if a source could not give its part in time or is not connected."""
        raylets = self._raylets_of(share.source for share in lease.shares or (lease,))
        if raylets is None:
            return None
        mechanism = self._cluster.mechanisms[lease.delivery]
        return await threads.GRANTS.run(mechanism.make, lease, [raylet.node_id for raylet in raylets], within_s)

    def _raylets_of(self, nodes: Iterable[NodeName]) -> list[Raylet] | None:
        """The raylets of these nodes; None if one is not connected."""
        found = [self._observer.naming.raylets.get(name) for name in nodes]
        raylets = [raylet for raylet in found if raylet is not None]
        return raylets if len(raylets) == len(found) else None

    async def dead_processes(self, worker_ids: Iterable[str]) -> frozenset[str]:
        """Those of these Ray processes that Ray knows to be gone; none, if Ray does not answer."""
        try:
            return await threads.ENGINE.run(self._cluster.dead_processes, worker_ids)
        except Unavailable:
            return frozenset()

    async def lost_runs(self) -> frozenset[RunId]:
        """Runs of roles whose owner Ray knows to be gone; none, if Ray does not answer."""
        try:
            return await threads.ENGINE.run(self._cluster.lost_runs)
        except (GridError, ValueError, LookupError, TypeError):  # any process of the cluster can write records
            return frozenset()

    async def remove_groups_of_run(self, run: RunId) -> int | None:
        """Remove a run's groups and return how many there were; None if Ray does not answer."""
        try:
            return await threads.ENGINE.run(self._cluster.remove_groups_of_run, run)
        except Unavailable:
            return None

    async def groups(self) -> dict[str, Group]:
        """Grid's groups in the cluster, by name. If another group has the same name, the boost's own one counts."""
        found = await threads.ENGINE.run(self._groups)
        recorded = {lease.held_by for lease in self._ledger}
        return {group.name: group for group in sorted(found, key=lambda group: group.id in recorded)}

    def _groups(self, *, afresh: bool = False) -> tuple[Group, ...]:
        found = (mechanism.there(afresh=afresh) for mechanism in self._cluster.mechanisms.values())
        return tuple(chain.from_iterable(found))

    async def remove_group(self, delivery: Delivery, group_id: str, *, in_use: bool = True) -> None:
        """Cancel what is left in a group and remove it.

        A task that is not cancelled could hang for ever: Ray would retry it in a group that is gone. One may also
        have started unnoticed, so its owner is asked once more afterwards.
        """
        mechanism = self._cluster.mechanisms[delivery]
        if in_use:
            await threads.ENGINE.run(mechanism.cancel_tasks, group_id)
        fault_point(Point.GROUP_CANCELLED)
        await threads.ENGINE.run(mechanism.remove, group_id)
        fault_point(Point.GROUP_REMOVED)
        sweep = asyncio.create_task(self._sweep(mechanism, group_id))
        self._sweeps.add(sweep)
        sweep.add_done_callback(self._sweeps.discard)

    async def _sweep(self, mechanism: Mechanism, group_id: str) -> None:
        await asyncio.sleep(_SWEEP_AFTER_S)  # the removal's caller has its answer by then
        await threads.ENGINE.run(mechanism.cancel_tasks, group_id)

    async def is_idle(self, lease: Lease) -> bool:
        """True if certainly nothing runs in a reservation; quicker than listing its holders."""
        raylets = self._raylets_of(lease.sources)
        if raylets is None or lease.held_by is None:
            return False
        mechanism, group = self._cluster.mechanisms[lease.delivery], lease.held_by
        asked = (threads.ENGINE.run(mechanism.is_idle, raylet, group) for raylet in raylets)
        return all(await asyncio.gather(*asked))

    # -- elastic leases --------------------------------------------------------------------------------------

    async def extend(self, whole: Lease, source: NodeName, *, insists: bool = False) -> ResourceVector | None:
        """Let the group of an elastic lease have on one node what its growth there reserves: more than before, or
        less. What it has there now: more than that, while work still uses what is being returned; None if the node does
        not answer.

        `insists`: at the end of the grace period, other work of the lease there may have to wait for a moment.
        """
        raylet = self._observer.naming.raylets.get(source)
        if raylet is None or whole.held_by is None:
            return None
        async with self._extending:
            growth = [lease for lease in growth_of(whole, self._ledger) if lease.source == source]
            more = total([lease.resources for lease in growth if lease.state is LeaseState.ACTIVE])
            change = self._cluster.mechanisms[whole.delivery].extend
            try:
                return await threads.ENGINE.run(partial(change, raylet, whole.held_by, more, insists=insists))
            except (RayletGone, RayletSilent):
                return None

    async def extensions(self) -> dict[tuple[NodeName, str], Extension]:
        """By node and group: what groups have there beside their bundles."""
        view = await threads.ENGINE.run(self._cluster.view, _VIEW_S)
        names = {raylet.node_id: name for name, raylet in self._observer.naming.raylets.items()}
        return {
            (names[node_id], group): extension
            for node_id, seen in view.items()
            if node_id in names
            for mechanism in self._cluster.mechanisms.values()
            for group, extension in mechanism.extensions(seen).items()
        }

    async def end_extension(self, source: NodeName, group: str) -> None:
        """End what a group that belongs to no lease has on a node, with the work there."""
        raylet = self._observer.naming.raylets.get(source)
        if raylet is None:
            return
        async with self._extending:
            for mechanism in self._cluster.mechanisms.values():
                left = await threads.ENGINE.run(mechanism.holders_in_extension, raylet, group)
                if left:
                    await threads.ENGINE.run(self._cluster.kill, raylet.node_id, left)
                with contextlib.suppress(RayletGone, RayletSilent):
                    await threads.ENGINE.run(mechanism.end_extension, raylet, group)

    async def holders_in_extension(self, whole: Lease, source: NodeName) -> tuple[Holder, ...]:
        """The work that uses the growth of an elastic lease on a node; the work to end first comes first."""
        raylet = self._observer.naming.raylets.get(source)
        if raylet is None or whole.held_by is None:
            return ()
        mechanism = self._cluster.mechanisms[whole.delivery]
        return await threads.ENGINE.run(mechanism.holders_in_extension, raylet, whole.held_by)

    async def kill(self, source: NodeName, victims: tuple[Holder, ...]) -> None:
        """End work on a node; Ray retries tasks elsewhere."""
        raylet = self._observer.naming.raylets.get(source)
        if raylet is not None and victims:
            await threads.ENGINE.run(self._cluster.kill, raylet.node_id, victims)

    # -- work in leases --------------------------------------------------------------------------------------

    async def holders(self, lease: Lease) -> tuple[Holder, ...]:
        """The work that uses this lease's capacity; the work to end first comes first."""
        names = (lease.target,) if lease.delivery.moves_totals else lease.sources
        raylets = [raylet for name in names if (raylet := self._observer.naming.raylets.get(name)) is not None]
        if lease.delivery.moves_totals:
            found = [await threads.ENGINE.run(self._cluster.holders_of, raylet, lease.kind) for raylet in raylets]
        else:
            found = [await self._holders_in(lease, raylet) for raylet in raylets]
        return tuple(chain.from_iterable(found))

    async def _holders_in(self, lease: Lease, raylet: Raylet) -> tuple[Holder, ...]:
        if lease.held_by is None:
            return ()
        return await threads.ENGINE.run(self._cluster.mechanisms[lease.delivery].holders, raylet, lease.held_by)

    async def kill_youngest(self, lease: Lease, units: int) -> tuple[Holder, ...]:
        """End the youngest work on the borrowed part; Ray retries it elsewhere."""
        raylet = self._observer.naming.raylets.get(lease.target)
        victims = youngest_covering(await self.holders(lease), lease.kind, units)
        if raylet is not None and victims:
            await threads.ENGINE.run(self._cluster.kill, raylet.node_id, victims)
        return victims

    @property
    def gated(self) -> frozenset[NodeName]:
        """The nodes on which gates stand."""
        return frozenset(self._gated)

    async def gate(self, wanted: set[NodeName], totals: Mapping[NodeName, ResourceVector]) -> None:
        """Put gates on exactly these nodes."""
        raylets = self._observer.naming.raylets
        for name in self._gated - wanted:
            if name in raylets:
                await threads.ENGINE.run(self._cluster.lift_gate, raylets[name].node_id)
        for name in wanted:
            if name in raylets and name in totals:
                cpus = totals[name][CPU] / scale(CPU)
                await threads.ENGINE.run(self._cluster.gate, raylets[name].node_id, cpus)
        self._gated = {name for name in wanted if name in raylets}  # from now on, rounds insist there

    async def clear_gates(self) -> None:
        """Remove the gates that a dead process left behind."""
        await threads.ENGINE.run(self._cluster.clear_gates)
