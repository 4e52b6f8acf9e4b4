"""The cluster as a run's owner sees it, also while the controller is away; and what is told again and again."""

from types import SimpleNamespace
from typing import Any

import pytest
import ray
from fake_cluster import FakeCluster

from distributed_grid.config import GridConfig
from distributed_grid.errors import ConfigInvalid, ControllerUnreachable
from distributed_grid.model.resources import scale
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.roles.workload import Workload
from distributed_grid.roles.supervision import parts, supervisor, surveying
from distributed_grid.roles.supervision.surveying import Surveyor


class Controller:
    """Calls the nodes by names of its own, and one of them is cordoned."""

    def __init__(self, world: FakeCluster) -> None:
        self.world, self.is_away, self.asked = world, False, 0
        self.withheld: dict[str, float] = {}

    def nodes(self) -> dict[str, Any]:
        self.asked += 1
        if self.is_away:
            raise ControllerUnreachable("The controller does not answer")
        ids = [*self.world.ids().items(), ("dead", "dead-1")]
        return {"nodes": [self._node(name, node_id) for name, node_id in ids]}

    def config(self) -> dict[str, Any]:
        return {"config": GridConfig.from_dict({"roles": {"env_allow": ["LLM_JUDGE_*"]}}).to_dict()}

    def _node(self, name: str, node_id: str) -> dict[str, Any]:
        alive = name != "dead"
        said = {"free": {"cpu": 1.0}, "withheld": self.withheld, "total": {"cpu": 1.0}, "labels": {}, "lendable": {}}
        closed = "it is cordoned" if name == "b" else None if alive else "it is not connected to the cluster"
        own = {"name": f"my-{name}" if alive else name, "node_id": node_id, "alive": alive, "closed": closed}
        return own | said | {"gpu_parts": []}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    world = FakeCluster()
    world.add_node("a", cpus=4)
    world.add_node("b", cpus=2)
    monkeypatch.setattr(surveying, "RayCluster", lambda _: world)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="here"))
    return world


def test_what_all_actors_may_have_of_the_environment_is_in_the_configuration_of_the_running_grid(
    world: FakeCluster,
) -> None:
    controller: Any = Controller(world)
    assert Surveyor(controller).env_allow == ("LLM_JUDGE_*",)
    assert Surveyor(None).env_allow == ()
    with pytest.raises(ConfigInvalid) as raised:
        GridConfig.from_dict({"roles": {"env_allow": ["RANK"]}})
    assert "RANK is set for each actor" in str(raised.value.because)


def test_while_the_controller_is_away_ray_is_looked_at_with_the_names_that_it_gave_last(world: FakeCluster) -> None:
    controller: Any = Controller(world)
    surveyor = Surveyor(controller)
    before = surveyor.look()
    assert before.ids == {"my-a": world.ids()["a"], "my-b": world.ids()["b"]}

    controller.is_away = True
    world.start("a", cpus=3)
    world.kill_node("b")
    world.add_node("dead", cpus=1)  # its name is known to the controller, which has not seen that it is back
    after = surveyor.look()

    assert after.ids == {"my-a": world.ids()["a"], "dead": world.ids()["dead"]}
    assert after.inventory["my-a"].free["cpu"] < before.inventory["my-a"].free["cpu"]
    assert not after.inventory["dead"].closed


def test_no_member_is_planned_on_what_programs_outside_ray_use(world: FakeCluster) -> None:
    controller: Any = Controller(world)
    free = Surveyor(controller).look().inventory["my-a"].free["cpu"]

    controller.withheld = {"cpu": 1.0}
    seen = Surveyor(controller).look().inventory

    assert seen["my-a"].free["cpu"] == free - scale("cpu")


def test_limits_stay_and_a_controller_that_was_away_is_left_alone_for_a_while(
    world: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(surveying, "time", SimpleNamespace(monotonic=lambda: clock.now))
    controller: Any = Controller(world)
    surveyor = Surveyor(controller)
    surveyor.look()

    controller.is_away = True
    for _ in range(5):
        assert "cordoned" in surveyor.look().inventory["my-b"].closed
    assert controller.asked == 2

    controller.is_away = False
    clock.now += 60
    surveyor.look()
    assert controller.asked == 3


def test_a_controller_that_never_answered_is_told(world: FakeCluster) -> None:
    controller: Any = Controller(world)
    controller.is_away = True
    with pytest.raises(ControllerUnreachable):
        Surveyor(controller).look()


def test_what_is_told_again_and_again_does_not_push_out_what_happened_before() -> None:
    process_set: Any = SimpleNamespace(by_name={})
    nothing: Any = None
    surveyor: Any = SimpleNamespace(user_and_team=("ana", "vision"))
    run = parts.RunParts("run-1", Workload("w", (RoleSpec("worker"),)), process_set, nothing, surveyor)
    run.note("worker 0 died")
    for _ in range(100):
        run.note("a supervision round failed")
    run.note("worker 0 is up")
    run.note("a supervision round failed")

    record = supervisor.record_of(run, "job", "worker", "node")
    assert (record["owner"]["user"], record["owner"]["team"]) == ("ana", "vision")
    assert [event["message"] for event in record["events"]] == [
        "worker 0 died",
        "a supervision round failed (100 times)",
        "worker 0 is up",
        "a supervision round failed",
    ]
