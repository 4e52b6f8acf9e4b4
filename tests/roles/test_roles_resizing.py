"""More and fewer members: a member that leaves finishes its calls, and what is borrowed returns when it is useless."""

from collections.abc import Callable
from typing import Any

import pytest
from builders import amounts, place, workload
from kept_runs import KeptRun, Ref

from distributed_grid.errors import BoostNotFound, Refused, Unavailable
from distributed_grid.model.roles.plan import InventoryNode
from distributed_grid.model.roles.scaling import Scaling
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.roles.calls.ray_transport import unfinished

Keep = Callable[..., KeptRun]
AT_ONCE = {"stable_seconds": 0, "cooldown_seconds": 0, "every_seconds": 0.1}


@pytest.fixture
def keep(monkeypatch: pytest.MonkeyPatch) -> Keep:
    return lambda *roles: KeptRun(workload(*roles), [place("n1")], monkeypatch)


def scaled(run: KeptRun, role: str, count: int) -> None:
    run.supervisor.request_count(role, count)
    run.round()


def counted(run: KeptRun, rank: int, running: int = 0, waiting: int = 0) -> None:
    run.count_calls(run.process("worker", rank), running, waiting)


# -- who goes ----------------------------------------------------------------------------------------------------


def test_a_leaving_member_takes_no_new_calls_and_ends_when_it_has_finished(keep: Keep) -> None:
    run = keep(RoleSpec("worker", count=(1, 3)))
    scaled(run, "worker", 2)

    assert run.ranks("worker") == [0, 1] and run.parts.process_set.count("worker") == 2
    assert not run.killed and run.parts.state == "running"
    assert [(one["rank"], one["state"]) for one in run.supervisor.record()["members"]][-1] == (2, "leaving")
    for running, waiting in [(1, 1), (1, 0), (0, 0)]:
        assert not run.killed
        run.clock.sleep(2.0)
        counted(run, 2, running, waiting)
        run.round(0.0)
    assert len(run.killed) == 1 and len(run.parts.process_set.by_name) == 2 and len(run.places.returned) == 1


def test_calls_of_this_process_that_are_on_their_way_are_waited_for(keep: Keep) -> None:
    run = keep(RoleSpec("worker", count=(1, 2)))
    endpoint = run.process("worker", 1).endpoints[0]
    endpoint.waited = 1
    scaled(run, "worker", 1)
    run.clock.sleep(2.0)
    counted(run, 1)
    run.round(0.0)
    assert not run.killed

    endpoint.waited = 0
    run.round()
    assert len(run.killed) == 1


def test_calls_that_are_over_keep_no_member_though_the_roster_has_forgotten_it(keep: Keep) -> None:
    run = keep(RoleSpec("worker", count=(1, 2)))
    endpoint, call = run.process("worker", 1).endpoints[0], Ref()
    endpoint.count_by(unfinished)
    endpoint.remember(call)
    scaled(run, "worker", 1)
    run.clock.sleep(2.0)
    counted(run, 1)
    run.round(0.0)
    assert not run.killed

    call.outcome = "done"
    run.round()
    assert len(run.killed) == 1 and "had 1 calls" not in run.told


def test_newcomers_that_do_not_start_take_no_member_along_that_has_one_of_their_names_now(keep: Keep) -> None:
    run = keep(RoleSpec("worker", count=(2, 4), scaling=Scaling(lambda: 0.5, 1, 0, **AT_ONCE)))
    run.actors.waits = {"worker/2", "worker/3"}
    scaled(run, "worker", 4)
    scaled(run, "worker", 3)
    scaled(run, "worker", 4)
    second = run.process("worker", 3)
    third = {"role": "worker", "error": "KeyError: 'x'", "traceback": "in __init__"}
    run.process("worker", 2).handle.started.outcome = {"pid": 1, "gpus": [], "failed": third}
    second.handle.started.outcome = {"pid": 2, "gpus": [], "failed": None}
    run.round()

    assert run.process("worker", 3) is second and second.handle not in run.killed
    assert run.parts.process_set.registry.endpoints("worker")[-1].rank == 3


def test_a_leaving_member_that_has_not_finished_after_half_a_minute_is_ended_and_that_is_reported(keep: Keep) -> None:
    run = keep(RoleSpec("worker", count=(1, 2)))
    scaled(run, "worker", 1)
    counted(run, 1, running=1)
    run.round(29.0)
    assert not run.killed
    run.round(2.0)

    assert len(run.killed) == 1 and "worker 1 still had 1 calls after 30 s" in run.told


def test_a_leaving_member_stays_if_it_is_needed_again_before_it_has_ended(keep: Keep) -> None:
    run = keep(RoleSpec("worker", count=(1, 4)))
    handle = run.process("worker", 1).handle
    scaled(run, "worker", 1)
    scaled(run, "worker", 2)
    run.round()

    assert run.ranks("worker") == [0, 1] and run.process("worker", 1).handle is handle
    assert run.parts.process_set.registry.endpoints("worker")[1].target is handle
    run.round(60.0)
    assert len(run.killed) == 2 and len(run.actors.started) == 4


def test_a_member_that_dies_while_it_leaves_has_ended_and_is_no_failure(keep: Keep) -> None:
    run = keep(RoleSpec("worker", count=(1, 2), failure_policy="fail"))
    scaled(run, "worker", 1)
    run.process("worker", 1).handle.dead = True
    for _ in range(3):
        run.round()

    assert not run.ended and len(run.parts.process_set.by_name) == 1 and not run.parts.failures


def test_what_shares_a_bundle_ends_together(keep: Keep) -> None:
    bundle = {"colocation_group": "g", "colocation": "bundle", "count": (1, 2)}
    run = keep(RoleSpec("worker", **bundle), RoleSpec("helper", **bundle))
    scaled(run, "helper", 1)
    run.clock.sleep(2.0)
    counted(run, 1)
    run.round(0.0)
    assert not run.killed  # the calls of the other were not counted yet

    scaled(run, "worker", 2)
    run.round()
    assert run.ranks("worker") == run.ranks("helper") == [0, 1] and not run.killed


# -- what is borrowed --------------------------------------------------------------------------------------------


class Lender:
    def __init__(self, *, grants: int) -> None:
        self.grants, self.asked, self.out = grants, 0, list[str]()
        self.renewed = list[str]()
        self.is_away = False

    def request_boost(self, _body: Any, *, idempotency_key: str) -> dict[str, Any]:
        self.asked += 1
        if self.asked > self.grants:
            raise Refused("no more")
        self.out.append(f"b{self.asked}")
        return {"boost_id": self.out[-1]}

    def release_boost(self, boost_id: str) -> None:
        self.out.remove(boost_id)

    def renew_boost(self, boost_id: str) -> None:
        if self.is_away:
            raise Unavailable("away")
        if boost_id not in self.out:
            raise BoostNotFound("it has expired")
        self.renewed.append(boost_id)


def follower(signal: list[float], **more: Any) -> RoleSpec:
    scaling = Scaling(lambda: signal[0], 1, 0, boost=True, **AT_ONCE)
    return RoleSpec("worker", **{"cpus": 2, "count": (1, 2), "scaling": scaling} | more)


def full(*lenders: InventoryNode) -> list[InventoryNode]:
    """The only node that will do is full, but others could lend."""
    return [place("n1", cpus=2, used=amounts(cpu=2)), *lenders]


def lender(name: str, cpus: float) -> InventoryNode:
    return place(name, cpus=cpus, lends=amounts(cpu=cpus))


def borrowing(
    keep: Keep, nodes: list[InventoryNode], grants: int, signal: list[float], **more: Any
) -> tuple[KeptRun, Lender]:
    run = keep(follower(signal, node_affinity=["n1"], **more))
    run.client = Lender(grants=grants)
    run.nodes = nodes
    signal[0] = 1.0
    for _ in range(3):  # the reading that is under way, the question, the answer
        run.round()
    return run, run.client


def test_a_part_of_what_a_role_lacks_is_not_kept_if_the_rest_is_refused(keep: Keep) -> None:
    both = place("n1", cpus=2, used=amounts(cpu=2, memory=64)), place("n2", lends=amounts(cpu=8, memory=64))
    run, client = borrowing(keep, [*both], 1, [0.5], memory_gb=4)

    assert client.asked >= 2 and not client.out
    assert "a boost was refused: no more" in run.parts.short["worker"]
    assert run.parts.wanted["worker"] == 1


def test_what_is_borrowed_is_returned_when_the_signal_asks_for_no_more(keep: Keep) -> None:
    signal = [0.5]
    run, client = borrowing(keep, full(lender("n2", 4)), 9, signal)
    assert client.out == ["b1"] and run.parts.wanted["worker"] == 2

    signal[0] = 0.5
    for _ in range(3):
        run.round()

    assert not client.out and run.parts.wanted["worker"] == 1 and run.parts.state == "running"


def test_what_is_borrowed_is_returned_when_another_program_has_the_room(keep: Keep) -> None:
    run, client = borrowing(keep, full(lender("n2", 4)), 1, [0.5])
    assert client.out == ["b1"]
    for _ in range(30):
        run.round()

    assert not client.out and "another program took the capacity" in run.told


def test_what_is_borrowed_is_kept_while_it_is_used_and_be_it_to_finish_calls(keep: Keep) -> None:
    signal = [0.5]
    run, client = borrowing(keep, full(lender("n2", 4)), 9, signal)
    run.nodes = [place("n1", cpus=4, used=amounts(cpu=2))]
    for _ in range(6):
        run.round()
    assert run.ranks("worker") == [0, 1] and client.out == ["b1"]

    signal[0] = 0.0
    counted(run, 1, running=1)
    for _ in range(6):
        run.round()
    assert run.ranks("worker") == [0] and client.out == ["b1"]
    run.round(60.0)
    assert len(run.killed) == 1 and not client.out


def test_a_group_that_found_no_room_wants_no_more_than_it_has(keep: Keep) -> None:
    signal = [0.5]
    group = {"colocation_group": "g", "count": (1, 2)}
    run = keep(follower(signal, **group), RoleSpec("helper", **group))
    run.nodes = full()
    signal[0] = 1.0
    for _ in range(4):
        run.round()
    assert run.parts.wanted == {"worker": 1, "helper": 1} and run.parts.state == "running"

    signal[0] = 0.5
    for _ in range(3):
        run.round()
    run.nodes = [place("n1")]
    for _ in range(4):
        run.round()
    assert run.ranks("helper") == [0]


def test_what_is_borrowed_is_renewed_also_after_a_while_without_the_controller(keep: Keep) -> None:
    run, client = borrowing(keep, full(lender("n2", 4)), 9, [1.5])
    scaling = run.parts.spec("worker").follows
    assert scaling is not None and client.out == ["b1"]
    length_s = scaling.boost_duration_seconds
    client.is_away = True
    run.round(length_s / 3)
    client.is_away = False
    run.round(length_s / 12)
    assert client.renewed == ["b1"], "a third of its length later it would have been close to its end"
    client.out.clear()
    run.round(length_s / 3)
    assert "a boost for worker has ended: it has expired" in run.told
