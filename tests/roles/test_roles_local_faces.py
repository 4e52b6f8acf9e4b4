"""What members meet in local mode is what they meet with Ray: tests/integration/test_roles_peers.py asks the same."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from role_faces import CHECKS, faces

from distributed_grid.errors import InvalidRole
from distributed_grid.roles import LocalRun, RoleSpec, Workload


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


def test_a_peer_is_whoever_has_its_rank_and_one_that_is_gone_is_told_by_the_reference() -> None:
    class Watcher:
        def on_peers(self, peers: Any) -> None:
            self.known = max(getattr(self, "known", ()), peers["counter"], key=len)

        def ask(self) -> Any:
            ref = self.known[1].total.remote()
            return ref.result() if ref.lost is None else ref.lost

    roles = (RoleSpec("counter", cls="collections:Counter", count=(1, 2)), RoleSpec("watcher", cls=Watcher))
    with LocalRun(Workload("w", roles)) as run:
        told = []
        for count in (2, 1, 2):
            run.scale("counter", count)
            told += run["watcher"].call("ask")
        assert told == [0, "counter was scaled to 1", 0]
