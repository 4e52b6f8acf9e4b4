"""Grace is grace: what runs in a lease that is taken back is told, keeps what it has until the deadline, and only then
is ended. The program writes down what it sees, and Ray says where its tasks run."""

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from eyes import Eyes, on_screen
from hook_server import HookServer
from live_grid import GRID, LiveGrid, until
from live_roles import grid_is_found, restarts, told  # noqa: F401 - the first is a fixture for all tests here
from role_classes import Reclaimed, small

import distributed_grid
from distributed_grid.errors import GridError, MemberLost
from distributed_grid.model.notices import ReclaimNotice
from distributed_grid.roles import Run, Workload, launch

pytestmark = pytest.mark.cluster

CONFIG = """
name: grace
embedded: true
resource_sharing:
  enabled: true
  mode: share_and_offload
  policy: aggressive
  min_hold_seconds: 0
  grace_seconds: 12
  thresholds: {excess_threshold: 0}
nodes:
- {name: head, role: master, cpu_count: 2, memory_gb: 2, resource_sharing: {can_share: false}}
- {name: lender, cpu_count: 6, gpu_count: 1, memory_gb: 4}
"""

WORKS = """
import json, os, signal, sys, time
import ray

log = open(sys.argv[1], "a", buffering=1)
stays = sys.argv[2:] == ["stays"]
ended = []

def note(what, **more):
    log.write(json.dumps({"what": what, "at": time.time()} | more) + "\\n")

def on_term(*_):
    ended.append(time.time())
    note("SIGTERM")

ray.init(logging_level="ERROR", log_to_driver=False)
signal.signal(signal.SIGTERM, on_term)

@ray.remote
def where():
    group = ray.util.get_current_placement_group()
    return "" if group is None else group.id.hex()

note("began", group=ray.get(where.remote()))
told = None
while not ended:
    if told is None and os.path.exists(file := os.environ.get("GRID_RECLAIM_FILE", "")):
        told = json.load(open(file))
        note("told", **told)
        if not stays:
            time.sleep(3)  # between two tasks its place is idle
            note("saved", group=ray.get(where.remote()))
            sys.exit(0)
    note("step", group=ray.get(where.remote()))
    time.sleep(0.5)
note("last", group=ray.get(where.remote()))
sys.exit(7)
"""


class Working:
    """A program in `grid run`, or in `grid boost shell`, and what it wrote down."""

    def __init__(
        self, grid: LiveGrid, folder: Path, *options: str, stays: bool = False, shell: str = "", typed: bool = False
    ) -> None:
        """`shell`: of this boost; `typed`: in an open shell, at its prompt."""
        self._log, script = folder / "log.jsonl", folder / "works.py"
        script.write_text(WORKS)
        works = [str(script), str(self._log), *(["stays"] if stays else [])]
        begun = ["run", *options, "--", *works]
        if shell:
            begun = ["boost", "shell", shell, *([] if typed else ["--", sys.executable, *works])]
        self.run = subprocess.Popen(
            [GRID, *begun],
            env=grid.env | {"SHELL": "/bin/sh"},
            stdin=subprocess.PIPE if typed else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        if typed:
            self.type(shlex.join([sys.executable, *works]))
        until(lambda: self.run.poll() is not None or self.seen("began"), 60, "the program runs")
        assert self.run.poll() is None, self.run.communicate()

    def seen(self, what: str) -> list[dict[str, Any]]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line for line in map(json.loads, lines) if line["what"] == what]

    def type(self, line: str) -> None:
        assert self.run.stdin is not None
        self.run.stdin.write(line + "\n")
        self.run.stdin.flush()

    def over(self) -> tuple[int, str]:
        _, said = self.run.communicate(timeout=240)
        return self.run.returncode, said

    def end(self) -> None:
        if self.run.poll() is None:
            for process in (*psutil.Process(self.run.pid).children(recursive=True), self.run):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self.run.communicate()


@pytest.fixture
def working(grid: LiveGrid, tmp_path: Path) -> Iterator[Any]:
    started: list[Working] = []

    def start(*options: str, **how: Any) -> Working:
        started.append(Working(grid, tmp_path, *options, **how))
        return started[-1]

    yield start
    for each in started:
        each.end()
    grid.release_everything()


def reserved(grid: LiveGrid, cpus: int, grace_s: float, **options: Any) -> dict[str, Any]:
    return grid.boost("head", "cpu", cpus, delivery="reserve", grace_seconds=grace_s, **options)


def at(instant: str) -> float:
    return datetime.fromisoformat(instant).timestamp()


def test_a_run_whose_boost_is_released_is_told_finishes_its_work_and_ends_by_itself(
    grid: LiveGrid, working: Any
) -> None:
    boost = reserved(grid, 2, 120)
    program = working("--boost", boost["boost_id"])

    grid.release(boost, wait_seconds=0)
    shown, table = grid.shown(boost), grid.cli("boost", "status").stdout

    code, said = program.over()
    assert code == 0, said
    assert not program.seen("SIGTERM")
    [told], [saved] = program.seen("told"), program.seen("saved")
    assert (told["cause"], told["deadline"]) == ("released", shown["ending"]["deadline"])
    assert saved["group"] == boost["placement_group"] == program.seen("began")[0]["group"]
    assert f"boost {boost['boost_id'][:8]} is being returned: released by" in said
    assert "is being returned: released by" in table
    assert "in 60 min" not in table
    until(lambda: grid.state(boost) == "released", 20, "the boost returns long before its deadline")
    grid.settled()


def test_a_run_that_does_not_finish_is_ended_at_the_deadline_also_if_the_controller_is_killed_in_between(
    grid: LiveGrid, working: Any
) -> None:
    boost = reserved(grid, 2, 20)
    program = working("--boost", boost["boost_id"], stays=True)
    grid.release(boost, wait_seconds=0)
    deadline = grid.shown(boost)["ending"]["deadline"]
    until(lambda: program.seen("told"), 20, "the program is told")

    killed = grid.controller_pid()
    os.kill(killed, signal.SIGKILL)
    until(lambda: grid.controller_pid() != killed, 60, "another controller")
    with contextlib.suppress(GridError):  # it may have gone home by then
        assert grid.shown(boost)["ending"]["deadline"] == deadline

    code, said = program.over()
    [term], [last] = program.seen("SIGTERM"), program.seen("last")
    assert (code, term["at"] >= at(deadline)) == (5, True), said
    assert last["group"] == boost["placement_group"]  # its place is kept until it has ended
    final = said.rstrip().splitlines()
    assert "LEASE_LOST" in said or "The run's lease ended" in said
    assert "released by" in "\n".join(final[-4:])
    assert "--priority" not in said
    until(lambda: grid.state(boost) == "released", 30, "the boost is returned")
    grid.settled()


def test_a_run_that_is_preempted_hears_for_whom_and_until_when_and_stays_until_then(
    grid: LiveGrid, working: Any
) -> None:
    boost = reserved(grid, 5, 20, priority="low")
    program = working("--boost", boost["boost_id"], stays=True)
    granted: list[dict[str, Any]] = []
    asking = threading.Thread(
        target=lambda: granted.append(grid.boost("head", "cpu", 4, priority="high", wait_seconds=300))
    )
    asking.start()
    until(lambda: program.seen("told"), 60, "the program is told")

    [told] = program.seen("told")
    shown = grid.shown(boost)
    why, table = (grid.cli(*command).stdout for command in (("why", boost["boost_id"]), ("boost", "status")))
    on_top: list[str] = []

    async def look(eyes: Eyes) -> None:
        on_top.append(await eyes.sees("releasing.*preempted by"))

    on_screen(grid.home, look, (250, 30))
    [event] = [event for event in grid.events("reclaim_asked") if event["boost_id"] == boost["boost_id"]]

    code, said = program.over()
    asking.join(300)
    [term] = program.seen("SIGTERM")
    assert (code, term["at"] >= at(told["deadline"])) == (5, True), said
    assert told["deadline"] == shown["ending"]["deadline"] == event["details"]["ending"]["deadline"]
    assert told["claimant"] == shown["ending"]["claimant"]
    assert (told["cause"], told["claimant"]["priority"]) == ("preempted", "high")
    assert told["claimant"]["request_id"] == granted[0]["boost_id"]
    assert "4 CPUs for head" in told["claimant"]["wants"]
    assert "preempted by" in said
    assert "preempted by" in why
    # The status shows whose it is, and when it is taken: not in an hour, when it would have expired.
    assert "Owner" in table and "Team" in table
    [row] = [line for line in table.splitlines() if boost["boost_id"][:8] in line and "releasing" in line]
    assert shown["requester"] in row and shown["team"] in row and "in 60 min" not in row
    assert "is being returned: preempted by" in table
    assert re.match(r" *0:\d\d .*releasing", on_top[0]) and shown["requester"] in on_top[0]
    grid.release(granted[0])
    grid.settled()


def test_the_answer_of_a_runs_reclaim_hook_ends_its_grace_period(grid: LiveGrid, working: Any) -> None:
    with HookServer({"release": True, "checkpointed": True}) as hook:
        boost = reserved(grid, 5, 300, priority="low", reclaim_url=hook.url)
        program = working("--boost", boost["boost_id"], stays=True)
        granted = grid.boost("head", "cpu", 4, priority="high", wait_seconds=300)

        code, said = program.over()

    [term] = program.seen("SIGTERM")
    [asked] = hook.asked
    assert (code, term["at"] < at(asked["ends_at"])) == (5, True), said
    assert asked["claimant"]["request_id"] == granted["boost_id"]
    grid.release(granted)
    grid.settled()


def test_a_private_cluster_keeps_its_program_until_it_has_finished(grid: LiveGrid, working: Any) -> None:
    program = working("--isolation", "cluster", "--cpus", "2", "--grace", "240")
    [lease] = [boost for boost in grid.client.boost_status()["boosts"] if boost["purpose"] == "run"]

    grid.release(lease, wait_seconds=0)

    code, said = program.over()
    assert code == 0, said
    assert not program.seen("SIGTERM")
    assert program.seen("saved")
    until(lambda: grid.state(lease) == "released", 60, "the lease is returned")
    grid.settled()


@contextlib.contextmanager
def better_claim(grid: LiveGrid, cpus: int) -> Iterator[list[dict[str, Any]]]:
    """A request at high priority that waits for this many CPUs of the lender; in the end it has them."""
    granted: list[dict[str, Any]] = []
    asking = threading.Thread(
        target=lambda: granted.append(grid.boost("head", "cpu", cpus, priority="high", wait_seconds=300))
    )
    asking.start()
    yield granted
    asking.join(300)
    assert granted, "the better claim was not granted"
    grid.release(granted[0])


def test_a_private_cluster_that_is_preempted_keeps_its_program_until_the_deadline_and_is_ended_then(
    grid: LiveGrid, working: Any
) -> None:
    program = working("--isolation", "cluster", "--cpus", "5", "--grace", "12", "--priority", "low", stays=True)
    [lease] = [boost for boost in grid.client.boost_status()["boosts"] if boost["purpose"] == "run"]

    with better_claim(grid, 4) as granted:
        until(lambda: program.seen("told"), 60, "the program is told")
        [told] = program.seen("told")
        code, said = program.over()

    [term] = program.seen("SIGTERM")
    assert (code, term["at"] >= at(told["deadline"])) == (5, True), said
    assert (told["cause"], told["claimant"]["request_id"]) == ("preempted", granted[0]["boost_id"])
    assert [step for step in program.seen("step") if step["at"] > told["at"]], "it went on working after it was told"
    until(lambda: grid.state(lease) == "released", 60, "the lease is returned")
    grid.settled()


def test_a_command_in_a_boosts_shell_keeps_its_place_until_the_deadline_and_is_ended_then(
    grid: LiveGrid, working: Any
) -> None:
    boost = reserved(grid, 2, 8)
    program = working(shell=boost["boost_id"], stays=True)

    grid.release(boost, wait_seconds=0)
    deadline = grid.shown(boost)["ending"]["deadline"]
    asked_at = time.time()

    code, said = program.over()
    [term], [last] = program.seen("SIGTERM"), program.seen("last")
    assert (code, term["at"] >= at(deadline)) == (7, True), said  # the program's own exit code
    worked = [step["group"] for step in program.seen("step") if step["at"] > asked_at]
    assert {*worked, last["group"]} == {boost["placement_group"]}  # also between two tasks, when it is idle
    assert f"boost {boost['boost_id'][:8]} is being returned: released by" in said
    until(lambda: grid.state(boost) == "released", 30, "the boost is returned")
    grid.settled()


def test_what_runs_in_an_open_shell_keeps_its_place_until_the_deadline_and_the_shell_stays(
    grid: LiveGrid, working: Any
) -> None:
    boost = reserved(grid, 2, 8)
    program = working(shell=boost["boost_id"], stays=True, typed=True)

    grid.release(boost, wait_seconds=0)
    deadline = grid.shown(boost)["ending"]["deadline"]
    asked_at = time.time()
    until(lambda: grid.state(boost) == "released", 60, "the boost is returned")
    assert time.time() >= at(deadline)

    until(lambda: len(psutil.Process(program.run.pid).children(recursive=True)) == 1, 60, "the shell is alone again")
    later = "import ray; ray.init(); ray.get(ray.remote(lambda: None).remote())"
    program.type(shlex.join([sys.executable, "-c", later]))
    program.type("exit 3")
    code, said = program.over()
    assert code == 3, said
    assert not program.seen("SIGTERM")
    assert (
        f"cannot run: boost {boost['boost_id'][:8]} has ended: released by" in said
    )  # what comes later does not wait for ever
    worked = [step["group"] for step in program.seen("step") if step["at"] > asked_at]
    assert {*worked} == {boost["placement_group"]}
    assert "What runs in this shell keeps it until" in said
    grid.settled()


def test_a_block_of_a_program_is_asked_and_keeps_its_lease_until_the_deadline_between_its_tasks_too(
    grid: LiveGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRID_HOME", str(grid.home.path))
    notices: list[ReclaimNotice] = []
    granted: list[dict[str, Any]] = []
    asking = threading.Thread(
        target=lambda: granted.append(grid.boost("head", "cpu", 4, priority="high", wait_seconds=300))
    )

    @ray.remote
    def where() -> str:
        group = ray.util.get_current_placement_group()
        return "" if group is None else str(group.id.hex())

    async def use() -> tuple[set[str], str]:
        is_asked = asyncio.Event()

        def asked(notice: ReclaimNotice) -> bool:
            notices.append(notice)
            is_asked.set()
            return False  # it is kept for as long as it may be

        async with distributed_grid.lease(cpus=5, target="head", priority="low", grace=12, on_reclaim=asked) as lease:
            seen = {await where.options(**lease.options()).remote()}
            asking.start()
            await is_asked.wait()
            assert notices[0].ends_at is not None
            # Shortly before the deadline; nothing has run in it since it was asked back.
            await asyncio.sleep(notices[0].ends_at.timestamp() - time.time() - 3)
            shown = grid.shown({"boost_id": lease.id})
            assert shown["state"] == "releasing"
            seen.add(await where.options(**lease.options()).remote())
            return seen, shown["placement_group"]

    groups, group = asyncio.run(use())

    asking.join(300)
    assert groups == {group}
    [notice] = notices
    assert notice.claimant is not None and notice.claimant["request_id"] == granted[0]["boost_id"]
    grid.release(granted[0])
    grid.settled()


def role_lease(grid: LiveGrid, run: str) -> dict[str, Any]:
    [found] = [boost for boost in grid.client.boost_status()["boosts"] if boost["label"] == run]
    return found


def last_heard(run: Run, pid: int) -> float:
    """Call a member until its process is another one; when it last answered."""
    answered = time.time()
    while True:
        began = time.time()
        try:
            if run["member"][0].call("heard")[0] != pid:
                return answered
            answered = began
        except MemberLost:
            return answered
        time.sleep(0.2)


def test_members_of_roles_are_told_and_keep_their_processes_until_the_deadline(grid: LiveGrid) -> None:
    member = small("member", Reclaimed, cpus=1, failure_policy="restart")
    with launch(Workload("graceful", (member,)), wait_s=120) as run:
        lease = role_lease(grid, "graceful")
        pid, _ = run["member"][0].call("heard")

        grid.release(lease, grace_seconds=8, wait_seconds=0)
        deadline = grid.shown(lease)["ending"]["deadline"]
        notice = until(lambda: run["member"][0].call("heard")[1], 20, "it is told")
        last = last_heard(run, pid)

        assert (notice["cause"], notice["deadline"]) == ("released", deadline)
        assert "is being returned: released by" in told(run)
        assert last > at(notice["asked_at"])
        assert time.time() >= at(deadline)  # and only then it was another process
        until(lambda: restarts(run, "member", 0) == 1, 60, "it restarts in another place")
        assert run["member"][0].options(deadline_s=120).call("heard")[0] != pid


def test_members_of_roles_that_are_preempted_keep_their_processes_until_the_deadline(grid: LiveGrid) -> None:
    member = small("member", Reclaimed, cpus=5, failure_policy="restart")
    with launch(Workload("yields", (member,)), wait_s=120, priority="low") as run:
        pid, _ = run["member"][0].call("heard")
        with better_claim(grid, 4) as granted:
            notice = until(lambda: run["member"][0].call("heard")[1], 60, "it is told")
            last = last_heard(run, pid)
            assert time.time() >= at(notice["deadline"])  # and only then it was gone

        assert (notice["cause"], notice["claimant"]["request_id"]) == ("preempted", granted[0]["boost_id"])
        assert last > at(notice["asked_at"])
        # The better claim was given back above, so that there is room again.
        until(lambda: restarts(run, "member", 0) >= 1, 90, "it starts anew")
        assert run["member"][0].options(deadline_s=120).call("heard")[0] != pid


def test_members_of_roles_that_say_that_they_are_done_need_not_wait_for_the_deadline(grid: LiveGrid) -> None:
    member = small("member", Reclaimed, cpus=1, config={"answer": True}, failure_policy="restart")
    with launch(Workload("done", (member,)), wait_s=120) as run:
        lease = role_lease(grid, "done")

        grid.release(lease, grace_seconds=600, wait_seconds=0)

        until(lambda: grid.state(lease) == "released", 60, "the place is returned")
        until(lambda: restarts(run, "member", 0) == 1, 60, "it restarts in another place")
        assert "is returned now: on_reclaim() returned True" in told(run)
