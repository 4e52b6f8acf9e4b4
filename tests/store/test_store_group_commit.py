"""Concurrent commits share writes, and no call returns before its change is written."""

import asyncio
import threading

import pytest

from distributed_grid.threads import GroupCommit


class Ledger:
    """Counts up; each write waits until the test lets it through, and keeps what it wrote."""

    def __init__(self) -> None:
        self.value = 0
        self.written: list[int] = []
        self.started = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self.error: Exception | None = None
        self.commits = GroupCommit(self.write, lambda: self.value)

    def write(self, snapshot: int) -> None:
        self.started.release()
        assert self.gate.acquire(timeout=60)
        if self.error is not None:
            raise self.error
        self.written.append(snapshot)

    async def change(self) -> int:
        self.value += 1
        mine = self.value
        await self.commits.commit()
        assert self.written[-1] >= mine
        return mine

    async def write_began(self) -> None:
        assert await asyncio.to_thread(self.started.acquire, timeout=60)


def test_callers_of_the_same_moment_share_one_write() -> None:
    async def scene() -> None:
        ledger = Ledger()
        ledger.gate.release()
        await asyncio.gather(*(ledger.change() for _ in range(100)))
        assert ledger.written == [100]

    asyncio.run(scene())


def test_a_caller_that_comes_during_a_write_waits_for_the_next_one() -> None:
    async def scene() -> None:
        ledger = Ledger()
        first = asyncio.create_task(ledger.change())
        await ledger.write_began()
        late = [asyncio.create_task(ledger.change()) for _ in range(50)]
        await asyncio.sleep(0)

        ledger.gate.release()
        await first
        await ledger.write_began()
        assert not any(task.done() for task in late)
        assert ledger.written == [1]

        ledger.gate.release()
        await asyncio.gather(*late)
        assert ledger.written == [1, 51]

    asyncio.run(scene())


def test_an_error_reaches_all_callers_of_that_write_and_no_others() -> None:
    async def scene() -> None:
        ledger = Ledger()
        ledger.error = OSError("disk full")
        failing = [asyncio.create_task(ledger.change()) for _ in range(3)]
        await ledger.write_began()
        later = asyncio.create_task(ledger.change())
        await asyncio.sleep(0)
        ledger.gate.release()
        outcomes = await asyncio.gather(*failing, return_exceptions=True)
        assert [str(outcome) for outcome in outcomes] == ["disk full"] * 3

        ledger.error = None
        ledger.gate.release()
        await later
        assert ledger.written == [4]

    asyncio.run(scene())


def test_an_error_of_the_snapshot_reaches_the_caller_too() -> None:
    def no_snapshot() -> int:
        raise RuntimeError("no snapshot")

    async def scene() -> None:
        commits = GroupCommit(lambda _: None, no_snapshot)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no snapshot"):
                await commits.commit()

    asyncio.run(scene())


def test_a_caller_that_gives_up_does_not_stop_the_write() -> None:
    async def scene() -> None:
        ledger = Ledger()
        gone = asyncio.create_task(ledger.change())
        stays = asyncio.create_task(ledger.change())
        await ledger.write_began()
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        ledger.gate.release()
        assert await stays == 2
        assert ledger.written == [2]

    asyncio.run(scene())


def test_writes_never_overlap_and_always_hold_what_was_changed_before() -> None:
    async def scene() -> None:
        value = 0
        writing = threading.Lock()
        written: list[int] = []

        def write(snapshot: int) -> None:
            assert writing.acquire(blocking=False)
            written.append(snapshot)
            writing.release()

        commits = GroupCommit(write, lambda: value)

        async def worker() -> None:
            nonlocal value
            for _ in range(20):
                value += 1
                mine = value
                await commits.commit()
                assert written[-1] >= mine

        await asyncio.gather(*(worker() for _ in range(20)))
        assert written == sorted(written)
        assert len(written) <= 40

    asyncio.run(scene())
