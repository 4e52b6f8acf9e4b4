"""Moving processes: the order in which it is done, what is left when something fails, and who may."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from builders import process
from fake_cluster import Crashed
from fake_processes import FakeProcesses
from whole_grid import WholeGrid, at_home

from distributed_grid.errors import (
    CannotMove,
    InvalidRequest,
    MoveFailed,
    NotOwner,
    OffloadNotFound,
    ProcessNotFound,
    SameNode,
    TargetNotFound,
    Unavailable,
)
from distributed_grid.model.leases import Purpose
from distributed_grid.model.offload import MoveRequest, Offloaded, OffloadState
from distributed_grid.model.principals import THE_OWNER, Principal, Scope

ANA = Principal("ana", "vision", frozenset({Scope.RUN}), "t1")
EVE = Principal("eve", "", frozenset({Scope.RUN}), "t2")
PID = 4711

pytestmark = pytest.mark.filterwarnings("ignore")


class Lab:
    """A process of ana's runs on node a; b and c have room."""

    def __init__(self, grid: WholeGrid, fake: FakeProcesses) -> None:
        self.grid, self.fake = grid, fake
        self.ids = {raylet.labels["grid/name"]: raylet.node_id for raylet in grid.cluster.raylets()}
        machine = f"machine of {self.ids['a']}"
        self.facts = fake.add(
            self.ids["a"],
            process(PID, "a", machine=machine, memory=0, environment=("HOME", "MY_TOKEN")),
            HOME="/home/ana",
            MY_TOKEN="s3cret",
        )

    @property
    def offloading(self) -> Any:
        found = self.grid.engine.offloading
        assert found is not None
        return found

    def move(self, asker: Principal = ANA, key: str | None = None, **request: Any) -> Offloaded:
        found = self.grid.run(self.offloading.execute(MoveRequest(PID, **request), asker, key))[1]
        assert isinstance(found, Offloaded)
        return found

    def only(self) -> Offloaded:
        (found,) = self.offloading.processes.all()
        assert isinstance(found, Offloaded)
        return found

    def is_running_at_home(self) -> bool:
        return bool(self.fake.running[self.ids["a"]])

    def at_home(self) -> None:
        """Nothing of a move is left; its outcome may be written a moment later."""
        self.grid.wait(0.5)
        at_home(self.grid)
        assert self.fake.runners == {}

    def audit(self) -> str:
        return self.grid.home.audit_log.read_text()


@pytest.fixture
def lab(make_grid: Callable[..., WholeGrid]) -> Lab:
    fake = FakeProcesses()
    return Lab(make_grid(control=fake.control, memory=16), fake)


# -- moving ---------------------------------------------------------------------------------------------------


def test_everything_is_ready_there_before_anything_is_stopped_here(lab: Lab) -> None:
    moved = lab.move(to="b")

    assert (moved.state, moved.from_node, moved.to_node, moved.pid) == (OffloadState.RUNNING, "a", "b", 99)
    assert sorted(lab.fake.done[:2]) == ["create", "environment"]
    assert lab.fake.done[2:] == ["prepare", "stop", "go"]
    (lease,) = lab.grid.leases.values()
    assert (lease.id, lease.source, lease.target, lease.purpose) == (moved.id, "b", "a", Purpose.TASK)
    assert lease.team == "vision"


def test_where_to_is_chosen_by_room_and_files(lab: Lab) -> None:
    lab.fake.missing[lab.ids["c"]] = {"/home/ana/train.py"}

    assert lab.move().to_node == "b"


def test_only_what_is_allowed_or_named_goes_along_and_no_value_is_reported(lab: Lab) -> None:
    plain = lab.move(to="b", keep=True)
    named = lab.move(to="b", keep=True, env=("MY_TOKEN", "NEW=very-private"))

    assert lab.fake.given[plain.id] == {"HOME": "/home/ana"}
    assert lab.fake.given[named.id] == {"HOME": "/home/ana", "MY_TOKEN": "s3cret", "NEW": "very-private"}
    assert "s3cret" not in lab.audit()
    assert "very-private" not in lab.audit()
    assert "MY_TOKEN" in lab.audit(), "the name of what stayed behind is told"


def test_one_that_is_kept_is_not_stopped(lab: Lab) -> None:
    lab.move(to="b", keep=True)

    assert "stop" not in lab.fake.done
    assert lab.is_running_at_home()


def test_the_same_key_moves_it_once(lab: Lab) -> None:
    first = lab.move(to="b", key="k")

    assert lab.move(to="b", key="k").id == first.id
    assert lab.fake.started == [first.id]


def test_its_lease_is_renewed_while_it_runs_and_released_when_it_ends(lab: Lab) -> None:
    moved = lab.move(to="b")
    at_first = lab.grid.leases[moved.id]
    lab.grid.wait(at_first.duration_s / 2 + 60)
    assert lab.only().state is OffloadState.RUNNING
    assert lab.grid.leases[moved.id].expires_at > at_first.expires_at

    lab.fake.ends(moved.id, 3)
    lab.grid.wait(3)

    assert (lab.only().state, lab.only().exit_code) == (OffloadState.ENDED, 3)
    assert lab.fake.runners == {}
    lab.at_home()


# -- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"pid": 1}, ProcessNotFound),
        ({"pid": PID, "node": "nowhere"}, TargetNotFound),
        ({"pid": PID, "to": "nowhere"}, TargetNotFound),
        ({"pid": PID, "created_at": 5.0}, ProcessNotFound),
        ({"pid": PID, "to": "a"}, SameNode),
        ({"pid": PID, "env": ("NOT_THERE",)}, InvalidRequest),
        ({"pid": PID, "cpu": 64.0}, CannotMove),
        ({"pid": PID, "to": "b", "gpu": 1.0}, CannotMove),
    ],
)
def test_what_makes_no_sense_or_does_not_fit_changes_nothing(
    lab: Lab, request_: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        lab.grid.run(lab.offloading.execute(MoveRequest(**request_), THE_OWNER))

    assert lab.fake.done == []
    assert lab.is_running_at_home()
    assert len(lab.grid.events("offload_refused")) == 1
    lab.at_home()


def test_an_obstacle_is_the_reason(lab: Lab) -> None:
    lab.fake.running[lab.ids["a"]] = [process(PID, "a", listening=1)]

    with pytest.raises(CannotMove) as refused:
        lab.move()

    assert refused.value.because == ("it has sockets in use: 1 on which it listens [Sockets]",)
    assert refused.value.exit_code == 4


def test_a_pid_that_several_nodes_have_must_be_told_apart(lab: Lab) -> None:
    lab.fake.add(lab.ids["b"], process(PID, "b"))

    with pytest.raises(InvalidRequest) as refused:
        lab.move()

    assert "--from" in (refused.value.try_next or "")


def test_with_the_scope_run_one_moves_and_ends_only_ones_own(lab: Lab) -> None:
    with pytest.raises(NotOwner):
        lab.move(EVE)
    moved = lab.move(ANA)
    with pytest.raises(NotOwner):
        lab.grid.run(lab.offloading.cancel(moved.id, 1.0, EVE))
    with pytest.raises(NotOwner):
        lab.grid.run(lab.offloading.log(moved.id, 0, EVE))

    assert lab.grid.run(lab.offloading.cancel(moved.id[:8], 1.0, ANA)).state is OffloadState.CANCELLED
    lab.at_home()


def test_a_process_that_is_being_moved_is_not_moved_again(lab: Lab) -> None:
    moved = lab.move(to="b")
    lab.fake.add(lab.ids["a"], lab.facts, HOME="/")  # as if it had not ended yet

    with pytest.raises(CannotMove, match="already"):
        lab.move(to="c")
    assert lab.fake.started == [moved.id]


@pytest.mark.parametrize("step", ["create", "environment", "prepare", "stop", "go"])
def test_a_move_that_is_cancelled_on_its_way_stays_as_it_ended(lab: Lab, step: str) -> None:
    cancelling: list[asyncio.Task[Offloaded]] = []

    def cancel(now: str) -> None:
        if now == step:
            one = lab.only()
            cancelling.append(asyncio.ensure_future(lab.offloading.cancel(one.id, 1.0, ANA)))

    async def moved_and_cancelled() -> Offloaded:
        await asyncio.gather(lab.offloading.execute(MoveRequest(PID, to="b"), ANA), return_exceptions=True)
        return await cancelling[0]

    lab.fake.before = cancel
    ended = lab.grid.run(moved_and_cancelled())
    lab.grid.wait(2)

    assert ended.is_over
    assert lab.only() == ended
    assert lab.audit().count('"offload_ended"') == 1
    lab.at_home()


# -- what may go wrong ----------------------------------------------------------------------------------------


def fails_at(what: str, error: BaseException) -> Callable[[str], None]:
    def before(step: str) -> None:
        if step == what:
            raise error

    return before


def test_if_it_ended_by_itself_meanwhile_it_does_not_run_again(lab: Lab) -> None:
    lab.fake.ends_by_itself = True

    with pytest.raises(CannotMove) as refused:
        lab.move(to="b")

    assert "ended by itself" in refused.value.because[0]
    assert lab.fake.started == []
    lab.at_home()


def test_one_that_cannot_be_ended_is_not_started_elsewhere(lab: Lab) -> None:
    lab.fake.stubborn = True

    with pytest.raises(CannotMove):
        lab.move(to="b")

    assert lab.fake.started == []
    assert lab.is_running_at_home()
    lab.at_home()


def test_if_it_cannot_start_there_a_person_is_told_how_to_start_it_again(lab: Lab) -> None:
    lab.fake.cannot_start = True

    with pytest.raises(MoveFailed) as failed:
        lab.move(to="b")

    assert "no such program" in failed.value.because[0]
    assert "cd /home/ana && /usr/bin/python3 train.py" in (failed.value.try_next or "")
    assert '"runs_nowhere": true' in lab.audit()
    assert lab.only().state is OffloadState.FAILED
    lab.at_home()


def test_if_the_other_node_does_not_get_ready_nothing_was_stopped(lab: Lab) -> None:
    lab.fake.before = fails_at("create", TimeoutError("no answer"))

    with pytest.raises(Unavailable) as failed:
        lab.move(to="b")

    assert "nothing was stopped on a" in failed.value.because
    assert lab.is_running_at_home()
    lab.at_home()


@pytest.mark.parametrize("still_there", [True, False])
def test_where_it_is_unknown_whether_it_ended_it_is_found_out_before_anything_starts(
    lab: Lab, still_there: bool
) -> None:
    def cut_off(step: str) -> None:
        if step == "stop":
            lab.fake.silent.add(lab.ids["a"])
            if not still_there:
                lab.fake.running[lab.ids["a"]] = []

    lab.fake.before = cut_off
    with pytest.raises(Unavailable):
        lab.move(to="b")
    lab.grid.wait(5)
    assert lab.fake.started == [], "it is not known yet"

    lab.fake.silent.clear()
    lab.grid.wait(3)

    assert len(lab.fake.started) == (0 if still_there else 1)
    assert lab.only().state is (OffloadState.FAILED if still_there else OffloadState.RUNNING)


@pytest.mark.parametrize("step", ["create", "environment", "prepare", "stop", "go"])
def test_a_controller_that_dies_on_the_way_leaves_it_running_in_one_place(lab: Lab, step: str) -> None:
    lab.fake.before = fails_at(step, Crashed())
    with pytest.raises(Crashed):
        lab.move(to="b")
    lab.fake.before = lambda _: None
    lab.grid.bury()
    lab.grid.start()
    lab.grid.wait(5)

    places = lab.is_running_at_home() + len(lab.fake.started)
    assert places == 1
    if lab.is_running_at_home():
        lab.at_home()
    else:
        assert lab.only().state is OffloadState.RUNNING


def test_a_controller_that_starts_again_follows_what_runs(lab: Lab) -> None:
    moved = lab.move(to="b")
    lab.grid.crash()
    lab.grid.wait(2)

    assert (lab.only().id, lab.only().state, lab.only().requester) == (moved.id, OffloadState.RUNNING, "ana")
    lab.fake.ends(moved.id, 0)
    lab.grid.wait(2)
    assert lab.only().state is OffloadState.ENDED
    lab.at_home()


@pytest.mark.parametrize("how", ["it ends", "its actor is gone"])
def test_a_cancelled_process_is_cancelled_even_if_another_controller_sees_its_end(lab: Lab, how: str) -> None:
    moved = lab.move(to="b")
    lab.fake.lingers = True
    lab.grid.run(lab.offloading.cancel(moved.id, 600.0, ANA))
    assert not lab.only().is_over, "it has its grace period"

    lab.grid.crash()
    lab.grid.wait(2)
    assert not lab.only().is_over
    if how == "it ends":
        lab.fake.ends(moved.id, 0)
    else:
        del lab.fake.runners[moved.id]
    lab.grid.wait(3)

    assert lab.only().state is OffloadState.CANCELLED
    lab.at_home()


def test_a_cancellation_that_a_crash_cut_off_is_carried_out_by_the_next_controller(lab: Lab) -> None:
    moved = lab.move(to="b")
    lab.fake.before = fails_at("end", Crashed())
    with pytest.raises(Crashed):
        lab.grid.run(lab.offloading.cancel(moved.id, 1.0, ANA))
    lab.fake.before = lambda _: None
    lab.grid.bury()
    lab.grid.start()
    lab.grid.wait(3)

    assert lab.only().state is OffloadState.CANCELLED
    lab.at_home()


def test_a_process_that_is_cancelled_while_it_starts_has_its_grace_period(lab: Lab) -> None:
    cancelling: list[asyncio.Task[Offloaded]] = []

    def cancel(step: str) -> None:
        if step == "go":
            cancelling.append(asyncio.ensure_future(lab.offloading.cancel(lab.only().id, 600.0, ANA)))

    lab.fake.before, lab.fake.lingers = cancel, True
    moved = lab.move(to="b")
    lab.grid.wait(5)
    assert not lab.only().is_over and moved.id in lab.fake.runners

    lab.fake.ends(moved.id, 0)
    lab.grid.wait(3)
    assert lab.only().state is OffloadState.CANCELLED
    lab.at_home()


def test_while_a_process_is_being_cancelled_it_is_shown_as_running(lab: Lab) -> None:
    moved = lab.move(to="b")
    lab.fake.lingers = True
    cancelled = lab.grid.run(lab.offloading.cancel(moved.id, 600.0, ANA))

    assert cancelled.state.shown == "running"


def test_a_runner_that_is_too_busy_to_answer_a_new_controller_keeps_its_process_and_lease(lab: Lab) -> None:
    moved = lab.move(to="b")
    lab.fake.busy.add(moved.id)
    lab.grid.crash()
    lab.grid.wait(5)
    assert "end" not in lab.fake.done and moved.id in lab.fake.runners
    assert moved.id in {lease.id for lease in lab.grid.parts.ledger}

    lab.fake.busy.clear()
    lab.grid.wait(2)

    assert (lab.only().id, lab.only().state) == (moved.id, OffloadState.RUNNING)


def test_where_the_runner_does_not_say_whether_the_old_one_was_stopped_nothing_is_given_up(lab: Lab) -> None:
    def cut_off(step: str) -> None:
        if step == "go":
            lab.fake.busy.update(lab.fake.runners)
            raise TimeoutError("no answer")

    lab.fake.before = cut_off
    with pytest.raises(Unavailable):
        lab.move(to="b")
    assert lab.fake.started == [] and not lab.is_running_at_home()

    lab.fake.before = lambda _: None
    lab.fake.busy.clear()
    lab.grid.wait(3)

    assert len(lab.fake.started) == 1
    assert lab.only().state is OffloadState.RUNNING


def test_a_process_whose_actor_is_gone_is_lost_and_its_lease_is_returned(lab: Lab) -> None:
    moved = lab.move(to="b")
    del lab.fake.runners[moved.id]
    lab.grid.wait(3)

    assert lab.only().state is OffloadState.LOST
    lab.at_home()


def test_a_process_keeps_a_lease_that_is_taken_back_until_the_deadline_and_is_then_ended_gently(lab: Lab) -> None:
    moved = lab.move(to="b")
    lab.grid.run(lab.grid.service.release(moved.id, grace_s=30.0, wait_s=0.0))
    lab.grid.wait(25)

    assert "end" not in lab.fake.done
    assert not lab.only().is_over
    lab.grid.wait(10)

    assert "end" in lab.fake.done or lab.only().state is OffloadState.LOST
    assert lab.only().is_over
    lab.at_home()


def test_what_is_not_known_is_reported(lab: Lab) -> None:
    with pytest.raises(OffloadNotFound):
        lab.grid.run(lab.offloading.cancel("nothing", 1.0, THE_OWNER))


def test_its_log_can_be_read_while_it_runs_and_after(lab: Lab) -> None:
    moved = lab.move(to="b")
    assert lab.grid.run(lab.offloading.log(moved.id, 0, ANA))["text"] == "written"

    lab.fake.ends(moved.id, 0)
    lab.grid.wait(3)

    assert lab.grid.run(lab.offloading.log(moved.id, 0, ANA)) == {
        "text": "left",
        "next": 4,
        "more": False,
        "is_over": True,
        "path": "/log",
        "node": "b",
    }
