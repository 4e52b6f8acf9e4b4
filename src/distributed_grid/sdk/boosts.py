"""Boosts from Python: the same requests as `grid boost`, as awaitable calls, with callbacks for reclaim notices."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from distributed_grid.client import GridClient
from distributed_grid.client.lease_keeper import kept_in_background
from distributed_grid.config import ConfigLike
from distributed_grid.errors import BoostNotFound, GridError, InvalidRequest, Refused
from distributed_grid.logs import logger
from distributed_grid.loops import Loop
from distributed_grid.model.leases import WATCHED, Delivery, Purpose
from distributed_grid.model.notices import IdleNotice, ReclaimNotice, asks_more, idle_in, notice_in
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.requests import request_body
from distributed_grid.model.teams import DEFAULT_TEAM
from distributed_grid.model.times import parse_instant
from distributed_grid.sdk.backend import Backend, Connected

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

    from distributed_grid.wire.boosts import Boost, BoostEnding, BoostList, BoostPart, BoostRequest, ReleaseRequest

__all__ = ["IdleNotice", "ReclaimNotice", "ResourceBoost", "ResourceBoostManager", "ResourceBoostRequest"]


class ResourceType(StrEnum):
    CPU = "cpu"
    GPU = "gpu"
    MEMORY = "memory"


log = logger()
N = TypeVar("N")

LOOK_EVERY_S: Final = 0.5

Given = float | bool | None
"""The part that a callback gives up: an amount; True or None for all of it; False for nothing: it is taken later."""
OnReclaim = Callable[[ReclaimNotice], Given | Awaitable[Given]]
OnIdle = Callable[[IdleNotice], Given | Awaitable[Given]]
"""As `OnReclaim`, except that None gives up nothing: grid takes nothing yet."""
OnCapacity = Callable[[dict[str, float]], Awaitable[None] | None]
"""Called with what the work of an elastic boost has now, by kind."""


@dataclass(frozen=True)
class Callbacks:
    """Functions of the holder of one boost."""

    on_reclaim: OnReclaim | None = None
    on_idle: OnIdle | None = None
    on_capacity: OnCapacity | None = None

    def __bool__(self) -> bool:
        return any((self.on_reclaim, self.on_idle, self.on_capacity))


class ReclaimWatch:
    """Polls for reclaim notices, reports of idle boosts and changes of capacity, only while a boost has a callback.

    It ends after the last callback. When its manager closes it is cancelled, even while the controller does not answer.
    """

    def __init__(self, ready: Callable[[], Awaitable[Backend]], every_s: float = LOOK_EVERY_S) -> None:
        self._ready = ready
        self._every_s = every_s
        self._callbacks: dict[str, Callbacks] = {}
        self._capacity: dict[str, dict[str, float]] = {}
        self._seen: dict[str, tuple[datetime, float]] = {}
        self._seen_idle: dict[str, datetime] = {}
        self._looking: asyncio.Task[None] | None = None
        self._answering: set[asyncio.Task[None]] = set()

    def add(self, boost_id: str, callbacks: Callbacks) -> None:
        self._callbacks[boost_id] = callbacks
        if self._looking is None or self._looking.done():
            self._loop = Loop("looking for reclaim notices", self._turn, lambda: self._every_s, waits_first=True)
            self._looking = asyncio.create_task(self._loop.run())

    def drop(self, boost_id: str) -> None:
        for known in (self._callbacks, self._seen, self._seen_idle, self._capacity):
            known.pop(boost_id, None)

    async def stop(self) -> None:
        """Stop polling. A callback that is under way is cancelled if it is a coroutine."""
        self._callbacks.clear()
        tasks = {*self._answering, *([self._looking] if self._looking else [])}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _turn(self) -> None:
        if not self._callbacks:
            self._loop.end()
            return
        watched = set(self._callbacks)  # a boost added during the look may not be in the answer yet
        status = await (await self._ready()).ask(GridClient.boost_status)
        there = {boost["boost_id"]: boost for boost in status["boosts"] if boost["boost_id"] in watched}
        if status["cut"]:
            there |= await self._each(watched - there.keys())
        for boost_id in watched - there.keys():
            self.drop(boost_id)
        for boost in there.values():
            self._tell(boost)
            await self._tell_capacity(boost)

    async def _each(self, boost_ids: set[str]) -> dict[str, Boost]:
        """The existing boosts among these, queried one by one, since a truncated list does not answer that."""
        backend = await self._ready()
        found: dict[str, Boost] = {}
        for boost_id in boost_ids:
            with contextlib.suppress(BoostNotFound):
                found[boost_id] = await backend.ask(GridClient.boost, boost_id)
        return found

    def _tell(self, boost: Boost) -> None:
        callbacks = self._callbacks.get(boost["boost_id"], Callbacks())
        on_reclaim, on_idle = callbacks.on_reclaim, callbacks.on_idle
        notice, idle = notice_in(boost), idle_in(boost)
        if on_reclaim is not None and notice is not None:
            before, self._seen[notice.boost_id] = self._seen.get(notice.boost_id), (notice.asked_at, notice.amount)
            if asks_more(before, notice.asked_at, notice.amount):
                self._start(self._answer(notice, on_reclaim, boost["amount"]))
        if on_idle is not None and idle is not None and self._seen_idle.get(idle.boost_id) != idle.idle_since:
            self._seen_idle[idle.boost_id] = idle.idle_since
            self._start(self._answer_idle(idle, on_idle))

    def _start(self, answer: Coroutine[None, None, None]) -> None:
        answering = asyncio.create_task(answer)
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)

    async def _tell_capacity(self, boost: Boost) -> None:
        callback, has = self._callbacks.get(boost["boost_id"], Callbacks()).on_capacity, dict(boost["capacity"])
        if callback is None or self._capacity.get(boost["boost_id"]) == has:
            return
        self._capacity[boost["boost_id"]] = has
        try:
            answer = callback(has)
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            log.exception("a capacity callback failed", boost=boost["boost_id"])

    async def _answer(self, notice: ReclaimNotice, callback: OnReclaim, has: float) -> None:
        """Whatever the callback does or fails to do, what it does not give up is taken at the deadline."""
        try:
            given = await _called(callback, notice)
            if given is False or (given is not None and given is not True and given <= 0):
                return
            part = None if given is None or given is True or given >= has else given
            backend = await self._ready()
            open_now = notice_in(await backend.ask(GridClient.boost, notice.boost_id))
            if open_now is None or open_now.asked_at != notice.asked_at:
                log.warning("a reclaim callback returned too late; grid takes the capacity", boost=notice.boost_id)
                return
            await backend.ask(GridClient.release_boost, notice.boost_id, {"amount": part})
        except GridError as error:
            log.warning("could not release what a callback gave up", boost=notice.boost_id, message=error.message)
        except Exception:
            log.exception("a reclaim callback failed; grid takes the capacity at the deadline", boost=notice.boost_id)

    async def _answer_idle(self, idle: IdleNotice, callback: OnIdle) -> None:
        """What the callback gives up is released as by its owner. Nothing else follows."""
        try:
            given = await _called(callback, idle)
            if not given or (given is not True and given < 0):
                return
            backend = await self._ready()
            if idle_in(await backend.ask(GridClient.boost, idle.boost_id)) != idle:
                log.warning("an idle callback returned too late; the boost stays", boost=idle.boost_id)
                return
            part = None if given is True or given >= idle.amount else given
            await backend.ask(GridClient.release_boost, idle.boost_id, {"amount": part})
        except GridError as error:
            log.warning("could not release what a callback gave up", boost=idle.boost_id, message=error.message)
        except Exception:
            log.exception("an idle callback failed; the boost stays", boost=idle.boost_id)


async def _called(callback: Callable[[N], Given | Awaitable[Given]], notice: N) -> Given:
    """A plain function may take minutes to save its work, so it runs in a thread and blocks nothing else."""
    is_plain = not inspect.iscoroutinefunction(callback)
    answer = await asyncio.to_thread(callback, notice) if is_plain else callback(notice)
    return await answer if inspect.isawaitable(answer) else answer


@dataclass
class ResourceBoostRequest:
    """A request for a boost. Types and priorities may be given as enum members or as their lower-case names."""

    target_node: str
    resource_type: ResourceType | str
    amount: float | str
    """Or a range: "2..16" is a reservation of 2 CPUs that grows up to 16 while capacity is idle, and yields what it
    grew by to every request; "..16" reserves nothing."""
    priority: AllocationPriority | str = AllocationPriority.NORMAL
    duration_seconds: float | str | None = None
    preferred_source: str | None = None
    delivery: str | None = None
    wait_seconds: float | str = 0.0
    grace_seconds: float | str | None = None
    on_grace_end: str | None = None
    auto_renew: bool = False
    """Renew the boost for as long as this process (and its event loop) lives."""
    idempotency_key: str | None = None
    along: dict[str, float] | None = None
    """Further amounts from the same lender, by kind: `{"memory": 8}`. Such a boost is reserved."""
    purpose: str = "boost"
    label: str = ""
    own_too: bool = False
    """If no other node can lend it, it may be reserved on the target itself."""
    ends_with: str | None = None
    """A Ray process, by its `ray.get_runtime_context().get_worker_id()`. The boost ends when that process is gone."""
    sources: Sequence[str] = ()
    """The only nodes that may lend it, together with `preferred_source`."""
    max_sources: int | None = None
    """How many nodes may lend it together if no single node can; None: as many as it takes."""
    members: int | None = None
    """It consists of so many equal members, each whole on one node; all are granted or none. Amounts are those of one
    member. Such a boost is reserved."""
    layout: str | None = None
    """Where the members go: "pack" (the default), "spread", "strict_pack" or "strict_spread"."""
    reclaim_url: str | None = None
    """The URL to notify before the boost is reclaimed."""
    on_reclaim: OnReclaim | None = None
    """Called instead, in this process, with a `ReclaimNotice`. It returns how much it gives up; None or True is all,
    False nothing. A plain function runs in a thread, a coroutine function in the event loop."""
    on_capacity: OnCapacity | None = None
    """Called in the event loop with the capacity of an elastic boost, once and whenever that has changed."""
    idle_after: float | str | None = None
    """How long its work must not use it before it counts as idle; "never" if it never does. None: as configured."""
    on_idle: OnIdle | None = None
    """Called in this process with an `IdleNotice`, once whenever the boost has become idle. It returns how much it
    gives up, as `on_reclaim` does, except that None gives up nothing."""

    def body(self) -> BoostRequest:
        """The API's request: every field but those that concern only this process."""
        return request_body(
            self.target_node,
            {str(self.resource_type): str(self.amount)},
            along=None if not self.along else {**self.along},
            priority=str(self.priority),
            duration_seconds=self.duration_seconds,
            source_node=self.preferred_source,
            source_nodes=list(self.sources) or None,
            max_sources=self.max_sources,
            members=self.members,
            layout=self.layout,
            delivery=self.delivery,
            grace_seconds=self.grace_seconds,
            on_grace_end=self.on_grace_end,
            purpose=self.purpose,
            label=self.label,
            own_too=self.own_too,
            ends_with=self.ends_with,
            idle_after=self.idle_after,
            reclaim_url=self.reclaim_url if self.on_reclaim is None else WATCHED,
            wait_seconds=self.wait_seconds,
        )


@dataclass(frozen=True)
class ResourceBoost:
    """A boost as it was when it was read."""

    boost_id: str
    source_node: str
    target_node: str
    resource_type: str
    amount: float
    priority: str
    delivery: str
    delivery_reason: str
    state: str
    allocated_at: datetime
    expires_at: datetime
    placement_group_id: str | None = None
    requester: str = ""
    """The user who requested it."""
    team: str = DEFAULT_TEAM
    cause: str = "asked"
    notice: ReclaimNotice | None = None
    """The reclaim notice that its holder has, if any."""
    checkpointed_at: datetime | None = None
    idle_since: datetime | None = None
    """Since when its work has not used it."""
    resources: dict[str, float] = field(default_factory=dict)
    """All that is lent: what was requested, and what a reservation brings along."""
    at_most: float | None = None
    """The most that an elastic boost grows to."""
    capacity: dict[str, float] = field(default_factory=dict)
    """What its work has now, including what it has grown by."""
    grown: tuple[BoostPart, ...] = ()
    """What it has grown by, for each lender."""
    purpose: str = "boost"
    label: str = ""
    ending: BoostEnding | None = None
    """Why it is being returned, by whom, for whom and by when, as in the API's JSON."""
    programs: tuple[str, ...] = ()
    """The programs that `grid run` and `grid boost shell` run in it."""
    parts: tuple[BoostPart, ...] = ()
    """What each of several lenders lends, as in the API's JSON; empty if there is only one."""
    warnings: tuple[str, ...] = field(default=())

    @classmethod
    def from_dict(cls, data: Boost) -> ResourceBoost:
        """From the API's answer. Keys of a later controller that this version does not know are left out."""
        saved, idle = data["checkpointed_at"], data["idle_since"]
        read = {
            "allocated_at": parse_instant(data["allocated_at"]),
            "expires_at": parse_instant(data["expires_at"]),
            "checkpointed_at": None if saved is None else parse_instant(saved),
            "idle_since": None if idle is None else parse_instant(idle),
            "notice": notice_in(data),
            "placement_group_id": data["placement_group"],
            "warnings": tuple(data["warnings"]),
            "programs": tuple(data["programs"]),
            "parts": tuple(data["parts"]),
            "grown": tuple(data["grown"]),
        }
        known = {each.name for each in fields(cls)}
        return cls(**{key: value for key, value in data.items() if key in known} | read)  # type: ignore[arg-type]

    @property
    def is_active(self) -> bool:
        return self.state == "active"

    @property
    def placement_group(self) -> PlacementGroup | None:
        """The handle of a reserved boost's placement group; None for a transfer, which needs none."""
        if self.placement_group_id is None:
            return None
        from distributed_grid.execution.groups import group_handle

        return group_handle(self.placement_group_id)

    def options(self, *, bundle: int | None = None, **more: Any) -> dict[str, Any]:
        """Ray options that put a task or actor into this boost: `f.options(**boost.options(num_gpus=1)).remote()`.

        `bundle`: the number of one of its bundles, as in its `parts`; by default any that has room. Without a placement
        group they name the node that has the capacity: of a transfer, the target.
        """
        if self.placement_group_id is None:
            from distributed_grid.execution.ray_gateway import selector_of

            is_moved = Delivery.named(self.delivery).moves_totals
            return {"label_selector": selector_of(self.target_node if is_moved else self.source_node)} | more
        from distributed_grid.execution.groups import inside, inside_limit

        if self.at_most is not None and not self.amount:
            return {"scheduling_strategy": inside_limit(self.placement_group_id, self.at_most)} | more
        numbers = [part["bundle"] for part in self.parts] or [1]
        if bundle not in (None, *numbers):
            raise InvalidRequest(f"Boost {self.boost_id[:8]} has no bundle {bundle}", because=[f"it has {numbers}"])
        any_or_only = None if self.parts or self.at_most is not None else 1
        return {"scheduling_strategy": inside(self.placement_group_id, bundle or any_or_only)} | more


class ResourceBoostManager(Connected):
    """Requests boosts and releases them."""

    def __init__(
        self,
        cluster_config: ConfigLike = None,
        *,
        backend: Backend | None = None,
        shared: Connected | None = None,
        **_historic: object,
    ) -> None:
        super().__init__(cluster_config, backend=backend, shared=shared)
        self._renewals: dict[str, asyncio.Task[None]] = {}
        self._reclaims = ReclaimWatch(self._ready)
        self.last_refusal: GridError | None = None
        """Why the last request was not met."""

    async def close(self) -> None:
        """Stop renewing, stop listening for reclaims, and disconnect. Boosts stay until they expire or are released."""
        for renewal in self._renewals.values():
            renewal.cancel()
        self._renewals.clear()
        await self._reclaims.stop()
        await super().close()

    async def request_boost(self, request: ResourceBoostRequest) -> str | None:
        """The new boost's id; None if no node can lend that now (`last_refusal` says why, node by node).

        An invalid request (an unknown node, a negative amount) raises its `GridError`.
        """
        try:
            backend = await self._ready()
            granted = await backend.ask(
                GridClient.request_boost, request.body(), idempotency_key=request.idempotency_key
            )
        except Refused as error:
            self.last_refusal = error
            log.warning("boost refused", message=error.message, because=error.because, try_next=error.try_next)
            return None
        self.last_refusal = None
        boost = ResourceBoost.from_dict(granted)
        if request.auto_renew:
            length = (boost.expires_at - boost.allocated_at).total_seconds()
            renew = partial(self.renew_boost, boost.boost_id)
            self._renewals[boost.boost_id] = kept_in_background(boost.boost_id, length, renew)
        if callbacks := Callbacks(request.on_reclaim, request.on_idle, request.on_capacity):
            self._reclaims.add(boost.boost_id, callbacks)
        return boost.boost_id

    async def release_boost(
        self, boost_id: str, amount: float | None = None, *, grace_seconds: float | None = None
    ) -> bool:
        """Release a boost, or `amount` of it. The id may be shortened. False if there is no such boost.

        True once it is being returned. Work that still uses it gets its grace period, or `grace_seconds`.
        """
        from distributed_grid.errors import NotFound

        if amount is None and (renewal := self._renewals.pop(boost_id, None)) is not None:
            renewal.cancel()
        try:
            body: ReleaseRequest = {"amount": amount, "grace_seconds": grace_seconds}
            await self._ask(GridClient.release_boost, boost_id, body)
        except NotFound:
            return False
        return True

    async def checkpointed(self, boost_id: str) -> ResourceBoost:
        """Report a checkpoint: the work in this boost is saved, so a preemption would lose little."""
        return ResourceBoost.from_dict(await self._ask(GridClient.checkpointed, boost_id))

    async def renew_boost(self, boost_id: str, duration_seconds: float | None = None) -> ResourceBoost:
        return ResourceBoost.from_dict(await self._ask(GridClient.renew_boost, boost_id, duration_seconds))

    async def get_boost(self, boost_id: str) -> ResourceBoost:
        return ResourceBoost.from_dict(await self._ask(GridClient.boost, boost_id))

    async def get_active_boosts(self, target_node: str | None = None) -> list[ResourceBoost]:
        """The active boosts, as `get_boost_status()["total_active"]` counts them: no leases of runs, tasks or roles.

        With `target_node`, those that this node has got; an unknown node raises `TargetNotFound`.
        """
        status = await self._ask(GridClient.boost_status, target_node)
        found = [ResourceBoost.from_dict(boost) for boost in status["boosts"] if boost["purpose"] == Purpose.BOOST]
        return [b for b in found if b.is_active and target_node in (None, b.target_node)]

    async def get_boost_status(self) -> BoostList:
        """The same as `grid boost status --json`."""
        return await self._ask(GridClient.boost_status)
