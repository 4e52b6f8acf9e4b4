"""What members meet in local mode is what they meet with Ray: tests/integration/test_roles_peers.py asks the same."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from live_grid import until
from role_faces import CHECKS, faces, only_first

from distributed_grid.errors import InvalidRole
from distributed_grid.roles import LocalRun, RoleSpec, Scaling, Workload
from distributed_grid.roles.local.members import LocalProcessSet
from distributed_grid.roles.local.refs import LocalRef
from distributed_grid.roles.local.streams import LocalStream


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_members_meet_the_same_as_with_ray(check: Callable[[Any, dict[str, Any]], None]) -> None:
    workload, config = faces()
    with LocalRun(workload) as run:
        check(run, config)


def test_a_config_that_cannot_be_copied_is_refused_as_it_would_be_by_ray() -> None:
    with pytest.raises(InvalidRole, match="config of the role a cannot be copied") as caught:
        LocalRun(Workload("w", (RoleSpec("a", cls="collections:Counter", config={"lock": threading.Lock()}),)))
    assert "lock" in caught.value.because[0]


def test_members_that_come_later_have_the_config_that_the_run_began_with() -> None:
    config = {"letters": 1}
    with LocalRun(Workload("w", (RoleSpec("a", cls="collections:Counter", config=config, count=(1, 2)),))) as run:
        config["letters"] = 2
        run.scale("a", 2)
        assert run["a"].call("total") == [1, 1]


@pytest.mark.parametrize("is_async", [False, True])
def test_what_on_peers_returns_is_not_used(is_async: bool) -> None:
    class Plain:
        def on_peers(self, peers: Any) -> Any:
            return threading.Lock()

        def quick(self) -> int:
            return 1

    class Async(Plain):
        async def on_peers(self, peers: Any) -> Any:
            return threading.Lock()

    with LocalRun(Workload("w", (RoleSpec("a", cls=Async if is_async else Plain),))) as run:
        assert run["a"].call("quick") == [1]


class Endless:
    def forever(self) -> Iterator[int]:
        while True:
            yield 1


class AsyncEndless:
    async def forever(self) -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()


@pytest.mark.parametrize("cls", [Endless, AsyncEndless])
def test_a_stream_whose_member_is_lost_ends_and_says_so(cls: type) -> None:
    run = LocalRun(Workload("w", (RoleSpec("endless", cls=cls),)))
    stream = run["endless"][0].forever.remote()
    assert next(stream).result() == 1

    run.shutdown()

    *_, last = stream
    with pytest.raises(RuntimeError, match="shut down"):
        last.result()


def test_nothing_comes_after_the_last_reference_of_a_stream() -> None:
    stream, values = LocalStream(), [LocalRef() for _ in range(3)]
    assert stream.add(values[0])

    stream.end(values[1])

    assert not stream.add(values[2])
    stream.end()
    assert list(stream) == values[:2]


def test_a_peer_is_the_member_that_has_its_rank_and_one_that_is_gone_is_told_by_the_reference() -> None:
    class Watcher:
        def on_peers(self, peers: Any) -> None:
            self.known = max(getattr(self, "known", ()), peers["counter"], key=len)

        def ask(self) -> Any:
            ref = self.known[1].total.remote()
            return ref.result() if ref.lost is None else ref.lost

    roles = (RoleSpec("counter", cls="collections:Counter", count=(1, 2)), RoleSpec("watcher", cls=Watcher))
    with LocalRun(Workload("w", roles)) as run:
        reported = []
        for count in (2, 1, 2):
            run.scale("counter", count)
            reported += run["watcher"].call("ask")
        assert reported == [0, "counter was scaled down to 1", 0]


class Working:
    """Its calls end when they are let go, so that its queue is as long as a test wants it."""

    free = threading.Event()

    def work(self) -> bool:
        return Working.free.wait(120)


def test_a_role_follows_its_queue_up_and_down_and_no_call_is_lost() -> None:
    Working.free.clear()
    scaling = Scaling("queue", up_at=2, down_at=0.5, every_seconds=0.01, stable_seconds=0, cooldown_seconds=0)
    with LocalRun(Workload("w", (RoleSpec("worker", cls=Working, count=(1, 3), scaling=scaling),))) as run:
        begun = [run["worker"][0].work.remote() for _ in range(8)]
        until(lambda: len(run["worker"]) == 3, 10, "there are more, as long as calls wait")
        row = run.status()["roles"][0]
        assert row["up"] == 3 and row["scaling"].startswith("queue at ")

        Working.free.set()
        until(lambda: len(run["worker"]) == 1, 10, "they go when nothing waits")
        assert all(ref.result() for ref in begun)
        until(lambda: "worker was scaled down to 1" in str(run.status()["events"]), 10, "it is told")
        assert "worker was scaled up to 2" in str(run.status()["events"])


def test_a_role_follows_its_signal_after_an_unforeseen_error(monkeypatch: pytest.MonkeyPatch) -> None:
    count, counted = LocalProcessSet.count, iter(range(100_000))

    def fail_once(self: LocalProcessSet, role: str) -> int:
        if next(counted) == 0:
            raise RuntimeError("unforeseen")
        return count(self, role)

    monkeypatch.setattr(LocalProcessSet, "count", fail_once)
    scaling = Scaling(lambda: 9.0, up_at=2, down_at=1, every_seconds=0.01, stable_seconds=0, cooldown_seconds=0)
    with LocalRun(Workload("w", (RoleSpec("worker", cls=Working, count=(1, 3), scaling=scaling),))) as run:
        until(lambda: len(run["worker"]) == 3, 10, "it grows")
    assert next(counted) > 1


def test_a_role_that_cannot_grow_says_why_and_the_run_goes_on() -> None:
    scaling = Scaling(lambda: 9.0, up_at=2, down_at=1, every_seconds=0.01, stable_seconds=0, cooldown_seconds=60)
    with LocalRun(Workload("w", (RoleSpec("a", cls=only_first(), count=(1, 2), scaling=scaling),))) as run:
        until(lambda: "no disk" in str(run.status()["events"]), 10, "it is told")
        assert (run["a"].call("quick"), run.state) == ([1], "running")
