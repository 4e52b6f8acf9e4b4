"""Windows: created, cancelled, and requested as they begin. `decide/queue/windows.py` puts them into every plan.

An occurrence is requested in the same write of `sharing.json` that records it as begun, so a restart neither forgets it
nor requests it twice. From then on it is a request like any other that waits without a caller.
"""

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from distributed_grid.decide.queue.admission import QueuePlan, Verdict
from distributed_grid.decide.queue.windows import due, horizon, promised, slept_through
from distributed_grid.errors import Refused, StoreBroken, WindowExists, WindowNotFound, did_you_mean
from distributed_grid.leases.grant import check_names, new_id, refusal
from distributed_grid.leases.rules import numbers, rules_of_one_look
from distributed_grid.leases.state import EngineContext
from distributed_grid.model.leases import Cause, Lease
from distributed_grid.model.requests import Ask, Waiting
from distributed_grid.model.times import minute, stamp
from distributed_grid.model.windows import MOST_WINDOWS, Window, check_window

_NEAR: Final = timedelta(minutes=1)
"""This long before the longest grace period would have to begin, the queue looks at windows every second."""
_NEAR_S: Final = 1.0
_FAR_S: Final = 60.0
_LOCAL_TIME: Final = Path("/etc/localtime")


def local_zone() -> str:
    """The name of this machine's time zone; UTC if it has none."""
    names = [os.environ.get("TZ", "").removeprefix(":")]
    with contextlib.suppress(OSError):
        names.append(str(_LOCAL_TIME.resolve(strict=True)).rpartition("zoneinfo/")[2])
    for name in names:
        with contextlib.suppress(ValueError, KeyError, OSError):
            if name:
                return ZoneInfo(name).key
    return "UTC"


def _next_step(window: Window, now: datetime) -> datetime:
    """When it begins, or is over for good."""
    current = window.next_one(now)
    if current is None or due(window, now) is not None:
        return now
    return window.next_begin(now) or current.end


class Windows:
    """The windows in `p.sharing.windows`."""

    def __init__(self, parts: EngineContext) -> None:
        self._p = parts
        self._late: set[str] = set()
        """The requests that were reported because they still wait after their windows began."""

    # -- created and cancelled --------------------------------------------------------------------------------

    async def create(self, name: str, ask: Ask, at: str, zone: str | None, *, who: str) -> Window:
        """Promise the capacity from now on; raises why that is not possible."""
        p = self._p
        if name in p.sharing.windows:
            raise WindowExists(
                f"A window {name} exists already",
                try_next=f"To replace it: grid reserve cancel {name}; or name it otherwise",
            )
        if len(p.sharing.windows) >= MOST_WINDOWS:
            raise Refused(
                f"There are {MOST_WINDOWS} windows, the most in one cluster",
                try_next="Cancel those that are not needed: grid reserve ls",
            )
        ask = replace(ask, cause=Cause.WINDOW, label=ask.label or f"window {name}", idempotency_key=None)
        window = check_window(Window(name, ask, at, zone or local_zone(), p.now()))
        nodes = await p.look()
        check_names(ask, nodes)
        walk = QueuePlan(nodes, p.ledger.parts(), p.ledger.usage, rules_of_one_look(p), p.now(), numbers=numbers(p))
        verdict = walk.decide(Waiting(new_id(), ask, p.now()), 1, explained=True)
        if verdict.is_hopeless:
            raise refusal(verdict, p.now())
        if name in p.sharing.windows:
            raise WindowExists(f"A window {name} was created a moment ago")
        p.sharing.windows[name] = window
        try:
            await p.commit_sharing()
        except BaseException:
            p.sharing.windows.pop(name, None)
            raise
        p.journal.note("window_created", window.describe(), node=ask.target, who=who)
        p.something_changed()
        return window

    def find(self, name: str) -> Window:
        found = self._p.sharing.windows.get(name)
        if found is None:
            raise WindowNotFound(
                f"No window {name!r:.80}{did_you_mean(name, self._p.sharing.windows)}",
                try_next="To see all windows: grid reserve ls",
            )
        return found

    async def cancel(self, window: Window, drop: Callable[[str], object], *, who: str) -> Lease | None:
        """End the promise, and withdraw what it requests now. Returns the lease of the occurrence in progress."""
        p = self._p
        p.sharing.windows.pop(window.name, None)
        try:
            await p.commit_sharing()
        except BaseException:
            p.sharing.windows.setdefault(window.name, window)
            raise
        current = "" if window.begun_at is None else window.id_of(window.begun_at)
        if current in p.sharing.waiting and not p.ledger.is_being_granted(current):
            drop(current)
            with contextlib.suppress(StoreBroken):  # if a restart brings it back, it ends with the window
                await p.commit_sharing()
        p.journal.note("window_cancelled", window.describe(), node=window.ask.target, who=who)
        p.something_changed()
        return self.lease_of(window)

    def lease_of(self, window: Window) -> Lease | None:
        """The lease of the last occurrence that began, while it holds capacity."""
        return None if window.begun_at is None else self._p.ledger.get(window.id_of(window.begun_at))

    # -- in the queue -----------------------------------------------------------------------------------------

    def promised(self, longest_s: float | None) -> tuple[Waiting, ...]:
        """The occurrences that have not begun, as far as leases of this length may meet them.

        None: there is no request, so only leases may be in the way of those that begin soon.
        """
        now = self._p.now()
        return self.until(now + timedelta(seconds=self._near_s) if longest_s is None else horizon(longest_s, now))

    def until(self, end: datetime) -> tuple[Waiting, ...]:
        """The occurrences that begin before then."""
        p = self._p
        return promised(p.sharing.windows.values(), p.now(), end, p.sharing.waiting) if p.sharing.windows else ()

    @property
    def _near_s(self) -> float:
        return self._p.longest_grace_s + _NEAR.total_seconds()

    def may_bound(self, ask: Ask) -> bool:
        """Whether a window begins before a lease would end that is granted now."""
        return self.begin_before(self._p.now() + timedelta(seconds=ask.duration_s))

    def begin_before(self, end: datetime) -> bool:
        """Whether any window begins from now on and before then."""
        p = self._p
        begins = (window.next_begin(p.now()) for window in p.sharing.windows.values())
        return any(begin is not None and begin < end for begin in begins)

    def pause_s(self) -> float | None:
        """How long the queue may leave the windows alone; None: until there is news."""
        p = self._p
        if not p.sharing.windows:
            return None
        now = p.now()
        left_s = min((_next_step(window, now) - now).total_seconds() for window in p.sharing.windows.values())
        near_s = self._near_s
        return min(_NEAR_S, left_s) if left_s <= near_s else min(_FAR_S, left_s - near_s)

    @property
    def are_near(self) -> bool:
        """Whether leases may have to yield to a window now, or one begins."""
        pause_s = self.pause_s()
        return pause_s is not None and pause_s <= _NEAR_S

    async def begin(self, drop: Callable[[str], object]) -> None:
        """Request what begins, with the time that is left; end the requests of what is over."""
        p = self._p
        changed = False
        for waiting in list(p.sharing.waiting.values()):
            if waiting.occurrence is None or p.ledger.is_being_granted(waiting.id):
                continue
            if p.now() >= waiting.occurrence.end:
                drop(waiting.id)
                self._missed(waiting.occurrence.window, waiting.occurrence.begin, "its capacity did not come in time")
                changed = True
            else:
                left_s = (waiting.occurrence.end - p.now()).total_seconds()
                p.sharing.waiting[waiting.id] = replace(waiting, ask=replace(waiting.ask, duration_s=left_s))
        for window in list(p.sharing.windows.values()):
            changed |= self._begin(window, p.now())
        if changed:
            with contextlib.suppress(StoreBroken):  # a grant writes the boost file first, which fails as well
                await p.commit_sharing()

    def _begin(self, window: Window, now: datetime) -> bool:
        p = self._p
        changed = False
        for gone in slept_through(window, now):
            changed = True
            p.sharing.windows[window.name] = replace(window, begun_at=gone.begin)
            self._missed(window.name, gone.begin, "grid was not running")
            window = p.sharing.windows[window.name]
        occurrence = due(window, now)
        if occurrence is not None:
            changed = True
            waiting = window.request(occurrence, now)
            p.sharing.windows[window.name] = replace(window, begun_at=occurrence.begin)
            if p.ledger.get(waiting.id) is None:
                p.sharing.waiting[waiting.id] = waiting
            message = f"{window.name}: {window.ask.describe()} until {stamp(occurrence.end)}"
            p.journal.note(
                "window_begun", message, node=window.ask.target, who=window.ask.requester, request_id=waiting.id
            )
        if window.next_one(now) is None:
            changed = True
            del p.sharing.windows[window.name]
            p.journal.note("window_over", f"{window.name}: it does not begin again", node=window.ask.target)
        return changed

    def _missed(self, name: str, begin: datetime, why: str) -> None:
        p = self._p
        window = p.sharing.windows.get(name)
        if window is not None:
            p.sharing.windows[name] = replace(window, missed=window.missed + 1)
        message = f"{name}: the window of {minute(begin)} was missed: {why}"
        p.journal.note("window_missed", message, node=None if window is None else window.ask.target)

    def report(self, verdicts: tuple[Verdict, ...]) -> None:
        """Report each window that has begun without its capacity, once."""
        p = self._p
        for verdict in verdicts:
            one = verdict.waiting
            is_late = one.occurrence is not None and not one.is_promise(p.now()) and not verdict.grants
            if is_late and one.id not in self._late and one.occurrence is not None:
                self._late.add(one.id)
                message = f"{one.occurrence.window} begins late: {verdict.reason}"
                p.journal.note("window_late", message, node=one.ask.target, who=one.ask.requester, request_id=one.id)
        self._late &= p.sharing.waiting.keys()
