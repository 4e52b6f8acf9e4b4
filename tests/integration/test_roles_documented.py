"""The documented API on a real cluster: code as it was written for it, and what Ray has then."""

import gc
import os
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import ray
from live_grid import ONE_LENDER, LiveGrid, until

from distributed_grid.errors import DoesNotFit, MemberFailed
from distributed_grid.execution.role_records import RoleRecords
from distributed_grid.roles import NexRLRole, RayResourceManager, Workload, ray_resource_manager

pytestmark = pytest.mark.cluster
CONFIG = ONE_LENDER

# How a framework of this kind uses the API: it learns of its modules by roles, waits for their actors itself, and tells
# each of the others by handing wrappers around.
AS_IT_WAS = """
import logging, os, threading
from dataclasses import dataclass
import ray
from nexrl.nexrl_types import NexRLRole
from nexrl.ray_resource_manager import RayResourceManager, _get_minimal_env_vars


@dataclass
class Settings:
    steps: int
    num_workers: int


def execute(func, *args, **kwargs):
    if os.getenv("NEXRL_LAUNCH_MODE", "local") == "local" or not hasattr(func, "remote"):
        return func(*args, **kwargs)
    return ray.get(func.remote(*args, **kwargs), timeout=40)


class Module:
    def __init__(self, config):
        self._config, self._tracker, self._name = config, None, "invalid"

    def set_activity_tracker(self, tracker, name):
        self._tracker, self._name = tracker, name

    def set_module_references(self, **modules):
        for name, module in modules.items():
            setattr(self, "_" + name, module)

    def health_check(self):
        return True

    def environment(self):
        return os.getpid(), dict(os.environ)


class DataLoader(Module):
    def get_next_item(self):
        self._config.steps -= 1
        return self._config.steps if self._config.steps >= 0 else None


class TrajectoryPool(Module):
    def put_trajectory(self, trajectory):
        self.__dict__.setdefault("_trajectories", []).append(trajectory)

    def get_trajectories(self):
        return self.__dict__.get("_trajectories", [])


class WeightSyncController(Module):
    def notify(self, worker):
        return f"{worker} and {self._name}"


class RolloutWorker(Module):
    def run(self):
        self._thread = threading.Thread(target=self._main_loop)
        self._thread.start()

    def _main_loop(self):
        while (item := execute(self._dataloader.get_next_item)) is not None:
            execute(self._trajectory_pool.put_trajectory, (item, self._name))
            execute(self._tracker.report, self._name)

    def stop(self):
        self._thread.join()


class Trainer(RolloutWorker):
    def _main_loop(self):
        self._told = execute(self._weight_sync_controller.notify, worker=self._name)

    def get_told(self):
        return self._told


class ActivityTracker:
    def __init__(self):
        self._modules, self._seen = {}, []

    def register_module(self, name, refs):
        self._modules[name] = refs

    def report(self, name):
        self._seen.append(name)

    def healthy(self):
        return {name: execute(refs[0].health_check) for name, refs in self._modules.items()}


class Controller:
    def __init__(self, config):
        os.environ["NEXRL_LAUNCH_MODE"] = "ray"
        remote = ray.remote(ActivityTracker)
        self.tracker = remote.options(runtime_env={"env_vars": _get_minimal_env_vars()}, num_cpus=0).remote()
        self.manager = RayResourceManager()
        for role, cls in [
            (NexRLRole.DATA_LOADER, DataLoader),
            (NexRLRole.TRAJECTORY_POOL, TrajectoryPool),
            (NexRLRole.WEIGHT_SYNC_CONTROLLER, WeightSyncController),
        ]:
            self.manager.register_role(role=role, cls=cls, config=config, count=1, colocation_group="main")
        self.manager.register_role(NexRLRole.ROLLOUT_WORKER, RolloutWorker, config, config.num_workers, None)
        self.manager.register_role(NexRLRole.TRAINER, Trainer, config)
        self.manager.create_all_actors()

        self.loader = self._init(NexRLRole.DATA_LOADER)[0]
        self.pool = self._init(NexRLRole.TRAJECTORY_POOL)[0]
        self.weights = self._init(NexRLRole.WEIGHT_SYNC_CONTROLLER)[0]
        self.workers = self._init(NexRLRole.ROLLOUT_WORKER)
        self.trainer = self._init(NexRLRole.TRAINER)[0]
        for worker in self.workers:
            execute(worker.set_module_references, trajectory_pool=self.pool, dataloader=self.loader)
        execute(self.trainer.set_module_references, trajectory_pool=self.pool, weight_sync_controller=self.weights)
        if hasattr(self.trainer, "set_service_holder"):
            execute(self.trainer.set_service_holder, None)

    def _init(self, role):
        modules = self.manager.get_actor_wrapper(role)
        for i, module in enumerate(modules):
            if hasattr(module, "_actor"):
                ray.get(module._actor.__ray_ready__.remote(), timeout=60)
            execute(module.set_activity_tracker, self.tracker, f"{role.value}-{i}")
            execute(self.tracker.register_module, f"{role.value}-{i}", modules)
        return modules

    def run(self):
        for one in (self.trainer, *self.workers):
            execute(one.run)
        for one in (self.trainer, *self.workers):
            execute(one.stop)


controller = Controller(Settings(steps=8, num_workers=2))
controller.run()
"""


def cpus_in_use() -> float:
    return ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0.0)


def in_use(cpus: float) -> None:
    until(lambda: cpus_in_use() == cpus, 10, f"{cpus} CPUs in use")


def test_code_as_it_was_works_when_only_its_imports_are_replaced(
    grid: LiveGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"MY_SECRET": "s", "WANDB_KEY": "k", "RANK": "7"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("LOG_LEVEL", raising=False)
    monkeypatch.setenv("NEXRL_LAUNCH_MODE", "local")  # it sets that itself, and leaves it set
    grid.settled()
    replaced = AS_IT_WAS.replace("nexrl.nexrl_types", "distributed_grid.roles").replace(
        "nexrl.", "distributed_grid.roles."
    )
    names: dict[str, Any] = {"__name__": "as_it_was"}
    exec(compile(replaced, "as_it_was.py", "exec", dont_inherit=True), names)
    controller = names["controller"]
    try:
        # Three roles in one actor, two workers and a trainer: four CPUs.
        in_use(4)
        put = ray.get(controller.pool.get_trajectories.remote())
        assert sorted(item for item, _ in put) == list(range(8))
        assert {name for _, name in put} <= {"rollout_worker-0", "rollout_worker-1"}
        assert ray.get(controller.trainer.get_told.remote()) == "trainer-0 and weight_sync_controller-0"
        assert set(ray.get(controller.tracker.healthy.remote()).values()) == {True}

        shown = {
            name: [one for one in dir(wrapper) if not one.startswith("_")]
            for name, wrapper in {"pool": controller.pool, "loader": controller.loader}.items()
        }
        assert "put_trajectory" in shown["pool"] and "get_next_item" not in shown["pool"]
        assert "get_next_item" in shown["loader"] and "put_trajectory" not in shown["loader"]
        assert not hasattr(controller.pool, "get_next_item")

        wrappers = [controller.pool, controller.loader, controller.weights, *controller.workers, controller.trainer]
        (pool, loader, weights, first, second, trainer) = ray.get([one.environment.remote() for one in wrappers])
        assert pool[0] == loader[0] == weights[0]
        assert len({one[0] for one in (pool, first, second, trainer)}) == 4
        assert [(env["RANK"], env["WORLD_SIZE"]) for _, env in (first, second)] == [("0", "2"), ("1", "2")]
        assert (trainer[1]["RANK"], trainer[1]["WORLD_SIZE"]) == ("0", "1")
        for _, env in (pool, first, trainer):
            assert "MY_SECRET" not in env
            assert (env["LOG_LEVEL"], env["NEXRL_LAUNCH_MODE"], env["WANDB_KEY"]) == ("INFO", "ray", "k")
    finally:
        controller.manager.shutdown()
        ray.kill(controller.tracker)
    in_use(0)


class Place(Enum):
    KITCHEN = "the kitchen"
    CELLAR = 2


@dataclass(frozen=True)
class Recipe:
    name: str


class Cook:
    def __init__(self, recipe: Recipe) -> None:
        if recipe.name == "burnt":
            raise RuntimeError("the cake is burnt")
        self.recipe = recipe

    async def serve(self) -> tuple[Recipe, str]:
        return self.recipe, os.environ["RANK"]

    def plates(self, first: int) -> Any:
        yield first
        yield first + 1


def test_roles_of_an_enum_of_ones_own_in_leases_of_grid(grid: LiveGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRID_HOME", str(grid.home.path))
    grid.settled()
    with RayResourceManager("dinner") as manager:
        manager.register_role(Place.KITCHEN, Cook, Recipe("cake"), count=2)
        manager.register_role(Place.CELLAR, Cook, Recipe("wine"), cpus=2)
        manager.create_all_actors()

        cooks, (keeper,) = manager.get_actor_wrapper(Place.KITCHEN), manager.get_actor_wrapper("CELLAR")
        assert ray.get([one.serve.remote() for one in cooks]) == [(Recipe("cake"), "0"), (Recipe("cake"), "1")]
        assert ray.get(keeper.serve.remote()) == (Recipe("wine"), "0")
        assert [ray.get(one) for one in cooks[0].plates.remote(3)] == [3, 4]
        assert {boost["state"] for boost in grid.client.boost_status()["boosts"]} == {"active"}
        assert [one["up"] for one in manager.run.status()["roles"]] == [2, 1]

        # As with any Ray actor: one that is gone is gone, and the others go on.
        ray.kill(cooks[1]._actor)
        until(lambda: manager.run.status()["roles"][0]["up"] == 1, 10, "it is known to be gone")
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(cooks[1].serve.remote())
        assert manager.get_actor_wrapper(Place.KITCHEN) == cooks
        assert ray.get(cooks[0].serve.remote()) == (Recipe("cake"), "0")
    in_use(0)
    assert grid.client.boost_status()["boosts"] == []
    assert RoleRecords.connected().names() == []


def test_what_cannot_be_created_leaves_nothing_and_can_be_tried_again(grid: LiveGrid) -> None:
    grid.settled()
    manager = RayResourceManager(wait_s=0)
    manager.register_role(NexRLRole.TRAINER, Cook, Recipe("cake"), profile="trainer_self_hosted", count=2)
    with pytest.raises(DoesNotFit):
        manager.create_all_actors()
    manager.register_role(NexRLRole.TRAINER, Cook, Recipe("burnt"))
    with pytest.raises(MemberFailed, match="the cake is burnt"):
        manager.create_all_actors()
    in_use(0)


def experiment(number: int, in_a_circle: bool) -> Any:
    """Takes most of the cluster, and forgets to give it back."""
    manager = RayResourceManager("experiment")
    manager.register_role("cook", Cook, Recipe(f"cake {number}"), count=2, cpus=3)
    manager.create_all_actors()
    if in_a_circle:
        manager.itself = manager  # type: ignore[attr-defined]
    return [cook.serve.remote() for cook in manager.get_actor_wrapper("cook")]


def test_several_experiments_of_one_program_follow_each_other_though_none_is_shut_down(
    grid: LiveGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRID_HOME", str(grid.home.path))
    grid.settled()
    for number in range(3):
        served = ray.get(experiment(number, in_a_circle=number == 1), timeout=120)
        assert [recipe for recipe, _ in served] == [Recipe(f"cake {number}")] * 2, "calls that were made are answered"

    # A member that is still held keeps its run.
    manager = RayResourceManager("held", leases=False)
    manager.register_role("cook", Cook, Recipe("wine"), cpus=0.5)
    manager.create_all_actors()
    (cook,) = manager.get_actor_wrapper("cook")
    run = manager.run
    del manager
    gc.collect()
    in_use(0.5)
    assert ray.get(cook.serve.remote(), timeout=60) == (Recipe("wine"), "0") and not run.wait(3)
    del cook
    assert run.wait(120) and run.state == "ended"
    in_use(0)
    assert grid.client.boost_status()["boosts"] == []


def of_cooks(name: str) -> RayResourceManager:
    """Takes most of the cluster."""
    manager = RayResourceManager(name)
    manager.register_role("cook", Cook, Recipe("cake"), count=2, cpus=3)
    return manager


@pytest.fixture
def in_a_hurry(grid: LiveGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that scaling ends have a second for their calls."""
    monkeypatch.setenv("GRID_HOME", str(grid.home.path))
    for module in ("decide.roles.scaling", "roles.supervision.resizing"):
        monkeypatch.setattr(f"distributed_grid.{module}.FINISH_S", 1.0)
    grid.settled()


def test_calls_that_were_made_are_answered_however_long_they_take_though_their_manager_was_dropped(
    grid: LiveGrid, in_a_hurry: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = RayResourceManager("slow")
    manager.register_role("runs", Blocks, None, cpus=3)
    manager.register_role("waits", Blocks, None, cpus=3)
    manager.create_all_actors()
    (runs,), (waits,) = manager.get_actor_wrapper("runs"), manager.get_actor_wrapper("waits")
    held = runs.hold.remote(str(tmp_path))
    then = waits.get_train_step.remote(held)  # it is not sent before its argument is there
    del manager, runs, waits
    until(lambda: grid.client.role_run("slow")["state"] == "stopping", what="it is known to be dropped")
    time.sleep(8)
    assert not ray.wait([held, then], timeout=0)[0]

    # A manager that needs the room does not wait for ever.
    monkeypatch.setattr(ray_resource_manager, "ROOM_S", 2.0)
    with pytest.raises(DoesNotFit) as refused:
        of_cooks("next").create_all_actors()
    assert refused.value.because[-1].startswith("slow, an earlier run of this process, has not ended: ")
    assert "runs 0 on lender finishes its calls" in refused.value.because[-1]

    (tmp_path / "open").touch()
    assert ray.get([held, then], timeout=60) == [None, 0]
    monkeypatch.setattr(ray_resource_manager, "ROOM_S", 60.0)
    with of_cooks("next") as cooks:
        cooks.create_all_actors()
    in_use(0)


def test_a_run_that_ends_while_the_next_manager_looks_for_room_leaves_that_its_room(
    grid: LiveGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRID_HOME", str(grid.home.path))
    grid.settled()
    before = of_cooks("before")
    before.create_all_actors()
    run = before.run
    del before
    launch, tried = ray_resource_manager.launch, []

    def too_early(workload: Workload, **options: Any) -> Any:
        tried.append(workload.name)
        if len(tried) == 1:  # it has looked, and only then the other one ends
            assert run.wait(120)
            raise DoesNotFit("there was no room when it looked")
        return launch(workload, **options)

    monkeypatch.setattr(ray_resource_manager, "launch", too_early)
    with of_cooks("after") as after:
        after.create_all_actors()
    assert tried == ["after", "after"]


class Blocks:
    """Works until it is stopped, as trainers of such frameworks do."""

    def __init__(self, config: Any) -> None:
        self.steps, self.stopped = 0, threading.Event()

    def run(self) -> str:
        self.steps += 1
        self.stopped.wait()
        return "stopped"

    def get_train_step(self, _: Any = None) -> int:
        return self.steps

    def stop(self) -> None:
        self.stopped.set()

    def hold(self, folder: str) -> None:
        Path(folder, uuid.uuid4().hex).touch()
        while not Path(folder, "open").exists():
            time.sleep(0.05)


def test_a_trainer_can_be_asked_and_stopped_while_its_run_blocks_and_its_end_ends_no_other_role(
    grid: LiveGrid, tmp_path: Path
) -> None:
    grid.settled()
    with RayResourceManager() as manager:
        manager.register_role(NexRLRole.TRAINER, Blocks, None)
        for role in (NexRLRole.TRAJECTORY_POOL, NexRLRole.DATA_LOADER):
            manager.register_role(role, Blocks, None, colocation_group="main")
        manager.create_all_actors()
        (trainer,) = manager.get_actor_wrapper(NexRLRole.TRAINER)
        (pool,) = manager.get_actor_wrapper(NexRLRole.TRAJECTORY_POOL)
        (loader,) = manager.get_actor_wrapper(NexRLRole.DATA_LOADER)

        run = trainer.run.remote()
        until(lambda: ray.get(trainer.get_train_step.remote(), timeout=60) == 1, what="it answers while it runs")
        ray.get(trainer.stop.remote(), timeout=60)
        assert ray.get(run, timeout=60) == "stopped"

        # An actor with several roles takes ten calls at a time, of all of them together.
        held = [one.hold.remote(str(tmp_path)) for one in (pool, loader) for _ in range(8)]
        until(lambda: len([*tmp_path.iterdir()]) >= 10, what="ten calls are in it")
        time.sleep(1)
        assert len([*tmp_path.iterdir()]) == 10
        (tmp_path / "open").touch()
        ray.get(held, timeout=60)

        ray.kill(trainer._actor)
        until(lambda: manager.run.status()["roles"][0]["up"] == 0, what="it is known to be gone")
        assert ray.get([one.get_train_step.remote() for one in (pool, loader)], timeout=60) == [0, 0]
        assert not manager.run.wait(0) and manager.run.state == "running"
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(trainer.get_train_step.remote())
    in_use(0)


class Counts:
    """How many instances have had its config, and whether it knows the others."""

    def __init__(self, config: dict[str, int]) -> None:
        config["instances"] = config.get("instances", 0) + 1
        self.config, self.knows = config, False

    def on_peers(self, _: Any) -> None:
        self.knows = True

    def told(self) -> tuple[int, bool]:
        return self.config["instances"], self.knows


def test_the_differences_that_the_page_lists_are_as_it_says(grid: LiveGrid) -> None:
    grid.settled()
    with RayResourceManager(leases=False) as manager:
        shared: dict[str, int] = {}
        for role in (NexRLRole.TRAJECTORY_POOL, NexRLRole.DATA_LOADER):
            manager.register_role(role, Counts, shared, colocation_group="main", cpus=0.5)
        manager.register_role(NexRLRole.ROLLOUT_WORKER, Counts, shared, count=(1, 2), cpus=0.5)
        manager.create_all_actors()
        (pool,) = manager.get_actor_wrapper(NexRLRole.TRAJECTORY_POOL)
        (loader,) = manager.get_actor_wrapper(NexRLRole.DATA_LOADER)
        workers = manager.get_actor_wrapper(NexRLRole.ROLLOUT_WORKER)

        # Each role has its own copy of a config; grid calls on_peers, which is no method of the wrapper.
        assert ray.get([one.told.remote() for one in (pool, loader)], timeout=60) == [(1, True)] * 2
        assert [name for name in dir(pool) if not name.startswith("_")] == ["told"]
        assert pool._actor == loader._actor

        # Wrong arguments raise in ray.get, not in .remote().
        wrong = pool.told.remote("of nothing")
        with pytest.raises(TypeError, match="told"):
            ray.get(wrong, timeout=60)

        # Members that are scaled away stay in the list.
        assert len(workers) == 2
        manager.run.scale(NexRLRole.ROLLOUT_WORKER.value, 1)
        assert manager.get_actor_wrapper(NexRLRole.ROLLOUT_WORKER) == workers
        assert not issubclass(MemberFailed, ray.exceptions.RayActorError)
    in_use(0)


OF_A_PACKAGE = """
import threading
from dataclasses import dataclass


@dataclass
class Progress:
    done: int = 0
    lock: object = threading.Lock()


class Counter:
    def __init__(self, config):
        self.progress = config

    def add(self, more: Progress):
        with self.progress.lock:
            self.progress.done += more.done
        import {name}
        return self.progress.done, type(self) is {name}.Counter, type(more) is {name}.Progress

    @staticmethod
    def new(done):
        return Progress(done)


Progress.__reduce__ = lambda self: (Progress, (self.done,))
"""

WITH_PACKAGES = """
import sys
import ray
sys.path.append(sys.argv[1])  # as a package that was installed with `pip install -e` has it
import at_the_end, in_front
from distributed_grid.roles import RayResourceManager

ray.init(address=sys.argv[2], log_to_driver=False, logging_level="ERROR")
with RayResourceManager(leases=False) as manager:
    for module in (at_the_end, in_front):
        manager.register_role(module.__name__, module.Counter, module.Progress(1), cpus=0.5)
    manager.create_all_actors()
    for module in (at_the_end, in_front):
        (counter,) = manager.get_actor_wrapper(module.__name__)
        print(*ray.get(counter.add.remote(module.Progress(2))))
"""


def test_classes_of_packages_that_are_not_installed_are_imported_where_their_actors_run(
    grid: LiveGrid, tmp_path: Path
) -> None:
    """They could not be sent: there is a lock in them. Nodes were started elsewhere, without these folders."""
    for name in ("in_front", "at_the_end", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_text(OF_A_PACKAGE.format(name=name))
    program = tmp_path / "program.py"
    program.write_text(WITH_PACKAGES)
    env = grid.env | {"PYTHONPATH": str(tmp_path / "in_front")}

    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "at_the_end"), grid.address],
        env=env,
        cwd=tmp_path / "elsewhere",
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["3 True True"] * 2


WITH_A_SHIPPED_PACKAGE = """
import sys
import ray
sys.path.insert(0, sys.argv[1])
import shipped
from distributed_grid.roles import RayResourceManager

ray.init(address=sys.argv[2], runtime_env={"py_modules": [shipped.__path__[0]]}, log_to_driver=False)
with RayResourceManager(leases=False) as manager:
    manager.register_role("where", shipped.Where, None, cpus=0.5)
    manager.create_all_actors()
    (where,) = manager.get_actor_wrapper("where")
    print(ray.get(where.file.remote()))
"""


def test_a_package_that_ray_ships_is_used_though_the_nodes_have_the_programs_own_folder(
    grid: LiveGrid, tmp_path: Path
) -> None:
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "__init__.py").write_text(
        "class Where:\n    def __init__(self, config):\n        pass\n\n    def file(self):\n        return __file__\n"
    )
    command = [sys.executable, "-c", WITH_A_SHIPPED_PACKAGE, str(tmp_path), grid.address]

    done = subprocess.run(command, env=grid.env, cwd=grid.folder, capture_output=True, text=True, timeout=240)

    assert done.returncode == 0, done.stderr
    assert "/runtime_resources/py_modules_files/" in done.stdout and str(tmp_path) not in done.stdout


NOT_CONNECTED = """
import ray
from distributed_grid.roles import RayResourceManager

class Adder:
    def __init__(self, start):
        self.sum = start
    def add(self, one):
        self.sum += one
        return self.sum

class Controller:
    def run(self, leases):
        self.manager = RayResourceManager(leases=leases)
        self.manager.register_role("adder", Adder, 1)
        self.manager.create_all_actors()
        (adder,) = self.manager.get_actor_wrapper("adder")
        return ray.get(adder.add.remote(2))
    def end(self):
        self.manager.shutdown()

assert not ray.is_initialized()
first = Controller()
print(first.run(leases=True))
ray.shutdown()
second = ray.remote(Controller).remote()
print(ray.get(second.run.remote(leases=False)))
first.manager.run.wait()
print(first.manager.run.why)
first.manager.shutdown()
ray.get(second.end.remote())
ray.shutdown()
"""


LEAVES_AT_ANY_MOMENT = """
import random, sys, threading, time
import ray
from ray._private import worker
from distributed_grid.roles import RayResourceManager, RoleSpec, Scaling, Workload, attach, launch

class Busy:
    def __init__(self, config=None):
        self.level = 0.5
    def step(self, seconds):
        time.sleep(seconds)
    def fullness(self):
        return self.level

leave, had_ended = worker.disconnect, []
def leave_watched(*args, **options):
    had_ended.append(manager.run.wait(0))
    return leave(*args, **options)
worker.disconnect = leave_watched

moments = random.Random(12)
for number in range(4):
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
    manager = RayResourceManager("leaves")
    manager.register_role("busy", Busy, None, count=2, cpus=3)
    manager.create_all_actors()
    steps = [one.step.remote(moments.random()) for one in manager.get_actor_wrapper("busy")]
    if number == 1:
        attached = attach("leaves")
        scaling = Scaling({"role": "busy", "method": "fullness"}, up_at=0.1, down_at=0.01, every_seconds=0.1)
        launch(Workload("grows", (RoleSpec("busy", Busy, cpus=0.1, count=(1, 2), scaling=scaling),)), leases=False)
    time.sleep(moments.random())
    if number < 3:
        ray.shutdown()
print("through", had_ended)
"""


@pytest.mark.slow
@pytest.mark.timeout(400)  # it starts ten actors, one after the other
def test_a_program_may_leave_ray_at_any_moment_and_the_next_one_has_its_room(grid: LiveGrid) -> None:
    """Runs that are busy, that scale, that are attached to; the last one ends with its process."""
    grid.settled()
    command = [sys.executable, "-c", LEAVES_AT_ANY_MOMENT, grid.address]

    done = subprocess.run(command, env=grid.env, capture_output=True, text=True, timeout=400)

    assert (done.returncode, done.stdout) == (0, "through [True, True, True]\n"), done.stderr
    assert "shutdown" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    in_use(0)
    assert grid.client.boost_status()["boosts"] == []


LEAVES_IN_BETWEEN = """
import os, signal, sys, threading, time
import ray
from distributed_grid.errors import GridError
from distributed_grid.roles import RayResourceManager

address, moment = sys.argv[1:]

class Slow:
    def __init__(self, config):
        time.sleep(3600 if "creates" in moment else 0)

def on_signal(number, frame):
    print("leaves", flush=True)
    ray.shutdown()
    sys.exit(7)

def send_signal():
    os.kill(os.getpid(), signal.SIGTERM)

def progress(said):
    if "creates" in moment and "actors are up" in said:
        leave = ray.shutdown if moment == "creates, and a thread leaves" else send_signal
        threading.Timer(0.3, leave).start()

ray.init(address=address, log_to_driver=False, logging_level="ERROR")
signal.signal(signal.SIGTERM, on_signal)
manager = RayResourceManager("leaves", progress=progress)
manager.register_role("slow", Slow, None, count=2, cpus=3)
try:
    manager.create_all_actors()
except GridError as error:
    print(error.message, flush=True)
    sys.exit(8)
give_back = manager.run.parts.places.give_back

def slowly(held):
    send_signal()
    time.sleep(0.5)
    give_back(held)

manager.run.parts.places.give_back = slowly
if moment == "shuts down":
    manager.shutdown()
ray.shutdown()
time.sleep(3600)
"""


@pytest.mark.parametrize("moment", ["shuts down", "leaves Ray", "creates", "creates, and a thread leaves"])
def test_a_program_may_leave_ray_while_it_starts_or_ends_a_run_and_has_its_own_exit_code(
    grid: LiveGrid, moment: str
) -> None:
    """Signal handlers run between any two lines of what they interrupt."""
    grid.settled()
    command = [sys.executable, "-c", LEAVES_IN_BETWEEN, grid.address, moment]

    done = subprocess.run(command, env=grid.env, capture_output=True, text=True, timeout=150)

    in_thread = (8, "leaves did not start: its process leaves Ray")
    code, first_line = in_thread if "thread" in moment else (7, "leaves")
    assert (done.returncode, done.stdout.splitlines()[0]) == (code, first_line), done.stderr
    assert "shutdown" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    in_use(0)
    assert grid.client.boost_status()["boosts"] == [] and "leaves" not in RoleRecords.connected().names()


def test_ray_is_found_as_ray_finds_it_and_to_leave_ray_is_enough(grid: LiveGrid) -> None:
    """Twice in one process: by a driver that has not called ray.init, then by an actor."""
    grid.settled()
    env = grid.env | {"RAY_ADDRESS": grid.address}

    done = subprocess.run([sys.executable, "-c", NOT_CONNECTED], env=env, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["3", "3", "the process that owns it left Ray"]
    assert "Traceback" not in done.stderr
    in_use(0)
    assert grid.client.boost_status()["boosts"] == []
