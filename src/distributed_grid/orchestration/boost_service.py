"""Boosts: asking, granting, renewing, giving back.

Intent is on disk before the cluster changes, the outcome after. A grant that turns out to be impossible is
undone by the same path as a release.
"""

import asyncio
import contextlib
import uuid
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

from distributed_grid.config import GridConfig
from distributed_grid.decide.delivery import Companions
from distributed_grid.decide.lending import counter_offer, plan_grant
from distributed_grid.errors import NoCapacity, NotFound, NotRenewable, SharingDisabled, SourceNotFound, TargetNotFound
from distributed_grid.execution.capacity import Convergence
from distributed_grid.faults import Point, fault_point
from distributed_grid.model.leases import Delivery, Lease, LeaseState, OnGraceEnd
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.plans import Grant, RefusalCode, Refused
from distributed_grid.model.requests import Ask, seconds
from distributed_grid.model.resources import CPU, MEMORY, scale
from distributed_grid.orchestration.applier import GROUP_S
from distributed_grid.orchestration.boost_view import boost_dict
from distributed_grid.orchestration.parts import VIEW_LAG, Parts
from distributed_grid.store.audit_log import Wanted

_LOOK_AGAIN_S = 0.05
_WAIT_STEP_S = 0.25
_ANSWER_LOST_WITHIN = timedelta(minutes=10)
_GROUP_AT_ONCE_S = 1


def new_id() -> str:
    return str(uuid.uuid4())


class BoostService:
    """What users ask of grid, done on one cluster by its one writer."""

    def __init__(self, parts: Parts) -> None:
        self._p = parts
        self._companions = _companions(parts.config)
        self._no_transfers_because = parts.cluster.why_no_transfers()
        self._asking: dict[str, asyncio.Task[Lease]] = {}
        self._waiting: Counter[str] = Counter()
        self._abandoned: set[str] = set()

    # -- asking ---------------------------------------------------------------------------------------------

    async def request(self, ask: Ask, *, wait_s: float = 0.0) -> Lease:
        """Grant what is asked, now or within `wait_s`; or raise why not, with a reason per node."""
        p = self._p
        if not p.config.resource_sharing.enabled:
            raise SharingDisabled(
                "Resource sharing not enabled",
                try_next="Set resource_sharing.enabled: true in the configuration and start the cluster again with it.",
            )
        if ask.idempotency_key is None:
            return await self._request(ask, wait_s)
        if (earlier := p.ledger.with_key(ask.idempotency_key)) is not None:
            return await self._settled(earlier)
        # A client that asks again while its first try is still under way waits for that one.
        if ask.idempotency_key not in self._asking:
            asking = asyncio.create_task(self._request(ask, wait_s))
            self._asking[ask.idempotency_key] = asking
            asking.add_done_callback(lambda _: self._forget(ask.idempotency_key or ""))
        self._waiting[ask.idempotency_key] += 1
        try:
            return await asyncio.shield(self._asking[ask.idempotency_key])
        finally:
            self._waiting[ask.idempotency_key] -= 1

    def abandon(self, idempotency_key: str) -> None:
        """One who waited for this request is gone. When all are, it is not granted to nobody.

        A grant that is under way is completed.
        """
        self._waiting[idempotency_key] -= 1
        if idempotency_key in self._asking and self._waiting[idempotency_key] <= 0:
            self._abandoned.add(idempotency_key)
            self._p.changed.set()

    def _forget(self, idempotency_key: str) -> None:
        self._asking.pop(idempotency_key, None)
        self._abandoned.discard(idempotency_key)
        self._waiting += Counter()  # keeps what is above zero

    async def _request(self, ask: Ask, wait_s: float) -> Lease:
        p = self._p
        await self.end_all_if_file_was_removed()  # before there is a new boost that it does not mean
        asked_at = p.now()
        deadline = asked_at + timedelta(seconds=wait_s)
        if (granted := await self._grant_at_once(ask)) is not None:
            return granted
        while True:
            if ask.idempotency_key in self._abandoned:
                raise NoCapacity(f"Nobody waits for {ask.describe()} any more")
            plan = self._plan(ask, await p.look_to_decide())
            if isinstance(plan, Grant) and (granted := await self._grant(plan, GROUP_S)) is not None:
                return granted
            now = p.now()
            # A refusal may rest on a view that does not show our last change yet: look again until it must.
            settled_at = min(p.last_change, asked_at) + VIEW_LAG
            if isinstance(plan, Refused) and now >= max(deadline, settled_at):
                raise refusal(plan)
            if isinstance(plan, Grant) and now >= deadline:
                raise NoCapacity(
                    "No nodes have sufficient available resources",
                    because=[f"{plan.source}: what was free there was taken by other work at this moment"],
                    try_next="Ask again, or let it wait: --wait 60",
                )
            await self._something_new(_LOOK_AGAIN_S if now >= deadline else _WAIT_STEP_S)

    async def _grant_at_once(self, ask: Ask) -> Lease | None:
        """Grant from what was seen lately, without another look; None if that does not go."""
        if (nodes := self._p.known()) is None:
            return None
        try:
            plan = self._plan(ask, nodes)
        except NotFound:  # it may have joined just now
            return None
        return await self._grant(plan, _GROUP_AT_ONCE_S) if isinstance(plan, Grant) else None

    def _plan(self, ask: Ask, nodes: NodeTable) -> Grant | Refused:
        p = self._p
        self._check_names(ask, nodes)
        return plan_grant(
            ask,
            nodes,
            p.ledger.snapshot(),
            default_delivery=p.config.resource_sharing.delivery,
            companions=self._companions,
            no_transfers_because=self._no_transfers_because,
        )

    def _check_names(self, ask: Ask, nodes: NodeTable) -> None:
        known = f"Nodes: {', '.join(nodes) or 'none'}"
        if ask.target not in nodes:
            raise TargetNotFound(
                "Target node not found in cluster",
                because=[f"no node is named {ask.target!r}"],
                try_next=known,
            )
        if not nodes[ask.target].alive:
            raise TargetNotFound(
                "Target node not found in cluster",
                because=[f"{ask.target} is configured but not connected to the cluster"],
                try_next="See which nodes are up: grid cluster status",
            )
        if ask.source is not None and ask.source not in nodes:
            raise SourceNotFound(
                "Source node not found in cluster",
                because=[f"no node is named {ask.source!r}"],
                try_next=known,
            )

    def _lease(self, plan: Grant) -> Lease:
        ask, now = plan.ask, self._p.now()
        sharing = self._p.config.resource_sharing
        return Lease(
            id=new_id(),
            source=plan.source,
            target=ask.target,
            kind=ask.kind,
            units=ask.units,
            resources=plan.resources,
            priority=ask.priority,
            delivery=plan.delivery,
            delivery_reason=plan.delivery_reason,
            state=LeaseState.GRANTING,
            allocated_at=now,
            expires_at=now + timedelta(seconds=ask.duration_s),
            duration_s=ask.duration_s,
            grace_s=sharing.grace_seconds if ask.grace_s is None else ask.grace_s,
            on_grace_end=ask.on_grace_end or OnGraceEnd(sharing.on_grace_end),
            requester=ask.requester,
            idempotency_key=ask.idempotency_key,
            warnings=plan.warnings,
        )

    async def _grant(self, plan: Grant, group_s: int) -> Lease | None:
        """Carry out a plan; None if the source could not give it after all.

        There must be no await between making the plan and this: nobody else can have taken what it found.
        """
        p = self._p
        lease = p.ledger.put(self._lease(plan))
        p.in_flight.add(lease.id)
        try:
            fault_point(Point.GRANT_PLANNED)
            try:
                await asyncio.gather(p.commit(), p.applier.look_ahead(lease))
            except BaseException:
                p.ledger.forget(lease)  # nothing has happened yet, and nothing will
                p.commit_soon()
                raise
            fault_point(Point.GRANT_WRITTEN)
            granted = await self.deliver(lease, group_s)
            fault_point(Point.GRANT_DELIVERED)
            p.commit_soon()
        finally:
            p.in_flight.discard(lease.id)
            p.something_changed()
        return granted

    async def deliver(self, lease: Lease, group_s: int = GROUP_S) -> Lease | None:
        """Make a granting lease true in the cluster; it is then active, or gone again and nothing has changed."""
        p = self._p
        changes: dict[str, object] = {}
        if lease.delivery is Delivery.RESERVE:
            group = await p.applier.reserve(lease, group_s)
            delivered, changes["placement_group"] = group is not None, group
        else:
            delivered = (await p.applier.converge()).delivered(lease)
        if delivered:
            active = p.ledger.put(lease.to(LeaseState.ACTIVE, **changes))
            p.journal.note(
                "granted",
                f"{active.describe()} until {active.expires_at:%H:%M:%S} UTC",
                lease=active,
                node=active.target,
                who=active.requester,
            )
            return active
        undone = p.ledger.put(
            lease.to(LeaseState.RELEASING, release_reason="the source was busy after all", release_asked_at=p.now())
        )
        if lease.delivery is Delivery.RESERVE or (await p.applier.converge()).returned(undone):
            p.ledger.put(undone.to(LeaseState.RELEASED))
        p.journal.note(
            "not_granted",
            f"{lease.describe()}: the source was busy after all",
            lease=undone,
            who=lease.requester,
        )
        return None

    async def _settled(self, lease: Lease) -> Lease:
        """A lease once its grant is through; for a client that asks a second time."""
        while lease.id in self._p.in_flight:
            await self._something_new(_LOOK_AGAIN_S)
        return self._p.ledger.get(lease.id) or lease

    async def _something_new(self, within_s: float) -> None:
        self._p.changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._p.changed.wait()

    # -- giving back ----------------------------------------------------------------------------------------

    async def release(
        self,
        boost_id: str,
        *,
        reason: str = "released",
        grace_s: float | None = None,
        who: str = "",
        wait_s: float = 1.0,
    ) -> Lease:
        """Ask a boost back. The answer is `released` if the capacity is home within `wait_s`, else `releasing`."""
        p = self._p
        lease = await self._settled(p.ledger.find(boost_id))
        deadline = p.now() + timedelta(seconds=wait_s)
        written, idle = True, False
        if not lease.is_winding_down:
            lease = self.begin_release(lease, reason, grace_s=grace_s, who=who)
            fault_point(Point.RELEASE_BEGUN)
            # Looking changes nothing, so it need not wait for the disk.
            written, idle = await asyncio.gather(p.try_commit(), p.applier.is_idle(lease))
            fault_point(Point.RELEASE_WRITTEN)
        elif grace_s is not None:
            lease = p.ledger.put(replace(lease, grace_s=grace_s))
        lease = await self.try_finish(lease, idle=idle)
        if lease.state is LeaseState.RELEASED:
            p.commit_soon()
        p.something_changed()  # upkeep drains what is still in use; here we only watch for a moment
        while lease.state is not LeaseState.RELEASED and p.now() < deadline:
            await asyncio.sleep(_LOOK_AGAIN_S)
            lease = p.ledger.get(lease.id) or replace(lease, state=LeaseState.RELEASED)
        if lease.state is LeaseState.RELEASED:
            lease = replace(lease, warnings=())  # what they were about is over
        if not written and p.unwritten is not None:
            told = f"{p.unwritten}; if the controller starts again before that is put right, this boost is back"
            lease = replace(lease, warnings=(*lease.warnings, told))
        return lease

    async def released_before(self, boost_id: str) -> dict[str, Any] | None:
        """How a boost ended, from the audit log: for a client that lost the answer to its release."""
        p = self._p
        wanted = Wanted(boost=boost_id.strip(), event="returned", since=p.now() - _ANSWER_LOST_WITHIN)
        entries = await asyncio.to_thread(p.journal.recorded, wanted, 1)
        return entries[0].get("boost") if entries else None

    def begin_release(self, lease: Lease, reason: str, *, grace_s: float | None = None, who: str = "grid") -> Lease:
        """Mark a lease as winding down. It is not on disk yet: the caller commits."""
        p = self._p
        changes = {} if grace_s is None else {"grace_s": grace_s}
        winding = p.ledger.put(
            lease.to(LeaseState.RELEASING, release_reason=reason, release_asked_at=p.now(), **changes)
        )
        p.journal.note("release_asked", f"{winding.describe()}: {reason}", lease=winding, node=winding.target, who=who)
        return winding

    async def try_finish(self, lease: Lease, convergence: Convergence | None = None, *, idle: bool = False) -> Lease:
        """One try to bring a winding-down lease home; it stays as it is while its capacity is in use.

        `convergence`: a round that was made after the lease began to wind down; `idle`: its group was seen idle
        since. The caller commits.
        """
        p = self._p
        if lease.delivery is Delivery.TRANSFER:
            home = (convergence or await p.applier.converge()).returned(lease)
        else:
            home = await self._reservation_gone(lease, idle=idle)
        current = p.ledger.get(lease.id)
        if current is None:  # somebody else brought it home meanwhile
            return replace(lease, state=LeaseState.RELEASED)
        if not home:
            return current
        done = p.ledger.put(current.to(LeaseState.RELEASED))
        fault_point(Point.RELEASE_HOME)
        p.notes.pop(lease.id, None)
        p.journal.note(
            "returned",
            f"{done.describe()}: capacity is back ({done.release_reason})",
            lease=done,
            node=done.source,
            boost=boost_dict(done),
        )
        return done

    async def _reservation_gone(self, lease: Lease, *, idle: bool) -> bool:
        p = self._p
        if lease.placement_group is None:
            return True
        asked_at = lease.release_asked_at or p.now()
        left_s = (asked_at + timedelta(seconds=lease.grace_s) - p.now()).total_seconds()
        holders = () if idle or lease.state is LeaseState.LOST else await p.applier.holders(lease)
        if left_s > 0 and holders:
            p.notes[lease.id] = (f"in use: {holders[0].describe()}; cancelled in {left_s:.0f} s",)
            return False
        await p.applier.remove_group(lease.placement_group, in_use=bool(holders))
        return True

    async def end_all_if_file_was_removed(self) -> None:
        """A user may delete the state file at any time: the boosts that were in it end."""
        p = self._p
        if not p.file.was_removed():
            return
        live = [lease for lease in p.ledger if not lease.is_winding_down and lease.id not in p.in_flight]
        if p.unwritten is None or live:  # until it can be written again, it stays removed
            p.journal.note("state_file_removed", f"{p.file.path.name} was removed: {len(live)} boosts end")
        for lease in live:
            self.begin_release(lease, "the state file was removed", grace_s=0.0)
        await p.try_commit()
        p.something_changed()

    # -- keeping --------------------------------------------------------------------------------------------

    async def renew(self, boost_id: str, duration_s: object = None, *, who: str = "") -> Lease:
        """Let a boost last `duration_s` from now (as long again as it was asked for, if not given)."""
        p = self._p
        lease = await self._settled(p.ledger.find(boost_id))
        if lease.state is not LeaseState.ACTIVE:
            raise NotRenewable(
                f"Boost {lease.id[:8]} is {lease.state} and cannot be renewed",
                try_next=f"Ask for a new one: grid boost request {lease.target} {lease.kind} AMOUNT",
            )
        length = lease.duration_s if duration_s is None else seconds("duration", duration_s)
        renewed = p.ledger.put(
            lease.to(LeaseState.ACTIVE, expires_at=p.now() + timedelta(seconds=length), duration_s=length)
        )
        fault_point(Point.RENEW_BEGUN)
        try:
            await p.commit()
        except BaseException:
            self._shorten_again(renewed, lease)
            raise
        fault_point(Point.RENEW_WRITTEN)
        p.notes.pop(lease.id, None)
        p.journal.note(
            "renewed", f"{renewed.describe()} until {renewed.expires_at:%H:%M:%S} UTC", lease=renewed, who=who
        )
        return renewed

    def _shorten_again(self, renewed: Lease, was: Lease) -> None:
        """A renewal that is not on disk was none; whatever else happened to the boost meanwhile stays."""
        current = self._p.ledger.get(was.id)
        if current is not None and current.expires_at == renewed.expires_at:
            self._p.ledger.put(replace(current, expires_at=was.expires_at, duration_s=was.duration_s))

    def boosts(self, target: str | None = None) -> list[Lease]:
        found = [lease for lease in self._p.ledger if target is None or target in (lease.target, lease.source)]
        return sorted(found, key=lambda lease: (lease.allocated_at, lease.id))


def refusal(refused: Refused) -> NoCapacity:
    """The error for a request that nobody can meet: the message users know, and a reason per node."""
    return NoCapacity(
        "No nodes have sufficient available resources",
        because=[
            f"{r.node}: {r.detail} [{r.code}]" for r in refused.refusals if r.code is not RefusalCode.NOT_THE_SOURCE
        ],
        try_next=counter_offer(refused) or "Ask for less, wait for it with --wait 60, or see: grid cluster status",
    )


def _companions(config: GridConfig) -> Companions:
    extra = config.resource_sharing.gpu_companions
    return Companions(cpu_per_gpu=round(extra.cpu * scale(CPU)), memory_per_gpu=round(extra.memory_gb * scale(MEMORY)))
