"""Threads for blocking calls, in separate pools: no caller can take the threads that the engine needs.

`ENGINE`, `DISK`, `AUDIT`, `GRANTS` and `NODE_TASKS` belong to the engine. `SLOW`, `READING` and `AUDITS` do what
callers of the API ask for and wait for: each has a bounded number of threads and of waiting calls, which it takes in
turns from all callers. A full pool refuses further calls.
"""

import asyncio
import contextvars
import threading
import time
import types
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, ParamSpec, TypeVar

from distributed_grid.errors import TooBusy, TooManyRequests

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")
S = TypeVar("S")

caller: Final[contextvars.ContextVar[str | None]] = contextvars.ContextVar("grid_caller", default=None)
"""The id of the token on whose behalf a coroutine runs, set when a request is admitted. None: the engine's own work."""

used: Final[contextvars.ContextVar[Callable[[float], None] | None]] = contextvars.ContextVar("grid_used", default=None)
"""Counts the CPU seconds that a caller's request uses. Call it in the event loop only."""

SURVEYS: Final = "surveys"
ALL_AUDITS: Final = "audits"
LOG_READS: Final = "reads of the audit log"
_SHARED: Final = {SURVEYS: "surveys of the nodes' processes", ALL_AUDITS: "audits", LOG_READS: LOG_READS}
"""The names under which calls that all callers share take their turns, and what such calls are. Token ids are not
words, so no caller has one of these names."""

_RETRY_AFTER_S: Final = 5


class Pool:
    """Threads that only the engine uses, first come, first served."""

    def __init__(self, name: str, threads: int) -> None:
        self.executor = ThreadPoolExecutor(threads, f"grid-{name}")

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(
            self.executor, lambda: context.run(call, *args, **kwargs)
        )

    def begin(self, call: Callable[[], None]) -> None:
        """Run a call without waiting for it. It must not raise."""
        asyncio.get_running_loop().run_in_executor(self.executor, call)


@dataclass
class Turns:
    """At most `at_once` turns in all and `of_one` per caller; other calls wait, and callers take turns."""

    at_once: int
    of_one: int
    waiting_of_one: int
    waiting: int
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _running: Counter[str] = field(default_factory=Counter)
    _queues: "OrderedDict[str, deque[Future[None]]]" = field(default_factory=OrderedDict)
    """The caller whose turn is next comes first."""

    @property
    def running_now(self) -> int:
        with self._lock:
            return self._running.total()

    @property
    def waiting_now(self) -> int:
        with self._lock:
            return sum(map(len, self._queues.values()))

    def ask(self, who: str) -> "Future[None]":
        """A future that is done at the caller's turn; raises `TooManyRequests` or `TooBusy` if the queue is full."""
        turn: Future[None] = Future()
        with self._lock:
            if len(self._queues.get(who, ())) >= self.waiting_of_one:
                if who in _SHARED:
                    raise TooBusy(
                        f"{self.waiting_of_one} {_SHARED[who]} are already waiting",
                        because=[
                            f"{self._running[who]} are in progress, and grid makes at most {self.of_one} at once, "
                            "for all callers"
                        ],
                        try_next=f"Retry in {_RETRY_AFTER_S} s.",
                        retry_after_s=_RETRY_AFTER_S,
                    )
                raise TooManyRequests(
                    f"{self.waiting_of_one} of your slow calls are already waiting",
                    because=[
                        f"{self._running[who]} are in progress, and grid runs at most {self.of_one} per token at once"
                    ],
                    try_next=f"Wait for one of them to end, then retry (in {_RETRY_AFTER_S} s, for example).",
                    retry_after_s=_RETRY_AFTER_S,
                )
            if self.waiting_now >= self.waiting:
                raise TooBusy(
                    "Too many slow calls are waiting for the controller",
                    because=[f"{self.running_now} are in progress and {self.waiting_now} wait"],
                    try_next=f"Retry in {_RETRY_AFTER_S} s.",
                    retry_after_s=_RETRY_AFTER_S,
                )
            self._queues.setdefault(who, deque()).append(turn)
            self._give_turns()
        return turn

    def done(self, who: str) -> None:
        """End a turn; the next one begins."""
        with self._lock:
            self._running[who] -= 1
            if not self._running[who]:
                del self._running[who]
            self._give_turns()

    def _give_turns(self) -> None:
        """Give a turn to every caller that can have one now; the lock is held."""
        while self.running_now < self.at_once:
            who = next((who for who in self._queues if self._running[who] < self.of_one), None)
            if who is None:
                return
            queue = self._queues[who]
            turn = queue.popleft()
            if queue:
                self._queues.move_to_end(who)
            else:
                del self._queues[who]
            if turn.set_running_or_notify_cancel():  # otherwise its caller is gone
                self._running[who] += 1
                turn.set_result(None)


class FairPool:
    """Threads for what callers of the API ask for, in turns. The CPU time of a call counts as its caller's."""

    def __init__(self, name: str, turns: Turns) -> None:
        self.turns = turns
        self._pool = Pool(name, turns.at_once)

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        who = caller.get()
        if who is None:
            return await self._pool.run(call, *args, **kwargs)
        turn = self.turns.ask(who)
        try:
            await asyncio.wrap_future(turn)
        except asyncio.CancelledError:
            if not turn.cancel():  # the turn came at the same moment
                self.turns.done(who)
            raise

        loop, count = asyncio.get_running_loop(), used.get()

        def work() -> T:
            began = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.turns.done(who)
                if count is not None:
                    with suppress(RuntimeError):  # the loop is closed by now
                        loop.call_soon_threadsafe(count, time.thread_time() - began)

        # A caller that goes away does not free its thread: the turn lasts as long as the work.
        return await asyncio.shield(asyncio.ensure_future(self._pool.run(work)))


@types.coroutine
def timed(call: Coroutine[Any, Any, T], took: Callable[[float], None]) -> Generator[Any, Any, T]:
    """Await a call; report after each of its steps for how many CPU seconds it kept the event loop busy."""
    go_on, given = call.send, None
    while True:
        began = time.thread_time()
        try:
            awaited = go_on(given)
        except StopIteration as done:
            answer: T = done.value
            return answer
        finally:
            took(time.thread_time() - began)
        try:
            go_on, given = call.send, (yield awaited)
        except BaseException as error:  # noqa: BLE001 - it belongs to the call: mostly a cancellation
            go_on, given = call.throw, error


class Shared(Generic[K, T]):
    """A caller that asks again for what it is already waiting for gets the same answer: no second call is made.

    For `lasts_s` seconds, every caller that asks for the same gets the same answer. With `of`, all callers also share
    a call that is still running; such calls take their turns under that name and delay only each other.
    """

    def __init__(self, lasts_s: float = 0.0, of: str | None = None) -> None:
        self.lasts_s = lasts_s
        self._of = of
        self._under_way: dict[tuple[str | None, K], asyncio.Task[T]] = {}
        self._answers: dict[K, tuple[float, T]] = {}

    async def run(self, what: K, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        now = asyncio.get_running_loop().time()
        self._answers = {each: last for each, last in self._answers.items() if now - last[0] < self.lasts_s}
        if what in self._answers:
            return self._answers[what][1]
        key = (self._of or caller.get(), what)
        if (task := self._under_way.get(key)) is None:
            task = self._under_way[key] = asyncio.ensure_future(self._ask(what, call))
            task.add_done_callback(lambda _: self._under_way.pop(key))
        return await asyncio.shield(task)

    def forget(self) -> None:
        """Discard the answers: they no longer hold."""
        self._answers.clear()

    async def _ask(self, what: K, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        began = asyncio.get_running_loop().time()
        caller.set(self._of or caller.get())
        count = used.get()
        answer = await (call() if count is None else timed(call(), count))
        self._answers[what] = (began, answer)
        return answer


# These mostly wait for Ray or the disk, so there are more of them than cores.
ENGINE: Final = Pool("engine", 16)
"""Views of the cluster, rounds of transfers, returns: each has a limit on its time."""
DISK: Final = Pool("disk", 4)
AUDIT: Final = Pool("audit", 1)
"""Writes the audit log: no other write waits for its disk."""
GRANTS: Final = Pool("grant", 8)
"""Reservations, each of which may wait for seconds for its source."""
NODE_TASKS: Final = Pool("node-task", 16)
"""Calls that others can prolong: holders' hooks, probes, processes that were moved."""
SLOW: Final = FairPool("slow", Turns(at_once=8, of_one=4, waiting_of_one=16, waiting=128))
"""Calls that may take minutes: private clusters, surveys of the processes of all nodes."""
READING: Final = FairPool("reading", Turns(at_once=4, of_one=1, waiting_of_one=32, waiting=256))
"""Calls that read much and change nothing: the audit log, records of runs, metrics."""
AUDITS: Final = FairPool("audit", Turns(at_once=4, of_one=1, waiting_of_one=16, waiting=64))
"""An auditor's calls to the nodes, each of which may stay silent for seconds. Separate from `SLOW`, so that no audit
waits for private clusters to start."""


class GroupCommit(Generic[S, T]):
    """Concurrent changes share one write, and concurrent looks share one look.

    Writes snapshots in a worker thread, one at a time, for any number of callers of one event loop.
    """

    def __init__(
        self,
        write: Callable[[S], T],
        snapshot: Callable[[], S],
        pool: Pool = DISK,
    ) -> None:
        self._write = write
        self._snapshot = snapshot
        self._pool = pool
        self._current: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def commit(self) -> T:
        """Return once everything up to this call is written; raise what that write raised.

        A caller that comes during a write waits for the next one: the snapshot of the present one may be older than the
        call. A cancelled caller does not affect the others.
        """
        if self._next is None or self._next.done():
            self._next = asyncio.create_task(self._write_after(self._current))
        return await asyncio.shield(self._next)

    async def _write_after(self, earlier: "asyncio.Task[T] | None") -> T:
        if earlier is not None and not earlier.done():
            await asyncio.wait([earlier])
        self._current, self._next = self._next, None
        return await self._pool.run(self._write, self._snapshot())
