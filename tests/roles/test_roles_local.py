"""Whole workloads in one process: the same semantics as on Ray, without it."""

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from role_faces import only_first

from distributed_grid.errors import CallTimedOut, InvalidRole, MemberFailed, MemberLost, Refused
from distributed_grid.roles import RoleSpec, Workload
from distributed_grid.roles.local.run import LocalRun
from distributed_grid.roles.on_node.making import has_async_methods, make_instance, methods_of
from distributed_grid.roles.on_node.peers import ActorPeer, Directory, Identity, Peers


class Pool:
    def __init__(self, config: dict[str, int]) -> None:
        self.config, self.made_in = config, threading.current_thread().name
        self.items: list[Any] = []

    def put(self, item: Any) -> int:
        self.items.append(item)
        return len(self.items)

    def all(self) -> list[Any]:
        return self.items

    def settings(self) -> dict[str, int]:
        return self.config

    def thread(self) -> tuple[str, str]:
        return self.made_in, threading.current_thread().name

    def fail(self, said: str) -> None:
        raise ValueError(said)

    def uncopyable(self) -> Any:
        return threading.Lock()


class Worker:
    def __init__(self) -> None:
        self.peers: Peers
        self.told = 0

    def on_peers(self, peers: Peers) -> None:
        self.peers = peers
        self.told += 1

    def work(self, shard: int) -> int:
        pool = self.peers["pool"][0]
        return int(self.peers.fetch(pool.put.remote((self.peers.me.rank, shard))))

    def me(self) -> tuple[str, int, int, str, int]:
        me = self.peers.me
        return me.role, me.rank, me.world_size, me.run, self.told

    def ask_pool_to_fail(self) -> str:
        try:
            self.peers.fetch([self.peers["pool"][0].fail.remote("as it was")])
        except ValueError as error:
            return str(error)
        return ""


class Gate:
    """Methods that wait until the test lets them go."""

    opened = threading.Event()
    inside = threading.Semaphore(0)

    def wait(self) -> str:
        Gate.inside.release()
        Gate.opened.wait()
        return "let go"

    def quick(self) -> int:
        return 1


class Trainer:
    def __init__(self) -> None:
        self.inside, self.complete = 0, asyncio.Event()

    async def on_peers(self, peers: Peers) -> None:
        self.peers = peers

    async def step(self, x: int) -> int:
        size: int = await self.peers["pool"][0].put.remote(x)
        return size

    async def meet(self) -> int:
        """Comes back once three are inside at the same time."""
        self.inside += 1
        if self.inside == 3:
            self.complete.set()
        await self.complete.wait()
        return self.inside

    async def sleep_for_ever(self) -> None:
        Gate.inside.release()
        await asyncio.Event().wait()

    async def ask_sibling(self) -> tuple[str, int]:
        loader = self.peers.sibling("loader")
        return loader.plain(), await loader.later()


class Loader:
    def plain(self) -> str:
        return "plain"

    async def later(self) -> int:
        await asyncio.sleep(0)
        return 7


class Hasty:
    def __init__(self) -> None:
        raise OSError("no disk")


def spec(role: str, cls: Any, **more: Any) -> RoleSpec:
    return RoleSpec(role, cls=cls, **more)


POOL = spec("pool", Pool, config={"size": 3})


@pytest.fixture
def run() -> Iterator[LocalRun]:
    workload = Workload(
        "rl",
        (
            POOL,
            spec("worker", Worker, count=(2, 4)),
            spec("trainer", Trainer, colocation_group="training"),
            spec("loader", Loader, colocation_group="training"),
        ),
    )
    with LocalRun(workload, "run-1") as found:
        yield found


@pytest.fixture(autouse=True)
def gate() -> Iterator[None]:
    Gate.opened, Gate.inside = threading.Event(), threading.Semaphore(0)
    yield
    Gate.opened.set()


def test_a_group_is_had_with_its_class_said_as_well(run: LocalRun) -> None:
    assert [*run.group("worker", Worker)] == [*run["worker"]]


def test_members_call_each_other_and_results_are_in_rank_order(run: LocalRun) -> None:
    assert sorted(run["worker"].call("work", 5)) == [1, 2]
    assert sorted(run["worker"].map("work", range(6))) == [3, 4, 5, 6, 7, 8]
    assert run["trainer"].rank_zero.call("step", 9) == 9
    items = run["pool"][0].call("all")
    assert sorted(shard for _, shard in items[:8]) == [0, 1, 2, 3, 4, 5, 5, 5]
    assert items[8] == 9


def test_each_member_knows_who_it_is(run: LocalRun) -> None:
    assert run["worker"].call("me") == [("worker", 0, 2, "run-1", 1), ("worker", 1, 2, "run-1", 1)]


def test_a_class_gets_its_config_as_it_is_and_its_own_thread(run: LocalRun) -> None:
    pool = run["pool"][0]
    assert pool.call("settings") == {"size": 3}
    made_in, called_in = pool.call("thread")
    assert made_in == called_in == "run-1/pool/0"


def test_siblings_in_one_process_call_each_other_plainly(run: LocalRun) -> None:
    assert run["trainer"].call("ask_sibling") == [("plain", 7)]


def test_a_class_with_async_methods_works_on_many_calls_at_a_time(run: LocalRun) -> None:
    refs = [run["trainer"][0].meet.remote() for _ in range(3)]

    assert [ref.result() for ref in refs] == [3, 3, 3]


def test_a_failure_has_the_members_traceback_and_the_exception_itself(run: LocalRun) -> None:
    with pytest.raises(MemberFailed, match=r"pool 0 on .* failed in fail\(\): ValueError: too full") as caught:
        run["pool"].call("fail", "too full")

    assert isinstance(caught.value.cause, ValueError)
    lines = caught.value.remote_traceback.splitlines()
    assert "in fail" in lines[1], "it begins in the member's method"
    assert lines[-1] == "ValueError: too full"


def test_a_member_gets_what_another_raised_as_it_was(run: LocalRun) -> None:
    assert run["worker"][0].call("ask_pool_to_fail") == "as it was"


def test_arguments_and_results_are_copies_as_between_processes(run: LocalRun) -> None:
    mine, pool = [1], run["pool"][0]
    pool.call("put", mine)
    mine.append(2)
    pool.call("all").append("nothing to them")

    assert pool.call("all") == [[1]]
    with pytest.raises(TypeError, match="lock"):
        pool.call("put", threading.Lock())
    with pytest.raises(MemberFailed, match="lock"):
        pool.call("uncopyable")


def test_a_reference_as_an_argument_becomes_its_value(run: LocalRun) -> None:
    pool = run["pool"][0]
    first = pool.put.remote("x")
    assert pool.call("put", first) == 2
    assert pool.call("all") == ["x", 1]
    with pytest.raises(MemberFailed, match="upstream"):
        pool.call("put", pool.fail.remote("upstream"))


def test_at_most_so_many_calls_run_at_a_time_and_the_rest_wait_in_order() -> None:
    with LocalRun(Workload("w", (spec("gate", Gate, max_concurrency=2),))) as run:
        refs = [run["gate"][0].wait.remote() for _ in range(3)]
        quick = run["gate"][0].quick.remote()
        Gate.inside.acquire()
        Gate.inside.acquire()

        row = run.status()["members"][0]
        assert (row["running"], row["queue"]) == (2, 2)
        assert not quick.done()
        Gate.opened.set()
        assert [ref.result() for ref in refs] == ["let go"] * 3
        assert quick.result() == 1


def test_deadlines_hold_and_the_roles_own_is_the_default() -> None:
    with LocalRun(Workload("w", (spec("gate", Gate, call_deadline_seconds=0.01),))) as run:
        with pytest.raises(CallTimedOut, match=r"within 0\.01 s"):
            run["gate"].call("wait")
        assert run["gate"].options(deadline_s=None, errors="values")[0].role == "gate"


def test_the_least_busy_is_chosen() -> None:
    with LocalRun(Workload("w", (spec("gate", Gate, count=3),))) as run:
        group = run["gate"]
        waiting = [group.choose().wait.remote() for _ in range(2)]
        for _ in range(2):
            Gate.inside.acquire()

        for _ in range(3):
            member = group.choose()
            assert (member.rank, member.call("quick")) == (2, 1)
        Gate.opened.set()
        for ref in waiting:
            ref.result()
        assert group.choose().rank == 0


def test_scaling_adds_and_takes_the_highest_ranks_and_all_are_told(run: LocalRun) -> None:
    group = run["worker"]
    run.scale("worker", 4)
    assert [(rank, size) for _, rank, size, _, _ in group.call("me")] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert [reported for *_, reported in group.call("me")] == [2, 2, 1, 1]
    last = group[3]

    run.scale("worker", 2)
    assert [(rank, size) for _, rank, size, _, _ in group.call("me")] == [(0, 2), (1, 2)]
    with pytest.raises(MemberLost, match="worker was scaled down to 2"):
        last.call("me")
    with pytest.raises(InvalidRole, match="2 to 4"):
        run.scale("worker", 5)
    assert run.status()["roles"][1]["wanted"] == 2


def test_a_removed_member_finishes_its_calls() -> None:
    with LocalRun(Workload("w", (spec("gate", Gate, count=(0, 1)),))) as run:
        assert run["gate"].call("quick") == []
        run.scale("gate", 1)
        running, waiting = run["gate"][0].wait.remote(), run["gate"][0].quick.remote()
        Gate.inside.acquire()

        run.scale("gate", 0)
        assert len(run["gate"]) == 0 and not waiting.done()
        Gate.opened.set()
        assert (running.result(), waiting.result()) == ("let go", 1)


def test_colocated_roles_scale_together() -> None:
    together = {"colocation_group": "g", "count": (1, 3)}
    with LocalRun(Workload("w", (spec("a", Loader, **together), spec("b", Gate, **together)))) as run:
        run.scale("a", 3)
        assert (len(run["a"]), len(run["b"])) == (3, 3)
        assert {row["actor"] for row in run.status()["members"]} == {"w/a+b/0", "w/a+b/1", "w/a+b/2"}


def test_new_members_come_all_or_not_at_all() -> None:
    with LocalRun(Workload("w", (spec("a", only_first(), count=(1, 4)),))) as run:
        with pytest.raises(MemberFailed, match="no disk"):
            run.scale("a", 4)
        assert run["a"].call("quick") == [1]
        assert run.status()["state"] == "running"


def test_a_constructor_that_fails_ends_the_run_with_who_and_why() -> None:
    with pytest.raises(MemberFailed, match=r"hasty 0 on .* failed in __init__\(\): OSError: no disk"):
        LocalRun(Workload("w", (POOL, spec("hasty", Hasty))))


def test_a_constructor_that_hangs_is_given_up_at_the_startup_deadline() -> None:
    class Hangs:
        def __init__(self) -> None:
            Gate.opened.wait()

    with pytest.raises(CallTimedOut, match=r"slow 0 on .* was not up within 0\.01 s"):
        LocalRun(Workload("w", (spec("slow", Hangs, startup_deadline_seconds=0.01),)))


def test_on_peers_that_fails_ends_the_start() -> None:
    class Lonely:
        def on_peers(self, peers: Peers) -> None:
            peers["nobody"]

    with pytest.raises(MemberFailed, match="there is no role 'nobody'"):
        LocalRun(Workload("w", (spec("lonely", Lonely),)))


def test_shutdown_loses_what_is_under_way_and_may_be_repeated(run: LocalRun) -> None:
    ref = run["trainer"][0].sleep_for_ever.remote()
    Gate.inside.acquire()

    run.shutdown()
    run.shutdown()

    with pytest.raises(RuntimeError, match="shut down"):
        ref.result()
    with pytest.raises(MemberLost, match="run-1 was shut down"):
        run["worker"].call("me")
    with pytest.raises(Refused, match="is over"):
        run.scale("worker", 3)
    assert (run.status()["state"], run.status()["why"]) == ("ended", "it was shut down"), "as on Ray"
    assert run.status()["members"] == []


def test_a_call_that_is_waited_for_ends_with_the_run() -> None:
    run = LocalRun(Workload("w", (spec("gate", Gate),)))
    found: list[Any] = []
    caller = threading.Thread(target=lambda: found.extend(run["gate"].options(errors="values").call("wait")))
    caller.start()
    Gate.inside.acquire()

    run.shutdown()
    caller.join()

    assert isinstance(found[0], MemberLost)


def test_a_role_is_an_enum_or_its_name_and_a_wrong_one_is_reported(run: LocalRun) -> None:
    class Roles(Enum):
        POOL = "pool"

    assert run[Roles.POOL].call("settings") == [{"size": 3}]
    assert run.roles == ("pool", "worker", "trainer", "loader")
    with pytest.raises(InvalidRole, match="did you mean 'worker'"):
        run["workers"]


def test_classes_are_imported_by_name_and_what_cannot_be_is_reported() -> None:
    with LocalRun(Workload("w", (spec("counter", "collections:Counter"),))) as run:
        run["counter"][0].call("update", "aab")
        assert run["counter"][0].call("most_common", 1) == [("a", 2)]
    for wrong in ("no_such_module:A", "collections:NoSuchClass"):
        with pytest.raises(InvalidRole, match="cannot be imported"):
            LocalRun(Workload("w", (spec("a", wrong),)))
    with pytest.raises(InvalidRole, match="has no class"):
        LocalRun(Workload("w", (RoleSpec("a"),)))


def test_the_record_has_what_a_run_on_ray_has(run: LocalRun) -> None:
    record = run.status()

    assert (record["name"], record["workload"], record["state"]) == ("run-1", "rl", "running")
    assert record["roles"][2]["colocation_group"] == "training"
    assert record["roles"][2]["colocation"] == "process"
    assert record["roles"][0]["needs"] == {"cpu": 1.0}
    assert [(one["role"], one["rank"], one["state"]) for one in record["members"]] == [
        ("pool", 0, "up"),
        ("worker", 0, "up"),
        ("worker", 1, "up"),
        ("trainer", 0, "up"),
        ("loader", 0, "up"),
    ]
    assert record["members"][1]["methods"] == ["ask_pool_to_fail", "me", "work"]
    assert record["members"][3]["actor"] == "run-1/trainer+loader/0"


def test_local_mode_needs_no_ray_and_no_process_of_a_run_yaml() -> None:
    """A process that only runs locally, or that imports the module of a role for its class, pays for neither."""
    asked = (
        "import sys, distributed_grid.roles; print([m for m in ('ray', 'ruamel.yaml', 'pydantic') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True).stdout.strip() == "[]"


def test_the_program_of_the_documentation_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "roles.md").read_text()
    program = re.search(r"```python\n(# local_pool.py.*?)```\n\nIt prints `(.*?)` and `(.*?)`", page, re.DOTALL)
    assert program is not None

    exec(program[1], {})

    assert capsys.readouterr().out.splitlines() == [program[2], program[3]]


def test_an_instance_gets_its_config_if_there_is_one_or_it_takes_one() -> None:
    class Bare:
        pass

    class Takes:
        def __init__(self, config: Any = "default") -> None:
            self.config = config

    class Named:
        def __init__(self, *, size: int = 3) -> None:
            self.size = size

    assert isinstance(make_instance(Bare, None), Bare)
    assert make_instance(Takes, None).config is None
    assert make_instance(Takes, 0).config == 0
    assert make_instance(Named, None).size == 3
    with pytest.raises(TypeError):
        make_instance(Bare, {"a": 1})


def test_methods_are_the_public_ones_inherited_too() -> None:
    class Base:
        limit = 3

        def inherited(self) -> None: ...
        def _own(self) -> None: ...
        @property
        def size(self) -> int:
            return 1

    class Role(Base):
        class Inner: ...

        @staticmethod
        def static() -> None: ...
        @classmethod
        def of_class(cls) -> None: ...
        async def later(self) -> None: ...
        def on_peers(self, peers: Peers) -> None: ...

    assert methods_of(Role) == ("inherited", "later", "of_class", "static")
    assert has_async_methods(Role)
    assert not has_async_methods(Base)


def test_a_class_that_is_told_of_peers_asynchronously_has_a_loop_and_one_that_only_helps_itself_has_none() -> None:
    class Told:
        async def on_peers(self, peers: Peers) -> None: ...

    class Helps:
        async def _fetch(self) -> None: ...

    assert has_async_methods(Told) and methods_of(Told) == ()
    assert not has_async_methods(Helps)


def test_an_actor_between_two_lives_is_called_by_its_old_handle_and_then_by_its_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = {"run/a/0": "first"}

    def get_actor(name: str, namespace: str) -> str:
        if name not in there:
            raise ValueError("Failed to look up actor")
        return there[name]

    monkeypatch.setattr("ray.get_actor", get_actor)
    directory = Directory("n")
    directory.update({"run/a/0": 0})
    assert directory.actor("run/a/0") == "first"

    there.clear()
    directory.update({"run/a/0": -1})
    assert directory.actor("run/a/0") == "first"  # a call by it says that it is dead

    there["run/a/0"] = "second"
    directory.update({"run/a/0": 1})
    assert directory.actor("run/a/0") == "second"
    with pytest.raises(ValueError, match="look up"):
        directory.actor("run/b/0")


class Shy:
    """Fails when it meets `limit` peers."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def on_peers(self, peers: Peers) -> None:
        if (peers.me.rank, len(peers["shy"])) in ((1, self.limit), (0, -self.limit)):
            raise ValueError("too many")

    def works(self) -> int:
        return 1


def test_a_new_member_that_fails_when_it_meets_the_others_goes_again() -> None:
    with LocalRun(Workload("w", (RoleSpec("shy", Shy, config=2, count=(1, 3)),))) as run:
        with pytest.raises(MemberFailed, match="too many"):
            run.scale("shy", 2)

        assert run["shy"].call("works") == [1]
        assert "scaled up" not in str(run.status()["events"])


def test_a_member_that_fails_when_it_meets_others_later_goes_on_and_that_is_reported() -> None:
    with LocalRun(Workload("w", (RoleSpec("shy", Shy, config=-2, count=(1, 3)),))) as run:
        run.scale("shy", 2)

        assert run["shy"].call("works") == [1, 1]
        assert "too many" in str(run.status()["events"])


class Unreadable(Exception):
    """Is pickled, and cannot be read again."""

    def __init__(self, a: str, b: str) -> None:
        super().__init__(a)


class Returns:
    def unreadable(self) -> Unreadable:
        return Unreadable("a", "b")

    def same(self, x: Any) -> Any:
        return x

    async def waits(self, ref: Any) -> str:
        try:
            await ref[0]
        except TypeError as error:
            return type(error).__name__
        return "nothing"


def test_what_cannot_be_read_back_is_an_error_and_no_caller_waits_for_it_for_ever() -> None:
    with LocalRun(Workload("w", (RoleSpec("one", Returns), RoleSpec("two", Returns)))) as run:
        made = run["one"][0].submit("unreadable")
        with pytest.raises((MemberFailed, TypeError)):
            run["two"][0].options(deadline_s=30).call("same", made)
        assert run["two"][0].options(deadline_s=30).call("waits", [made]) == "TypeError"


def test_peers_say_who_there_is() -> None:
    class Known(Directory):
        def actor(self, name: str) -> Any:
            return SimpleNamespace(**{"pool.put": f"the method of {name}"})

    others = {"pool": [ActorPeer("pool", 0, "run/pool/0", Known("grid-roles"))]}
    peers = Peers(Identity("a", 0, 1, "n", "r"), others, {"b": "instance"})

    assert peers["pool"][0].put == "the method of run/pool/0"
    assert (list(peers), len(peers), peers.sibling("b")) == (["pool"], 1, "instance")
    with pytest.raises(KeyError, match="there are pool"):
        peers["pol"]
    with pytest.raises(KeyError, match="shares the process"):
        peers.sibling("c")
