"""Generator methods in local mode: a reference for each value while the method runs, as in Ray."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Self

from distributed_grid.roles.local.refs import LocalRef, Work


class LocalStream(LocalRef):
    """The output of a generator, for `for` and `async for`: references in order, each as soon as it is there.

    If the generator raises, its last reference carries the error. As a reference, the stream is settled at once and is
    its own value.
    """

    def __init__(self) -> None:
        super().__init__()
        self._steps: deque[Future[LocalRef | None]] = deque([Future()])
        """The references that were not read yet, and one more step to wait for. None: the end."""
        self._changing = threading.Lock()
        self.give(None)

    def result(self, timeout: float | None = None) -> Self:
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> LocalRef:
        found = self._steps[0].result()
        if found is None:
            raise StopIteration
        self._steps.popleft()
        return found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LocalRef:
        found = await asyncio.shield(asyncio.wrap_future(self._steps[0]))
        if found is None:
            raise StopAsyncIteration
        self._steps.popleft()
        return found

    def add(self, ref: LocalRef) -> bool:
        """False: the stream has ended, since its member was lost."""
        with self._changing:
            last = self._steps[-1]
            if last.done():
                return False
            self._steps.append(Future())
        last.set_result(ref)
        return True

    def end(self, last: LocalRef | None = None) -> None:
        """End the stream, with or without one more reference. Nothing that the generator yields comes after it."""
        with self._changing:
            step = self._steps[-1]
            if step.done():
                return
            if last is not None:
                self._steps.append(Future())
                self._steps[-1].set_result(None)
            step.set_result(last)


class StreamFeed(LocalRef):
    """The call of a generator method on the worker's side: it fills a stream."""

    def __init__(self, stream: LocalStream) -> None:
        super().__init__()
        self._stream = stream

    def settle(self, work: Work) -> None:
        with self._until_over():
            for value in work():
                if not self._stream.add(_given(value)):
                    return

    async def settle_async(self, work: Work) -> None:
        with self._until_over():
            values = work()
            if not isinstance(values, AsyncIterable):
                return self.settle(lambda: values)
            async for value in values:
                if not self._stream.add(_given(value)):
                    return

    @contextmanager
    def _until_over(self) -> Iterator[None]:
        """Ends the stream with the block, unless it has ended: whatever the block raises is for the caller."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 (see above)
            self.fail(error)
        else:
            self._over()

    def fail(self, error: BaseException) -> None:
        last = LocalRef()
        last.lost = self.lost
        last.fail(error)
        self._over(last)

    def _over(self, last: LocalRef | None = None) -> None:
        self._stream.end(last)
        self.give(None)


def _given(value: Any) -> LocalRef:
    ref = LocalRef()
    ref.settle(lambda: value)
    return ref
