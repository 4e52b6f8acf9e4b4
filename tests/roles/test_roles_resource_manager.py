"""The documented API, as far as it needs no Ray: what is registered, what each role has, what wrappers show."""

import dataclasses
import inspect
import logging
import os
import subprocess
import sys
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle

from distributed_grid.errors import InvalidRole, NoCluster, Refused, RoleNotFound
from distributed_grid.model.roles.profiles import as_name, role_text
from distributed_grid.roles import NexRLRole, RayActorWrapper, RayResourceManager
from distributed_grid.roles.ray_resource_manager import _get_minimal_env_vars


class Worker:
    def __init__(self, config: Any) -> None:
        self.config = config

    def step(self) -> None: ...


class Own(Enum):
    PLANNER = "planner"
    SOLVER = 2
    WITH_SPACES = "the big/old solver"


def spec_of(manager: RayResourceManager, role: Any) -> Any:
    return manager.spec(role)


def registered(*args: Any, **said: Any) -> Any:
    manager = RayResourceManager()
    manager.register_role(*args, **said)
    return spec_of(manager, args[0])


# -- signatures -------------------------------------------------------------------------------------------------


def test_the_methods_take_what_the_document_says_and_insist_on_nothing_else() -> None:
    manager = inspect.signature(RayResourceManager).parameters.values()
    register = [*inspect.signature(RayResourceManager.register_role).parameters.values()][1:]

    assert all(one.default is not one.empty for one in manager)
    assert [(one.name, one.default) for one in register[:5]] == [
        ("role", inspect.Parameter.empty),
        ("cls", inspect.Parameter.empty),
        ("config", inspect.Parameter.empty),
        ("count", 1),
        ("colocation_group", None),
    ]
    assert all(one.kind in (one.KEYWORD_ONLY, one.VAR_KEYWORD) for one in register[5:])


def test_the_roles_of_the_document_are_there() -> None:
    assert {role.name: role.value for role in NexRLRole} == {
        "ROLLOUT_WORKER": "rollout_worker",
        "TRAINER": "trainer",
        "TRAJECTORY_POOL": "trajectory_pool",
        "WEIGHT_SYNC_CONTROLLER": "weight_sync_controller",
        "DATA_LOADER": "data_loader",
        "VALIDATE_DATALOADER": "validate_dataloader",
        "VALIDATOR": "validator",
    }


# -- what each role has -----------------------------------------------------------------------------------------


def test_every_role_alone_has_one_cpu_and_a_hundred_calls_at_a_time() -> None:
    for role in (*NexRLRole, Own.PLANNER, "anything"):
        spec = registered(role, Worker, None)
        assert (spec.cpus, spec.gpus, spec.max_concurrency) == (1, 0, 100)


def test_colocated_roles_share_one_cpu_and_ten_calls_at_a_time() -> None:
    for role in (*NexRLRole, "anything"):
        spec = registered(role, Worker, None, colocation_group="training")
        assert (spec.cpus, spec.gpus, spec.colocation) == (1, 0, "process")
        assert (spec.max_concurrency, spec.concurrency_of) == (10, "process")


def test_a_colocated_role_that_says_its_own_concurrency_shares_none() -> None:
    by_number = registered("trainer", Worker, None, colocation_group="training", max_concurrency=2)
    by_profile = registered("trainer", Worker, None, colocation_group="training", profile="trainer_self_hosted")

    assert (by_number.max_concurrency, by_number.concurrency_of) == (2, "role")
    assert (by_profile.max_concurrency, by_profile.concurrency_of) == (1, "role")


def test_other_resources_are_said_by_a_profile_or_one_by_one() -> None:
    hosted = registered(NexRLRole.TRAINER, Worker, None, profile="trainer_self_hosted")
    assert (hosted.name, hosted.cpus, hosted.gpus, hosted.max_concurrency) == ("trainer", 4, 1, 1)

    own = registered("solver", Worker, None, profile="trainer_self_hosted", cpus=2, gpus=0.5, memory_gb=8)
    assert (own.cpus, own.gpus, own.memory_gb, own.max_concurrency) == (2, 0.5, 8, 1)


def test_actors_do_not_come_back_by_themselves_unless_that_is_asked_for() -> None:
    plain = registered("validator", Worker, None, colocation_group="training")
    assert (plain.failure_policy, plain.max_restarts) == ("continue", 0)

    asked = registered("validator", Worker, None, failure_policy="restart", max_restarts=2)
    assert (asked.failure_policy, asked.max_restarts) == ("restart", 2)


# -- what is registered -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "text", "name"),
    [
        (NexRLRole.TRAINER, "trainer", "trainer"),
        ("trainer", "trainer", "trainer"),
        (Own.SOLVER, "SOLVER", "SOLVER"),
        (Own.WITH_SPACES, "the big/old solver", "the_big_old_solver"),
        ("actor+critic", "actor+critic", "actor_critic"),
        ("Prüfer", "Prüfer", "Pr\\xfcfer"),
    ],
)
def test_a_role_is_text_or_a_member_of_any_enum(role: Any, text: str, name: str) -> None:
    assert role_text(role) == text
    assert as_name(text) == name
    assert registered(role, Worker, None).name == name


@pytest.mark.parametrize("role", [None, 3, ""])
def test_anything_else_is_no_role(role: Any) -> None:
    with pytest.raises(InvalidRole, match="A role is text or a member of an Enum"):
        registered(role, Worker, None)


def test_any_configuration_is_kept_as_it_is() -> None:
    @dataclasses.dataclass
    class Settings:
        rate: float

    class Odd:
        """Has every attribute, as configurations of some libraries do, and says that it differs from itself."""

        def __getattr__(self, name: str) -> str:
            return name

        def __eq__(self, other: object) -> bool:
            raise TypeError

        __hash__ = None  # type: ignore[assignment]

    for config in (Settings(0.1), Odd(), {"a": 1}, [1], None, "text", SimpleNamespace(type="mock")):
        assert registered("any", Worker, config).config is config


def test_a_role_that_is_registered_again_replaces_itself(caplog: pytest.LogCaptureFixture) -> None:
    manager = RayResourceManager()
    manager.register_role(NexRLRole.TRAINER, Worker, "old", count=2)
    with caplog.at_level(logging.WARNING):
        manager.register_role("trainer", Worker, "new")

    assert (spec_of(manager, NexRLRole.TRAINER).config, spec_of(manager, "trainer").count) == ("new", 1)
    assert "The role trainer was registered again" in caplog.text


def test_what_makes_no_sense_is_told_when_it_is_registered() -> None:
    with pytest.raises(InvalidRole, match="The role trainer is invalid") as refused:
        registered("trainer", Worker(None), None, count=-1, gpus=1.5)
    assert [line.split(":")[0] for line in refused.value.because] == ["cls", "count", "gpus"]

    with pytest.raises(InvalidRole, match="has no option 'num_gpus'") as unknown:
        registered("trainer", Worker, None, num_gpus=1)
    assert unknown.value.try_next and "gpus" in unknown.value.try_next

    with pytest.raises(InvalidRole, match="There is no profile 'big'"):
        registered("trainer", Worker, None, profile="big")


# -- before there are actors ------------------------------------------------------------------------------------


def test_a_group_with_unequal_counts_is_a_value_error_when_actors_are_created() -> None:
    for counts in ((1, 2), (0, 1)):
        manager = RayResourceManager()
        for role, count in zip("ab", counts, strict=True):
            manager.register_role(role, Worker, None, count=count, colocation_group="main")
        with pytest.raises(ValueError, match=r"is invalid|must have the same count"):
            manager.create_all_actors()


def test_without_roles_there_is_nothing_to_create_and_roles_may_still_come() -> None:
    manager = RayResourceManager()
    manager.create_all_actors()
    manager.register_role("late", Worker, None, count=0)
    manager.create_all_actors()
    assert manager.get_actor_wrapper("late") == []


def test_wrappers_of_unknown_roles_and_of_actors_that_are_not_there_are_value_errors() -> None:
    manager = RayResourceManager()
    manager.register_role(NexRLRole.VALIDATOR, Worker, None)

    with pytest.raises(ValueError, match="No role 'trainer' is registered") as unknown:
        manager.get_actor_wrapper(NexRLRole.TRAINER)
    assert isinstance(unknown.value, RoleNotFound) and unknown.value.try_next == "Registered: validator."
    with pytest.raises(ValueError, match="The actors of validator have not been created"):
        manager.get_actor_wrapper("validator")
    with pytest.raises(RoleNotFound, match="No actors have been created"):
        _ = manager.run


def test_a_role_of_none_has_an_empty_list_and_needs_no_ray() -> None:
    with RayResourceManager() as manager:
        manager.register_role(NexRLRole.ROLLOUT_WORKER, Worker, None, count=0)
        manager.create_all_actors()

        assert manager.get_actor_wrapper(NexRLRole.ROLLOUT_WORKER) == []
        with pytest.raises(Refused, match="cannot be created again: the actors have been created"):
            manager.create_all_actors()
        with pytest.raises(Refused, match="The role trainer cannot be registered"):
            manager.register_role(NexRLRole.TRAINER, Worker, None)

        manager.shutdown()
        manager.register_role(NexRLRole.TRAINER, Worker, None, count=0)
        manager.create_all_actors()
        assert manager.get_actor_wrapper(NexRLRole.TRAINER) == []


def test_where_ray_may_not_connect_by_itself_that_is_reported() -> None:
    manager = RayResourceManager()
    manager.register_role(NexRLRole.VALIDATOR, Worker, None)
    with pytest.raises(NoCluster, match="not connected to Ray"):
        manager.create_all_actors()


# -- the environment --------------------------------------------------------------------------------------------


def test_the_documented_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOG_LEVEL", "EXPERIMENT_PATH", "WANDB_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"NEXRL_USER": "ann", "WANDB_KEY": "k", "RANK": "7", "OTHER": "o", "MY_SECRET": "s"}.items():
        monkeypatch.setenv(name, value)
    base = {
        "NEXRL_LAUNCH_MODE": "ray",
        "LOG_LEVEL": "INFO",
        "NEXRL_USER": "ann",
        "EXPERIMENT_PATH": "",
        "WANDB_KEY": "k",
    }

    assert _get_minimal_env_vars() == base

    manager = RayResourceManager(env_allow=["OTHER"])
    manager.register_role("plain", Worker, None)
    manager.register_role("more", Worker, None, env_allow=["MY_SECRET"], env={"LOG_LEVEL": "DEBUG"})
    assert spec_of(manager, "plain").environment(os.environ) == base | {"OTHER": "o"}
    assert spec_of(manager, "more").environment(os.environ) == base | {
        "OTHER": "o",
        "MY_SECRET": "s",
        "LOG_LEVEL": "DEBUG",
    }


# -- wrappers ---------------------------------------------------------------------------------------------------


def a_wrapper() -> RayActorWrapper:
    handle = SimpleNamespace(**{"pool.put": "put of the pool", "pool.rank": "rank of the pool", "trainer.step": "step"})
    return RayActorWrapper(handle, "pool", 0, ["put", "rank"])


def test_a_wrapper_has_the_methods_of_its_role_and_nothing_else() -> None:
    wrapper = a_wrapper()

    assert (wrapper.put, wrapper.rank) == ("put of the pool", "rank of the pool")
    assert [name for name in dir(wrapper) if not name.startswith("_")] == ["put", "rank"]
    assert hasattr(wrapper, "_actor")
    for other in ("step", "trainer_step", "_sync_mode", "__deepcopy__"):
        assert not hasattr(wrapper, other)
    with pytest.raises(AttributeError, match="RayActorWrapper has no 'step'; pool has put, rank"):
        _ = wrapper.step


def test_a_wrapper_can_be_handed_to_a_process_that_does_not_have_grid(tmp_path: Path) -> None:
    path = tmp_path / "wrapper"
    path.write_bytes(cloudpickle.dumps([a_wrapper()]))
    there = f"""
import pickle, sys
sys.modules["distributed_grid"] = None
(wrapper,) = pickle.loads(open({str(path)!r}, "rb").read())
print(wrapper, wrapper.put, hasattr(wrapper, "step"))
"""

    shown = subprocess.run([sys.executable, "-c", there], capture_output=True, text=True, check=True)

    assert shown.stdout == "<pool 0> put of the pool False\n"
