"""What the keeper of a run does, round by round: also after a round in which something raised."""

from collections.abc import Callable
from typing import Any

import pytest
import ray
from builders import place, workload
from kept_runs import DIED, KeptRun, Ref
from live_grid import until

from distributed_grid.errors import Unavailable
from distributed_grid.model.roles.processes import ProcessState, Unanswered
from distributed_grid.model.roles.spec import RoleSpec

Keep = Callable[..., KeptRun]


@pytest.fixture
def keep(monkeypatch: pytest.MonkeyPatch) -> Keep:
    return lambda *roles: KeptRun(workload(*roles), [place("n1")], monkeypatch)


def worker(**more: Any) -> RoleSpec:
    return RoleSpec("worker", **{"count": (1, 4)} | more)


def in_gang(count: Any = 2, **more: Any) -> RoleSpec:
    return worker(count=count, failure_policy="restart_gang", **more)


def test_a_run_is_looked_after_after_an_unforeseen_error(keep: Keep) -> None:
    run, rounds = keep(worker()), 0
    look = run.health.look

    def fail_once() -> Any:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            raise RuntimeError("unforeseen")
        return look()

    run.health.look = fail_once  # type: ignore[method-assign]
    run.supervisor.start(lambda *_: None)
    until(lambda: rounds > 2, what="there are rounds after it")
    run.supervisor.stop()
    assert "a supervision round failed; retrying: RuntimeError: unforeseen" in run.told


def scaled(run: KeptRun, role: str, count: int) -> None:
    run.supervisor.request_count(role, count)
    run.round()


def only_one(run: KeptRun) -> None:
    """The others have ended."""
    scaled(run, "worker", 1)
    run.round(60.0)
    assert run.parts.process_set.by_name.keys() & {"run-1/worker/0", "run-1/worker/1"} == {"run-1/worker/0"}


def die(run: KeptRun, role: str, rank: int = 0) -> None:
    """And it is noticed: the answer to its next ping comes in the round after."""
    run.process(role, rank).handle.dead = True
    for _ in range(3):
        run.round()


# -- a run that no part of the program can use any more ------------------------------------------------------------


def test_a_run_that_is_dropped_ends_once_its_calls_are_over(keep: Keep) -> None:
    run = keep(worker(count=2), RoleSpec("other"))
    busy = run.process("worker", 1)
    run.supervisor.dropped = True
    run.round()
    assert run.parts.state == "stopping" and not run.ended
    assert run.ranks("worker") == [], "no call is led to them any more"

    for process in run.parts.process_set.by_name.values():
        run.count_calls(process, running=int(process is busy), at=run.clock() + 5)
    run.round()
    assert [*run.parts.process_set.by_name.values()] == [busy] and not run.ended
    assert len(run.killed) == 2

    run.count_calls(busy)
    run.round()
    assert not run.parts.process_set.by_name
    assert "no longer references its manager or any of its members" in run.ended


def test_a_run_that_is_dropped_lets_its_calls_run_however_long_they_take(keep: Keep) -> None:
    run = keep(worker(count=1))
    process = run.process("worker")
    run.count_calls(process, running=1)
    run.supervisor.dropped = True
    run.round()
    run.round(after_s=100_000)
    assert not run.ended and not run.killed
    assert run.supervisor.resizing.leaving.finishing() == ["worker 0 on n1 finishes its calls"]

    run.count_calls(process)
    run.round()
    assert run.ended and len(run.killed) == 1


# -- members that are added and do not start ---------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["restart", "fail", "restart_gang", "continue_with_healthy"])
def test_an_added_member_that_does_not_start_is_no_failure_of_its_run(keep: Keep, policy: str) -> None:
    run = keep(worker(failure_policy=policy, count=(1, 4)), RoleSpec("other"))
    only_one(run)
    run.actors.fails = {"worker/2"}

    scaled(run, "worker", 3)
    run.round()

    assert not run.ended and run.ranks("worker") == [0] and run.ranks("other") == [0]
    assert run.parts.state == "running" and run.parts.wanted["worker"] == 1
    assert run.parts.failed_additions["worker"] == 1 and not run.parts.failures["worker"]
    assert "worker 2 did not start on n1: KeyError" in run.parts.short["worker"]
    assert "in __init__" in run.parts.short["worker"] and "in __init__" not in run.told
    assert run.process("worker").status.restarts == 0


def test_an_added_member_that_dies_later_is_one_like_all_others(keep: Keep) -> None:
    run = keep(worker())
    only_one(run)
    scaled(run, "worker", 2)
    run.round()

    die(run, "worker", 1)

    assert run.process("worker", 1).status.restarts == 1 and run.ranks("worker") == [0, 1]


# -- gangs -------------------------------------------------------------------------------------------------------


def test_a_gang_can_be_called_again_though_a_mate_was_scaled_away_while_it_started(keep: Keep) -> None:
    run = keep(in_gang(count=(1, 2)))
    run.actors.waits = {"worker/1"}
    die(run, "worker", 0)
    assert run.ranks("worker") == [] and run.process("worker").status.state is ProcessState.UP

    scaled(run, "worker", 1)
    run.round()

    assert run.ranks("worker") == [0]


def test_a_gang_can_be_called_again_though_a_mate_was_silent_when_the_last_one_came_up(keep: Keep) -> None:
    run = keep(in_gang())
    run.actors.waits = {"worker/1"}
    die(run, "worker", 0)
    run.parts.process_set.send([(run.process("worker", 0), Unanswered())])
    run.process("worker", 1).steps[0].outcome = {"pid": 2, "gpus": [], "failed": None}

    run.parts.process_set.look()
    run.parts.process_set.settle()

    assert run.ranks("worker") == [0, 1]


def test_a_gang_can_be_called_again_though_one_in_its_bundle_was_restarted_alone_meanwhile(keep: Keep) -> None:
    bundle = {"colocation_group": "g", "colocation": "bundle"}
    run = keep(worker(count=1, failure_policy="restart_gang", **bundle), RoleSpec("helper", count=1, **bundle))
    run.actors.fails = {"helper/0"}
    die(run, "worker", 0)
    run.actors.fails = set()
    for _ in range(3):
        run.round()

    assert run.ranks("worker") == [0] and run.ranks("helper") == [0]


def test_a_member_that_a_call_found_dead_gets_no_further_calls(keep: Keep) -> None:
    run = keep(worker(count=1))
    run.process("worker").endpoints[0].disconnect("it died")  # as a call does that finds it so

    run.parts.process_set.settle()

    assert run.ranks("worker") == []


# -- restarts ----------------------------------------------------------------------------------------------------


def test_what_fails_as_soon_as_it_starts_is_restarted_after_longer_and_longer_pauses(keep: Keep) -> None:
    run = keep(worker(count=1, max_restarts=-1))
    run.actors.fails = {"worker/0"}
    die(run, "worker")

    for _ in range(100):
        run.round(0.25)

    assert 3 <= len(run.actors.started) <= 6
    assert run.process("worker").status.why.startswith("it restarts after ")


# -- rounds that raise -------------------------------------------------------------------------------------------


def test_a_restart_that_ray_did_not_take_is_tried_again(keep: Keep) -> None:
    run = keep(worker(count=2, failure_policy="restart_gang"))
    run.actors.raises = [ray.exceptions.GetTimeoutError("slow")]
    die(run, "worker")
    run.round()

    assert run.ranks("worker") == [0, 1] and run.process("worker").status.restarts == 1


def test_a_request_outlives_a_round_in_which_the_store_did_not_answer(
    keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = keep(worker(), RoleSpec("other"))
    with monkeypatch.context() as patch:
        patch.setattr(run.records, "take_command", _raises(Unavailable("silent")))
        with pytest.raises(Unavailable):
            scaled(run, "worker", 3)
    run.round()

    assert run.parts.process_set.count("worker") == 3


def test_faults_outlive_a_round_that_raised_after_they_were_found(keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    run = keep(worker(count=1))
    run.actors.waits = {"worker/0"}
    die(run, "worker")
    run.process("worker").steps[0].outcome = DIED
    with monkeypatch.context() as patch:
        patch.setattr(run.health, "look", _raises(RuntimeError("once")))
        with pytest.raises(RuntimeError):
            run.round()
    run.actors.waits = set()
    for _ in range(3):
        run.round()

    assert run.process("worker").status.restarts == 2 and run.ranks("worker") == [0]


def test_queues_are_counted_again_after_a_count_that_raised(keep: Keep) -> None:
    run = keep(worker(count=1))
    run.workers = _raises(RuntimeError("once"))
    for _ in range(6):
        run.round()
    counted: list[Any] = []
    run.workers = lambda raylets: counted.append(raylets) or {}
    for _ in range(6):
        run.round()

    assert counted


def test_members_that_could_not_be_asked_for_are_not_there_and_are_asked_for_again(keep: Keep) -> None:
    run = keep(worker())
    only_one(run)
    run.actors.raises = [RuntimeError("silent")] * 2  # it is tried again at once
    scaled(run, "worker", 2)

    assert run.parts.short["worker"] == "RuntimeError: silent" and run.ranks("worker") == [0]
    assert all(process.handle is not None for process in run.parts.process_set.by_name.values())
    for _ in range(3):
        run.round()
    assert run.ranks("worker") == [0, 1]


def test_one_actor_that_cannot_be_ended_does_not_keep_the_others(keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    run = keep(worker(count=2))
    monkeypatch.setattr(ray, "kill", _raises(RuntimeError("silent")))

    run.parts.process_set.end([*run.parts.process_set.by_name.values()], "over")

    assert not run.parts.process_set.by_name and not run.ranks("worker")


# -- introductions -----------------------------------------------------------------------------------------------


def test_an_introduction_that_fails_later_is_reported(keep: Keep) -> None:
    run = keep(worker())
    run.actors.greeting = {"worker"}
    run.process("worker").handle.greeting = Ref(ray.exceptions.RayTaskError("on_peers", "KeyError: 'pool'", None))
    scaled(run, "worker", 3)
    run.round()
    run.round()

    assert "worker 0 failed in on_peers(): KeyError: 'pool'" in run.told
    assert run.parts.state == "running" and not run.ended


def _raises(error: Exception) -> Callable[..., Any]:
    def raise_it(*_: Any) -> Any:
        raise error

    return raise_it
