"""What the actors of a run are started with: the folders to search for classes, and variables of the environment."""

from types import SimpleNamespace
from typing import Any

import pytest
import ray
from builders import amounts, workload
from fake_cluster import FakeCluster
from fake_key_value_store import FakeKeyValueStore
from role_classes import Sync

from distributed_grid.config import GridConfig
from distributed_grid.execution import packing
from distributed_grid.execution.role_records import RoleRecords
from distributed_grid.model.roles.processes import Held, ProcessSpec
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.roles.workload import Workload
from distributed_grid.roles.run import Run
from distributed_grid.roles.supervision import surveying
from distributed_grid.roles.supervision.hosting import Hosting
from distributed_grid.roles.supervision.surveying import Surveyor

NODE_ID = "ab" * 28
SHIPPED = [{"working_dir": "gcs://a.zip"}, {"py_modules": ["gcs://b.zip"]}, {"working_dir": "a", "py_modules": ["b"]}]


class ActorClass:
    """Keeps what an actor would be started with."""

    def __init__(self) -> None:
        self.with_options: dict[str, Any] = {}
        self.with_arguments: tuple[Any, ...] = ()

    def options(self, **options: Any) -> "ActorClass":
        self.with_options = options
        return self

    def remote(self, *arguments: Any) -> "ActorClass":
        self.with_arguments = arguments
        return self


@pytest.fixture(autouse=True)
def _actors_that_are_only_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hosting, "actor_class", lambda self, roles: ActorClass())


def connected(monkeypatch: pytest.MonkeyPatch, **runtime_env: Any) -> None:
    """As in a process that has called ray.init(runtime_env=...)."""
    ids = {f"get_{what}_id": lambda: NODE_ID for what in ("job", "node", "worker")}
    context = SimpleNamespace(runtime_env=runtime_env, gcs_address="here", **ids)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)


def started(found: Hosting, role: str = "r") -> ActorClass:
    process = ProcessSpec("run-1", (role,), 0, "n1", amounts(cpu=1))
    actor: ActorClass = found.start(process, Held(None, NODE_ID, None), {}, None, 0)  # type: ignore[arg-type]
    return actor


# -- folders ---------------------------------------------------------------------------------------------------


def folders(found: Hosting) -> Any:
    place = started(found).with_arguments[0]
    return place["folders"]


@pytest.fixture
def _own_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "own_folders", lambda: (["/in/front"], ["/at/the/end"]))


@pytest.mark.usefixtures("_own_folders")
def test_the_programs_own_folders_are_searched_where_it_searches_them(monkeypatch: pytest.MonkeyPatch) -> None:
    load = workload(RoleSpec("r", Sync))
    assert folders(Hosting(load)) == (["/in/front"], ["/at/the/end"])
    connected(monkeypatch, env_vars={"A": "1"})
    assert folders(Hosting(load)) == (["/in/front"], ["/at/the/end"])


@pytest.mark.usefixtures("_own_folders")
@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda shipped: "+".join(shipped))
def test_what_ray_brings_to_a_node_comes_before_the_programs_own_folders(
    monkeypatch: pytest.MonkeyPatch, shipped: dict[str, Any]
) -> None:
    connected(monkeypatch, **shipped)

    assert folders(Hosting(workload(RoleSpec("r", Sync)))) == ([], ["/in/front", "/at/the/end"])


# -- environment -----------------------------------------------------------------------------------------------

CALLER = {"LLM_JUDGE_URL": "u", "LLM_JUDGE_KEY": "k", "SHAPE": "round", "A_SECRET": "x", "RANK": "9"}


def env_vars(found: Hosting, role: str = "r") -> dict[str, str]:
    runtime_env = started(found, role).with_options["runtime_env"]
    return dict(runtime_env["env_vars"]) if runtime_env else {}


def test_actors_get_what_the_configuration_or_their_role_allows_and_nothing_else() -> None:
    load = workload(RoleSpec("r", Sync), RoleSpec("more", Sync, env_allow=["SHAPE"]))

    assert env_vars(Hosting(load, CALLER)) == {}
    found = Hosting(load, CALLER, env_allow=["LLM_JUDGE_*"])
    assert env_vars(found) == {"LLM_JUDGE_URL": "u", "LLM_JUDGE_KEY": "k"}
    assert env_vars(found, "more") == {"LLM_JUDGE_URL": "u", "LLM_JUDGE_KEY": "k", "SHAPE": "round"}


@pytest.mark.parametrize(("has_controller", "expected"), [(True, {"LLM_JUDGE_URL": "u"}), (False, {})])
def test_a_run_takes_the_list_of_the_running_grid_and_without_one_there_is_none(
    monkeypatch: pytest.MonkeyPatch, has_controller: bool, expected: dict[str, str]
) -> None:
    config = GridConfig.from_dict({"roles": {"env_allow": ["LLM_JUDGE_*"]}}).to_dict()
    answers = SimpleNamespace(config=lambda: {"config": config}, nodes=lambda: {"nodes": []})
    controller: Any = answers if has_controller else None
    connected(monkeypatch)
    monkeypatch.setattr(surveying, "RayCluster", lambda _: FakeCluster())
    monkeypatch.setattr(RoleRecords, "connected", lambda: RoleRecords(FakeKeyValueStore()))
    monkeypatch.setenv("LLM_JUDGE_URL", "u")
    monkeypatch.setenv("A_SECRET", "x")
    places: Any = None

    run = Run(Workload("w", (RoleSpec("r", Sync),)), "run-1", Surveyor(controller), places, silent_after_s=60)

    assert env_vars(run.parts.process_set.hosting) == expected
