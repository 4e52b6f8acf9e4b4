"""The workers that run a member's calls in local mode: its own threads, or its own event loop, as in Ray."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from distributed_grid.roles.calls.endpoints import EndpointUnavailable
from distributed_grid.roles.local.refs import LocalRef, Work


class Worker(Protocol):
    @property
    def running(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    def submit(self, ref: LocalRef, work: Work) -> None:
        """Queue a call, in order of arrival. Raises `EndpointUnavailable` when the worker is closed."""

    def in_background(self, ref: LocalRef, work: Work) -> None:
        """Run beside the calls, however busy the worker is."""

    def close(self, why: str, *, finish: bool) -> None:
        """Accept no more calls. Calls that run or wait are lost, unless `finish` allows them to end."""


class ThreadWorker:
    """At most so many threads, each started when there is work for it. None of them keeps the process alive."""

    def __init__(self, name: str, concurrency: int) -> None:
        self._name, self._concurrency = name, concurrency
        self._queue: deque[tuple[LocalRef, Work]] = deque()
        self._running: set[LocalRef] = set()
        self._threads = self._idle = 0
        self._closed = False
        self._changed = threading.Condition()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def submit(self, ref: LocalRef, work: Work) -> None:
        with self._changed:
            if self._closed:
                raise EndpointUnavailable
            self._queue.append((ref, work))
            if self._idle < len(self._queue) and self._threads < self._concurrency:
                self._threads += 1
                _thread(self._name, self._serve)
            self._changed.notify()

    def in_background(self, ref: LocalRef, work: Work) -> None:
        if self._closed:
            raise EndpointUnavailable
        _thread(f"{self._name} aside", lambda: ref.settle(work))

    def close(self, why: str, *, finish: bool) -> None:
        with self._changed:
            self._closed = True
            lost = [] if finish else [*(ref for ref, _ in self._queue), *self._running]
            if not finish:
                self._queue.clear()
            self._changed.notify_all()
        for ref in lost:
            ref.lose(why)

    def _serve(self) -> None:
        while (taken := self._take()) is not None:
            ref, work = taken
            if not ref.done():
                ref.settle(work)
            with self._changed:
                self._running.discard(ref)

    def _take(self) -> tuple[LocalRef, Work] | None:
        with self._changed:
            self._idle += 1
            while not self._queue and not self._closed:
                self._changed.wait()
            self._idle -= 1
            if not self._queue:
                return None
            taken = self._queue.popleft()
            self._running.add(taken[0])
            return taken


class LoopWorker:
    """One event loop, for a class with async methods. Its other methods also run in the loop, and block it."""

    def __init__(self, name: str, concurrency: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._room = asyncio.Semaphore(concurrency)
        self._refs: set[LocalRef] = set()
        self._tasks: dict[asyncio.Task[None], LocalRef] = {}
        self._closed = False
        self._changing = threading.Lock()
        self.running = 0
        _thread(name, self._serve)

    @property
    def waiting(self) -> int:
        return max(0, len(self._refs) - self.running)

    def submit(self, ref: LocalRef, work: Work) -> None:
        self._start(ref, lambda: self._in_turn(ref, work))

    def in_background(self, ref: LocalRef, work: Work) -> None:
        self._start(ref, lambda: ref.settle_async(work))

    def close(self, why: str, *, finish: bool) -> None:
        with self._changing:
            if self._closed:
                return
            self._closed = True
            lost = [] if finish else [*self._refs]
        for ref in lost:  # here, since a method may block the loop
            ref.lose(why)
        self._loop.call_soon_threadsafe(self._end)

    def _start(self, ref: LocalRef, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with self._changing:
            if self._closed:
                raise EndpointUnavailable
            self._refs.add(ref)
            self._loop.call_soon_threadsafe(self._begin, ref, begin)

    def _begin(self, ref: LocalRef, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._loop.create_task(begin())
        self._tasks[task] = ref
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        with self._changing:
            self._refs.discard(self._tasks.pop(task))
        if self._closed and not self._refs:  # including those that are yet to begin
            self._loop.stop()

    async def _in_turn(self, ref: LocalRef, work: Work) -> None:
        async with self._room:
            self.running += 1
            try:
                if not ref.done():
                    await ref.settle_async(work)
            finally:
                self.running -= 1

    def _end(self) -> None:
        """Cancel what was given up. The loop ends with the last call that may finish."""
        for task, ref in self._tasks.items():
            if ref.done():
                task.cancel()
        if not self._refs:
            self._loop.stop()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


def _thread(name: str, target: Callable[[], None]) -> None:
    threading.Thread(target=target, name=name, daemon=True).start()
