"""Users' requests: to get a boost, to renew it, to release it. Callers wait here for their answers.

`leases.grant` and `leases.release` carry them out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, cast

from distributed_grid import threads
from distributed_grid.decide.queue.renewals import LatestEnd, latest_end
from distributed_grid.errors import (
    BoostNotFound,
    NotFound,
    NotRenewable,
    RequestNotFound,
    ReservedForWindow,
    UnknownResource,
)
from distributed_grid.faults import Point, fault_point
from distributed_grid.leases import grant
from distributed_grid.leases.grant import begin_grant, carry_out, check_names, make_plan
from distributed_grid.leases.reclaim import note_checkpoint
from distributed_grid.leases.release import (
    begin_release,
    change_grace,
    end_all_if_file_was_removed,
    part_id,
    part_to_give,
    try_finish,
)
from distributed_grid.leases.rules import rules_of_one_look
from distributed_grid.leases.state import VIEW_LAG, EngineContext
from distributed_grid.model.lease_changes import RenewalUndone, Renewed, as_returned
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.requests import Ask, Waiting
from distributed_grid.model.times import stamp
from distributed_grid.model.validators import grace_period, seconds
from distributed_grid.queue.queue import Queue
from distributed_grid.store.audit_log import Wanted

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import Boost

_LOOK_AGAIN_S = 0.05
_ANSWER_LOST_WITHIN = timedelta(minutes=10)
_GROUP_AT_ONCE_S = 1
_UNKNOWN_NAME = (NotFound, UnknownResource)


class BoostService:
    """Users' requests to one cluster, carried out by its one writer."""

    def __init__(self, parts: EngineContext) -> None:
        self._p = parts
        self._asking: dict[str, asyncio.Task[Lease]] = {}
        self._waiting: Counter[str] = Counter()
        self.queue = Queue(parts)

    # -- asking ---------------------------------------------------------------------------------------------

    async def request(self, ask: Ask, *, wait_s: float = 0.0, since: datetime | None = None) -> Lease:
        """Grant the request now or within `wait_s`; or raise why not, with a reason per node.

        `since`: when it was first made, if that is longer ago. Its age counts while others wait.
        """
        p = self._p
        if ask.idempotency_key is None:
            return await self._request(ask, wait_s, since)
        if (earlier := p.ledger.with_key(ask.idempotency_key)) is not None:
            return await self._settled(earlier)
        # A client that asks again while its first try is still under way waits for that one.
        if ask.idempotency_key not in self._asking:
            asking = asyncio.create_task(self._request(ask, wait_s, since))
            self._asking[ask.idempotency_key] = asking
            asking.add_done_callback(lambda _: self._forget(ask.idempotency_key or ""))
        self._waiting[ask.idempotency_key] += 1
        try:
            return await asyncio.shield(self._asking[ask.idempotency_key])
        finally:
            self._waiting[ask.idempotency_key] -= 1

    def abandon(self, idempotency_key: str) -> None:
        """Record that a caller of this request is gone. Once all are gone, the request is dropped.

        A grant under way is completed.
        """
        self._waiting[idempotency_key] -= 1
        if idempotency_key in self._asking and self._waiting[idempotency_key] <= 0:
            self.queue.abandon(idempotency_key)

    def _forget(self, idempotency_key: str) -> None:
        self._asking.pop(idempotency_key, None)
        self._waiting += Counter()  # keeps only counts above zero

    async def _request(self, ask: Ask, wait_s: float, since: datetime | None) -> Lease:
        p = self._p
        await self.queue.check_open()
        await end_all_if_file_was_removed(p)  # before there is a new boost that the removal does not concern
        asked_at = p.now()
        if (granted := await self._grant_at_once(ask)) is not None:
            return granted
        try:
            check_names(ask, p.last_seen)
        except _UNKNOWN_NAME:  # the node may have just joined
            check_names(ask, await p.joined())
        # A refusal may rest on a view that does not show grid's last change yet: look again until it must show it.
        settled_at = min(p.last_change, asked_at) + VIEW_LAG
        until = max(asked_at + timedelta(seconds=wait_s), settled_at)
        return await (await self.queue.join(Waiting(grant.new_id(), ask, since or asked_at, until)))

    async def _grant_at_once(self, ask: Ask) -> Lease | None:
        """Grant from the last look, without another one; None if that is not possible, or other requests wait, or a
        window may be in the way."""
        p = self._p
        if (nodes := p.known()) is None or self.queue or self.queue.windows.may_bound(ask):
            return None
        try:
            plan = make_plan(p, ask, nodes)
        except _UNKNOWN_NAME:
            return None
        if not isinstance(plan, tuple):
            return None
        return await carry_out(p, begin_grant(p, plan, nodes), _GROUP_AT_ONCE_S)

    # -- waiting without a connection -----------------------------------------------------------------------

    async def enqueue(self, ask: Ask, *, wait_s: float | None = None) -> Lease | Waiting:
        """Let a request wait, at most `wait_s`, also across restarts; returns the lease if it is granted at once.

        The lease that it becomes has the waiting request's id.
        """
        p = self._p
        if (earlier := p.ledger.with_key(ask.idempotency_key)) is not None:
            return await self._settled(earlier)
        if (known := self.queue.with_key(ask.idempotency_key)) is not None:
            return known
        await self.queue.check_open()
        await end_all_if_file_was_removed(p)
        check_names(ask, await p.look())
        now = p.now()
        until = None if wait_s is None else now + timedelta(seconds=wait_s)
        waiting = Waiting(grant.new_id(), ask, now, until, is_durable=True)
        answer = await self.queue.join(waiting)
        await self.queue.try_round()
        if answer.done():
            return await answer
        p.journal.note("queued", f"{ask.describe()} waits", node=ask.target, who=ask.requester, request_id=waiting.id)
        return p.sharing.waiting.get(waiting.id, waiting)

    async def _settled(self, lease: Lease) -> Lease:
        """A lease once its grant is complete; for a client that asks a second time."""
        while self._p.ledger.is_being_granted(lease.id):
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
        units: int | None = None,
        reason: str = "released",
        grace_s: object = None,
        who: str = "",
        wait_s: float = 1.0,
        idempotency_key: str | None = None,
    ) -> Lease:
        """Release a boost. The answer is `released` if the capacity returns within `wait_s`, else `releasing`.

        With `units`, release only that much: the answer is then about that part, which has an id of its own. A repeated
        call with the same `idempotency_key` releases nothing more.
        """
        p = self._p
        grace = None if grace_s is None else grace_period(grace_s, p.longest_grace_s)
        given_id = part_id(idempotency_key) if units is not None else ""
        lease = await self._settled(p.ledger.get(given_id) or p.ledger.find(boost_id))
        deadline = p.now() + timedelta(seconds=wait_s)
        written, idle = True, False
        if not lease.is_winding_down:
            if units is not None:
                lease = part_to_give(p, lease, units, given_id, who=who)
            lease = begin_release(p, lease, reason, grace_s=grace, who=who)
            fault_point(Point.RELEASE_BEGUN)
            # Looking changes nothing, so it need not wait for the disk.
            written, idle = await asyncio.gather(p.try_commit(), p.applier.is_idle(lease))
            fault_point(Point.RELEASE_WRITTEN)
        elif grace is not None:
            lease = change_grace(p, lease, grace, who=who)
        lease = await try_finish(p, lease, idle=idle)
        if lease.state is LeaseState.RELEASED:
            p.commit_soon()
        p.something_changed()  # the reconciler drains what is still in use; this call only watches for a moment
        while lease.state is not LeaseState.RELEASED and p.now() < deadline:
            await asyncio.sleep(_LOOK_AGAIN_S)
            lease = p.ledger.get(lease.id) or as_returned(lease)
        if lease.state is LeaseState.RELEASED:
            lease = replace(lease, warnings=())  # they no longer apply
        if not written and p.unwritten is not None:
            warning = f"{p.unwritten}; if the controller restarts before that is fixed, this boost comes back"
            lease = replace(lease, warnings=(*lease.warnings, warning))
        return lease

    async def released_before(self, boost_id: str) -> Boost | None:
        """How a boost ended, from the audit log: for a client that lost the answer to its release."""
        p = self._p
        wanted = Wanted(boost=boost_id.strip(), event="returned", since=p.now() - _ANSWER_LOST_WITHIN)
        entries = await threads.READING.run(p.journal.recorded, wanted, 1)
        return cast("Boost | None", entries[0].get("boost")) if entries else None

    # -- keeping --------------------------------------------------------------------------------------------

    async def renew(self, boost_id: str, duration_s: object = None, *, who: str = "") -> Lease:
        """Let a boost last `duration_s` from now; by default, as long again as it was asked for."""
        p = self._p
        lease = self._active(await self._settled(p.ledger.find(boost_id)))
        length = lease.duration_s if duration_s is None else seconds("duration", duration_s)
        lease, latest = await self._latest_end(lease, p.now() + timedelta(seconds=length))
        renewed = p.ledger.apply(lease, Renewed(latest.at, length))
        fault_point(Point.RENEW_BEGUN)
        try:
            await p.commit()
        except BaseException:
            self._shorten_again(renewed, lease)
            raise
        fault_point(Point.RENEW_WRITTEN)
        p.notes.pop(lease.id, None)
        until = f"until {stamp(renewed.expires_at)}"
        if latest.window is not None:
            p.notes[lease.id] = (f"renewed only {until}: then the window {latest.window.window} begins",)
            until += f", when the window {latest.window.window} begins"
        p.journal.note("renewed", f"{renewed.describe()} {until}", lease=renewed, who=who)
        return renewed

    async def _latest_end(self, lease: Lease, wanted: datetime) -> tuple[Lease, LatestEnd]:
        """The lease, and until when it may be renewed; raises `ReservedForWindow` if a window needs its capacity."""
        p, windows = self._p, self.queue.windows
        if lease.expires_at >= wanted or not windows.begin_before(wanted):
            return lease, LatestEnd(wanted)
        nodes = await p.look_to_decide()
        lease = self._active(lease)
        promises = windows.promised((wanted - p.now()).total_seconds())
        leases, usage, rules = p.ledger.parts(), p.ledger.usage, rules_of_one_look(p)
        found = latest_end(lease, wanted, nodes, leases, usage, promises, rules, p.teams, p.now())
        if found.window is not None and found.at <= lease.expires_at:
            begins = stamp(found.window.begin)
            raise ReservedForWindow(
                f"Boost {lease.id[:8]} ends at {stamp(lease.expires_at)} and cannot be renewed: "
                f"its capacity is promised to the window {found.window.window} from {begins} on",
                try_next=f"To see the window: grid reserve show {found.window.window}",
            )
        return lease, found

    def _active(self, lease: Lease) -> Lease:
        """The lease as it is now; raises `NotRenewable` if it is not active."""
        now = self._p.ledger.get(lease.id) or as_returned(lease)
        if now.state is LeaseState.ACTIVE:
            return now
        raise NotRenewable(
            f"Boost {now.id[:8]} is {now.state.shown} and cannot be renewed",
            try_next=f"Request a new one: grid boost request {now.target} {now.kind} AMOUNT",
        )

    def _shorten_again(self, renewed: Lease, was: Lease) -> None:
        """Undo a renewal that could not be written; other changes to the boost stay."""
        current = self._p.ledger.get(was.id)
        if current is not None and current.expires_at == renewed.expires_at:
            self._p.ledger.apply(current, RenewalUndone(was.expires_at, was.duration_s))

    def find(self, prefix: str, shows: Callable[[Lease], bool] = lambda _: True) -> Lease | Waiting:
        """A waiting request, or the boost that it became, by its id or the start of it.

        `shows`: which boosts the caller may see.
        """
        with contextlib.suppress(RequestNotFound):
            return self.queue.find(prefix)
        try:
            return self._p.ledger.find(prefix, shows)
        except BoostNotFound:
            raise RequestNotFound(
                f"No request and no boost with the id {prefix!r}",
                try_next="To see the queue: grid resource-sharing queue; all boosts: grid boost status",
            ) from None

    async def checkpointed(self, boost_id: str, *, who: str = "") -> Lease:
        """Record that the holder of a boost has saved its work."""
        p = self._p
        lease = note_checkpoint(p, await self._settled(p.ledger.find(boost_id)), who=who)
        await p.try_commit()
        return lease

    def boosts(self, target: str | None = None) -> list[Lease]:
        """The boosts, and the leases of programs. What an elastic lease has grown by is a part of it."""
        whole = [lease for lease in self._p.ledger if not lease.grows]
        found = [lease for lease in whole if target is None or target in lease.all_nodes]
        return sorted(found, key=attrgetter("allocated_at", "id"))
