"""The queue: requests that were not met at once, in their order, admitted as capacity comes back.

`decide.queue.admission` decides what happens to each, in the order of `decide.queue.claims`. This module carries it
out, round by round.
"""

import asyncio
import contextlib
from collections.abc import Collection, Container, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, Protocol

from distributed_grid.decide.leases.elastic import wanted_growth
from distributed_grid.decide.queue.admission import Verdict, plan_queue
from distributed_grid.decide.queue.claims import ordered
from distributed_grid.decide.queue.preemption import Preemption, patient_for
from distributed_grid.errors import GridError, NoCapacity, Refused, RequestNotFound, StoreBroken
from distributed_grid.leases import grant
from distributed_grid.leases.grant import begin_grant, carry_out, check_names, refusal
from distributed_grid.leases.reclaim import reclaim, why_it_yields
from distributed_grid.leases.rules import charge, check_enabled, numbers, rules_of_one_look
from distributed_grid.leases.state import EngineContext
from distributed_grid.loops import Loop
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeName, NodeTable
from distributed_grid.model.requests import Waiting
from distributed_grid.model.windows import Window
from distributed_grid.queue.windows import Windows

# Capacity also comes back when other work ends. Ray does not report that, so the queue polls.
_HASTY_S: Final = 0.05
_SOON_S: Final = 0.25
_CALM_S: Final = 1.0
_CALM_AFTER: Final = timedelta(minutes=1)
# Capacity that has just returned may not be visible yet: no lease yields for what is free already.
_SEEN_AFTER: Final = timedelta(seconds=1)


class TasksInQueue(Protocol):
    """The scheduler, as the queue uses it: where a waiting task may run changes, so an ask is valid only briefly."""

    def refresh(self, nodes: NodeTable) -> None:
        """Update what tasks ask for, before a plan is made; there is no await."""

    def may_have(self, waiting: Waiting, sources: Collection[NodeName]) -> bool:
        """Whether the task may still run there, after what was granted in the same round."""


class Queue:
    """Waiting requests are in `p.sharing.waiting`; their callers' futures, in `_answers`."""

    def __init__(self, parts: EngineContext) -> None:
        self._p = parts
        self._answers: dict[str, asyncio.Future[Lease]] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._preemption_waits: dict[str, datetime] = {}
        """By request: since when its preemption waits for a newer view."""
        self._loop = Loop(
            "the queue", self._turn, self._pause, news=parts.news_for_the_queue, waits_first=True, retry_s=_SOON_S
        )
        self.is_open = True
        """While False, no request is admitted."""
        self.windows = Windows(parts)
        self.tasks: TasksInQueue | None = None

    def __len__(self) -> int:
        return len(self._p.sharing.waiting)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()

    # -- coming and going -----------------------------------------------------------------------------------

    async def check_open(self) -> None:
        """Raise if grid accepts no request now, whatever it asks for. Plans pass this check as requests do.

        Every grant is on disk first. So a failed write is repeated here: it may succeed by now.
        """
        check_enabled(self._p)
        if not self.is_open:
            raise _stopping()
        if self._p.unwritten is not None:
            await self._p.commit()

    async def join(self, waiting: Waiting) -> "asyncio.Future[Lease]":
        """Start waiting for capacity. The future holds the lease, or why there will be none."""
        p = self._p
        answer: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may be gone
        p.sharing.waiting[waiting.id] = waiting
        self._answers[waiting.id] = answer
        if waiting.is_durable:
            try:
                await p.commit_sharing()
            except BaseException:
                self._drop(waiting.id)
                raise
        p.news_for_the_queue.set()
        return answer

    async def leave(self, request_id: str, *, who: str = "grid", why: str = "withdrawn") -> Waiting:
        """Stop waiting; raises `RequestNotFound` if no request with this id waits."""
        waiting = self.find(request_id)
        self._end(waiting, NoCapacity(f"{waiting.ask.describe()}: the request was {why}"))
        self._p.journal.note("unqueued", f"{waiting.ask.describe()}: {why}", who=who, request_id=waiting.id)
        if waiting.is_durable:
            await self._p.commit_sharing()
        return waiting

    def withdraw(self, waiting: Waiting) -> None:
        """Like `leave`, for the request of a task: the scheduler informs the caller, and commits."""
        self._drop(waiting.id)

    def abandon(self, idempotency_key: str) -> None:
        """Drop a request after its caller has gone, so that it is not granted for nothing. A grant under way is
        completed."""
        waiting = self.with_key(idempotency_key)
        if waiting is not None and not waiting.is_durable and not self._p.ledger.is_being_granted(waiting.id):
            self._end(waiting, NoCapacity(f"The request for {waiting.ask.describe()} is no longer waiting"))

    def find(self, prefix: str) -> Waiting:
        """The waiting request with this id, or the only one whose id starts with `prefix`."""
        wanted = prefix.strip().lower()
        found = [each for each in self._p.sharing.waiting.values() if wanted and each.id.startswith(wanted)]
        if len(found) != 1:
            raise RequestNotFound(
                f"{'No request' if not found else f'{len(found)} requests'} with the id {prefix!r} in the queue",
                try_next="To see the queue: grid resource-sharing queue",
            )
        return found[0]

    def with_key(self, idempotency_key: str | None) -> Waiting | None:
        waiting = self._p.sharing.waiting.values()
        return next((w for w in waiting if idempotency_key and w.ask.idempotency_key == idempotency_key), None)

    async def cancel_window(self, window: Window, *, who: str) -> Lease | None:
        """End a window's promise; returns the lease of the occurrence in progress."""
        return await self.windows.cancel(window, self._drop, who=who)

    def _drop(self, request_id: str) -> "asyncio.Future[Lease] | None":
        self._p.sharing.waiting.pop(request_id, None)
        self._verdicts.pop(request_id, None)
        self._preemption_waits.pop(request_id, None)
        return self._answers.pop(request_id, None)

    def _end(self, waiting: Waiting, why: Exception) -> None:
        answer = self._drop(waiting.id)
        if answer is not None and not answer.done():
            answer.set_exception(why)

    # -- what is known --------------------------------------------------------------------------------------

    def in_order(self) -> tuple[Waiting, ...]:
        """The waiting requests, the next one first."""
        return self._ordered(())

    def _ordered(self, promises: Iterable[Waiting]) -> tuple[Waiting, ...]:
        p = self._p
        requests = (*p.sharing.waiting.values(), *promises)
        return ordered(requests, p.ledger.usage, p.sharing.accounts, p.teams, p.now(), p.ledger.parts())

    def with_windows(self) -> tuple[Waiting, ...]:
        """The same, with the windows that have not begun."""
        longest_s = max((each.ask.duration_s for each in self._p.sharing.waiting.values()), default=None)
        return self._ordered(self.windows.promised(longest_s))

    def promises(self, nodes: NodeTable, until: datetime) -> dict[str, Verdict]:
        """By id, the plan for the windows that begin from now on and before then."""
        queue, now = self._ordered(self.windows.until(until)), self._p.now()
        return {each.waiting.id: each for each in self._plan(queue, nodes, ()) if each.waiting.is_promise(now)}

    def verdicts(self) -> tuple[Verdict, ...]:
        """The last round's verdicts on the waiting requests, in order."""
        found = [v for v in self._verdicts.values() if v.waiting.id in self._p.sharing.waiting]
        return tuple(sorted(found, key=lambda verdict: verdict.position))

    def verdict_now(self, waiting: Waiting, nodes: NodeTable) -> Verdict | None:
        """The next round's verdict on one request, with every node's reason."""
        if self._p.ledger.is_being_granted(waiting.id):
            return self._verdicts.get(waiting.id)
        queue = self.with_windows()
        upto = queue[: queue.index(waiting) + 1] if waiting in queue else ()
        return self._plan(upto, nodes, (waiting.id,))[-1] if upto else None

    @property
    def expected_sources(self) -> dict[str, NodeName]:
        """The expected source of each waiting request."""
        alone = (each for each in self._verdicts.values() if len(each.expected_sources) == 1)
        return {each.waiting.id: each.expected_sources[0] for each in alone}

    def _plan(self, queue: Iterable[Waiting], nodes: NodeTable, explain: Container[str]) -> tuple[Verdict, ...]:
        p = self._p
        return plan_queue(
            queue,
            nodes,
            p.ledger.parts(),
            p.ledger.usage,
            rules_of_one_look(p),
            p.now(),
            explain=explain,
            expected_sources=self.expected_sources,
            numbers=numbers(p),
        )

    # -- rounds ---------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        if self._p.sharing.waiting or self.windows.are_near or self._wants_growth():
            await self.round()

    def _pause(self) -> float | None:
        growth_s = _CALM_S if self._wants_growth() else None
        pauses = [self._pause_of_requests(), self.windows.pause_s(), growth_s]
        return min((pause for pause in pauses if pause is not None), default=None)

    def _wants_growth(self) -> bool:
        return self.is_open and bool(wanted_growth(self._p.ledger.snapshot()))

    def _growth(self) -> tuple[Waiting, ...]:
        """The next steps of elastic leases, behind all requests: they are met now or not at all.

        What came back a moment ago may not be visible yet as a whole, so requests that wait for it have time.
        """
        p = self._p
        if p.sharing.waiting and p.now() < p.last_return + 2 * _SEEN_AFTER:
            return ()
        return tuple(Waiting(grant.new_id(), ask, p.now()) for ask in wanted_growth(p.ledger.snapshot()))

    def _pause_of_requests(self) -> float | None:
        waiting = self._p.sharing.waiting.values()
        if not waiting:
            return None
        now = self._p.now()
        if any(each.until is not None and each.until - now < timedelta(seconds=_SOON_S) for each in waiting):
            return _HASTY_S
        return _SOON_S if any(now - each.since < _CALM_AFTER for each in waiting) else _CALM_S

    async def try_round(self) -> bool:
        """Run a round, and log a failure. Requests keep waiting, and the next round tries again."""
        return await self._loop.try_turn()

    async def round(self) -> None:
        """1 request windows that begin, 2 look, 3 decide, 4 grant, 5 reclaim what yields, 6 end requests whose time is
        over."""
        p = self._p
        await self._drop_moot()
        if self.is_open:
            await self.windows.begin(self._drop)
        nodes = await p.look_to_decide()
        charge(p)
        if self.tasks is not None:
            self.tasks.refresh(nodes)
        now = p.now()
        waiting = (*self.with_windows(), *self._growth()) if self.is_open else ()
        over = {each.id for each in waiting if each.is_over(now)}  # their refusals name every node
        verdicts = self._plan(waiting, nodes, over)
        self._verdicts = {verdict.waiting.id: verdict for verdict in verdicts if not verdict.waiting.ask.grows}
        # There is no await from the look to here: no other request can have taken what the plan found.
        begun = [
            (v.waiting, begin_grant(p, v.grants, nodes, v.waiting.id))
            for v in verdicts
            if v.grants and (self.tasks is None or self.tasks.may_have(v.waiting, {grant.source for grant in v.grants}))
        ]
        self.windows.report(verdicts)
        changed = [self._reclaim(v.waiting, v.preemption) for v in verdicts if v.preemption is not None]
        if any(changed):
            await p.try_commit()
        if begun:
            await asyncio.gather(*(self._admit(waiting, lease) for waiting, lease in begun))
        await self._let_go(now, nodes)

    async def _admit(self, waiting: Waiting, lease: Lease) -> None:
        """If the source was busy after all, the request stays queued. A caller on the connection gets the error."""
        try:
            granted = await carry_out(self._p, lease)
        except Exception as error:
            if waiting.is_durable:
                raise
            self._end(waiting, error)
            return
        if granted is None:
            return
        answer = self._drop(waiting.id)
        if waiting.is_durable:
            with contextlib.suppress(StoreBroken):  # the lease is on disk, and takes precedence
                await self._p.commit_sharing()
        if answer is not None and not answer.done():
            answer.set_result(granted)

    def _reclaim(self, waiting: Waiting, plan: Preemption) -> bool:
        """Reclaim what yields to a request, if the time has come. True: the caller commits."""
        p, now = self._p, self._p.now()
        if plan.at > now:
            return False
        if self._may_not_be_seen(waiting.id, now):
            if waiting.until is not None:  # a later round sees what became of that
                self._keep(replace(waiting, until=max(waiting.until, now + _SEEN_AFTER)))
            return False
        self._preemption_waits.pop(waiting.id, None)
        for victim in plan.due(now):
            reclaim(p, victim, *why_it_yields(victim, waiting, plan.reason, now), units=plan.takes.get(victim.id))
        self._keep(patient_for(waiting, plan))
        return True

    def _may_not_be_seen(self, request_id: str, now: datetime) -> bool:
        """Whether capacity returned a moment ago and may not be visible yet.

        A request postpones its preemption only briefly for that: if boosts end all the time, it would wait for ever.
        """
        if now >= self._p.last_return + _SEEN_AFTER:
            return False
        return now < self._preemption_waits.setdefault(request_id, now) + 2 * _SEEN_AFTER

    def _keep(self, waiting: Waiting) -> None:
        """Let it wait on as it is now, unless it waits no more."""
        if waiting.id in self._p.sharing.waiting:
            self._p.sharing.waiting[waiting.id] = waiting

    async def _drop_moot(self) -> None:
        """Drop requests that would replace a lost part of a boost that has ended since."""
        p = self._p
        moot = [each for each in p.sharing.waiting.values() if each.ask.joins and not self._is_active(each.ask.joins)]
        for waiting in moot:
            self._drop(waiting.id)
            message = f"{waiting.ask.describe()}: the boost {waiting.ask.joins[:8]} has ended"
            p.journal.note("unqueued", message, request_id=waiting.id)
        if moot:
            await p.commit_sharing()

    def _is_active(self, lease_id: str) -> bool:
        lease = self._p.ledger.get(lease_id)
        return lease is not None and not lease.is_winding_down

    async def _let_go(self, now: datetime, nodes: NodeTable) -> None:
        over = [each for each in self._p.sharing.waiting.values() if each.is_over(now)]
        if self.is_open:  # a request that came during this round is decided in the next one
            over = [each for each in over if each.id in self._verdicts]
        for waiting in over:
            why = self._why_not(waiting, nodes)
            self._end(waiting, why)
            if waiting.is_durable and not waiting.is_for_a_task:  # no caller waits for the answer
                message = f"{waiting.ask.describe()}: its wait is over; {next(iter(why.because), why.message)}"
                self._p.journal.note("unqueued", message, request_id=waiting.id)
        if any(each.is_durable for each in over):
            await self._p.commit_sharing()

    def _why_not(self, waiting: Waiting, nodes: NodeTable) -> GridError:
        try:
            check_names(waiting.ask, nodes)
        except GridError as error:
            return error
        verdict = self._verdicts.get(waiting.id)
        if verdict is None:  # only a closed queue decides nothing
            return _stopping()
        return refusal(verdict, self._p.now())


def _stopping() -> Refused:
    return Refused(
        "Grid is stopping, and grants no boosts",
        because=["all lent capacity is being returned"],
        try_next="Retry once grid has started again; if boosts in use keep it from stopping, it continues by itself.",
    )
