"""Roles, pools and workloads: what they accept, in which form they keep it, and what they say of the rest."""

from enum import Enum, StrEnum
from typing import Any

import pytest
from builders import amounts, workload

from distributed_grid.errors import InvalidRole
from distributed_grid.model.roles.environment import DOCUMENTED_ALLOW, PROTECTED
from distributed_grid.model.roles.profiles import PROFILES, from_profile
from distributed_grid.model.roles.runs import LEGAL, OVER, RunState
from distributed_grid.model.roles.spec import (
    Arrangement,
    Colocation,
    FailurePolicy,
    NodeSelector,
    RoleSpec,
    environment_of,
)
from distributed_grid.model.roles.workload import Pool, Workload
from distributed_grid.model.times import LENGTHS


class TheirRole(StrEnum):
    TRAINER = "trainer"


class OldRole(Enum):
    TRAINER = "the_trainer"
    LOADER = 3


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("any-word", "any-word"),
        (TheirRole.TRAINER, "trainer"),
        (OldRole.TRAINER, "the_trainer"),
        (OldRole.LOADER, "LOADER"),
    ],
)
def test_a_role_is_any_word_or_a_member_of_any_enum(given: Any, name: str) -> None:
    assert RoleSpec(given).name == name


def test_a_length_of_time_may_be_written_as_in_a_command() -> None:
    role = RoleSpec("r", startup_deadline_seconds="10m", call_deadline_seconds="1h30m")  # type: ignore[arg-type]

    assert (role.startup_deadline_seconds, role.call_deadline_seconds) == (600.0, 5400.0)


def test_config_objects_of_any_kind_are_kept_as_they_are() -> None:
    config = object()

    assert RoleSpec("r", cls=int, config=config).config is config


@pytest.mark.parametrize("cls", [None, int, "my_rl.workers:Worker", "pkg:Outer.Inner"])
def test_a_class_is_a_type_or_says_where_it_is(cls: Any) -> None:
    assert RoleSpec("r", cls=cls).cls is cls


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("role", "two words", "must not contain spaces or '/', but is 'two words'"),
        ("role", "rôle", "must contain only ASCII characters, as Ray requires, but is 'rôle'"),
        ("role", "a+b", "must not contain '+', which joins roles that share a process, but is 'a+b'"),
        ("role", "", "must be a name, not ''"),
        ("role", 7, "must be a name, not 7"),
        ("cls", "my_rl.workers.Worker", "must be a class, or \"module:Class\", not 'my_rl.workers.Worker'"),
        ("cls", 5, 'must be a class, or "module:Class", not 5'),
        ("count", 0, "must be from 1 to 100000, not 0"),
        ("count", True, "must be a whole number, not true"),
        ("count", 2.5, "must be a whole number, not 2.5"),
        ("count", (4, 2), "the least (4) is above the most (2)"),
        ("count", (1, 2, 3), "must be a number, or the least and the most, not 3 numbers"),
        ("cpus", -1, "must be zero or more, not -1"),
        ("cpus", "two", "must be a number, not 'two'"),
        ("cpus", float("nan"), "must be a finite number, not nan"),
        ("cpus", 0.33333, "Ray counts in ten-thousandths; use 0.3333 instead of 0.33333"),
        ("gpus", 1.5, "must be a fraction of one GPU, or whole GPUs, not 1.5 GPUs"),
        ("gpus", 1 / 3, "Ray counts in ten-thousandths; use 0.3333 instead of 0.3333333333333333"),
        ("memory_gb", 1e18, "1000000000000000000 GB is more than any cluster has"),
        ("resources", {"CPU": 1}, "'CPU' is not a custom resource; it has its own field"),
        ("resources", {"disk": -1}, "disk: must be zero or more, not -1"),
        ("resources", ["disk"], "must be a mapping, not a list"),
        ("max_concurrency", 0, "must be from 1 to 1000000, not 0"),
        ("env_allow", "HOME", "must be a list, not 'HOME'"),
        ("env_allow", ["MY VAR"], "'MY VAR' is neither a variable name nor a pattern such as WANDB_*"),
        ("env", {"A": 1}, 'A must be text, not 1; quotes make it text: "1"'),
        ("env_profile", "all", "must be one of none, documented, not 'all'"),
        ("pool", "a/b", "must not contain spaces or '/', but is 'a/b'"),
        ("colocation", "node", "must be one of process, bundle, not 'node'"),
        ("node_affinity", "gpu1", "must be a list, not 'gpu1'"),
        ("node_affinity", ["zone="], "'zone=' is not a label; write key=value"),
        ("placement", "even", "must be one of pack, spread, not 'even'"),
        ("max_restarts", -2, "must be from -1 to 1000000, not -2"),
        (
            "failure_policy",
            "retry",
            "must be one of restart, restart_gang, continue_with_healthy, continue, fail, not 'retry'",
        ),
        ("failure_budget", -1, "must be from 0 to 1000000, not -1"),
        ("startup_deadline_seconds", 0, "must be above zero, not 0"),
        ("call_deadline_seconds", "soon", f"must be a length of time such as {LENGTHS}, not 'soon'"),
    ],
)
def test_what_makes_no_sense_is_said(field: str, value: object, said: str) -> None:
    fields: dict[str, Any] = {"role": "r"} | {field: value}
    with pytest.raises(InvalidRole) as caught:
        RoleSpec(**fields)

    assert caught.value.problems == (((field,), said),)
    assert caught.value.because == (f"{field}: {said}",)
    assert caught.value.exit_code == 2


def test_all_problems_are_said_at_once() -> None:
    with pytest.raises(InvalidRole) as caught:
        RoleSpec("r", cpus=-1, gpus=1.5, placement="even")

    assert [path for path, _ in caught.value.problems] == [("cpus",), ("gpus",), ("placement",)]
    assert caught.value.message == "The role r is invalid"


@pytest.mark.parametrize("variable", sorted(PROTECTED))
def test_ranks_and_devices_cannot_be_chosen(variable: str) -> None:
    for choice in ({"env_allow": [variable]}, {"env": {variable: "0"}}):
        with pytest.raises(InvalidRole, match="is invalid"):
            RoleSpec("r", **choice)  # type: ignore[arg-type]


def test_an_actor_finds_what_was_allowed_and_added_and_nothing_else() -> None:
    role = RoleSpec("r", env_allow=["TOKEN", "NOT_THERE"], env={"MODE": "fast"})

    assert role.environment({"TOKEN": "t", "HOME": "/root", "MODE": "slow"}) == {"TOKEN": "t", "MODE": "fast"}


def test_the_documented_list_passes_and_ranks_stay_each_actors_own() -> None:
    role = RoleSpec("r", env_profile="documented")
    caller = {name: f"the caller's {name}" for name in (*DOCUMENTED_ALLOW, "HOME")}

    assert role.environment(caller) == {
        "NEXRL_LAUNCH_MODE": "ray",
        **{name: caller[name] for name in DOCUMENTED_ALLOW if name not in PROTECTED},
    }
    assert role.environment({}) == {
        "NEXRL_LAUNCH_MODE": "ray",
        "LOG_LEVEL": "INFO",
        "NEXRL_USER": "",
        "EXPERIMENT_PATH": "",
    }


def test_words_may_be_given_as_members_or_as_text() -> None:
    by_text = RoleSpec("r", placement="spread", colocation="bundle", failure_policy="restart-gang", node_affinity=["a"])
    by_member = RoleSpec(
        "r",
        placement=Arrangement.SPREAD,
        colocation=Colocation.BUNDLE,
        failure_policy=FailurePolicy.RESTART_GANG,
        node_affinity=NodeSelector(("a",)),
    )

    assert by_text == by_member and hash(by_text) == hash(by_member)


def test_a_count_of_three_to_three_is_three() -> None:
    assert (RoleSpec("r", count=(3, 3)).count, RoleSpec("r", count=(0, 2)).least) == (3, 0)


def test_needs_are_exact() -> None:
    role = RoleSpec("r", cpus=0.1, gpus=0.25, memory_gb=1.5, resources={"disk": 2})

    assert role.needs == amounts(cpu=0.1, gpu=0.25, memory=1.5, disk=2)


@pytest.mark.parametrize(
    ("profile", "cpus", "gpus", "concurrency"),
    [
        ("rollout_worker", 1, 0, 100),
        ("trainer_self_hosted", 4, 1, 1),
        ("trainer_remote_api", 1, 0, 10),
        ("trajectory_pool", 1, 0, 100),
        ("data_loader", 1, 0, 10),
        ("weight_sync_controller", 1, 0, 10),
        ("validator", 1, 0, 10),
    ],
)
def test_the_seven_profiles(profile: str, cpus: int, gpus: int, concurrency: int) -> None:
    role = from_profile(profile)

    assert (role.name, role.cpus, role.gpus, role.max_concurrency) == (profile, cpus, gpus, concurrency)
    assert len(PROFILES) == 7


def test_a_profile_can_be_changed_and_called_something_else() -> None:
    role = from_profile("trainer_self_hosted", TheirRole.TRAINER, cpus=8, count=2)

    assert (role.name, role.cpus, role.gpus, role.count) == ("trainer", 8, 1, 2)
    with pytest.raises(InvalidRole, match="no profile 'trainr'"):
        from_profile("trainr")


# -- pools and workloads -------------------------------------------------------------------------------------


def test_a_pool_limits_what_it_names() -> None:
    assert Pool("p", num_cpus=64).quota == {"cpu": 640_000}
    assert Pool("p", num_gpus=0, resources={"disk": 2}).quota == {"gpu": 0, "disk": 20_000}
    assert Pool("p", num_gpus=2.5).quota == {"gpu": 25_000}, "a sum of parts"


def test_a_pool_that_limits_nothing_makes_no_sense() -> None:
    with pytest.raises(InvalidRole) as caught:
        Pool("p")

    assert caught.value.because == (
        "it has no limit and no nodes; give num_cpus, num_gpus, memory_gb, resources or nodes",
    )


def refused(*roles: RoleSpec, pools: tuple[Pool, ...] = ()) -> list[str]:
    with pytest.raises(InvalidRole) as caught:
        workload(*roles, pools=pools)
    return list(caught.value.because)


def test_a_workload_has_roles_with_names_of_their_own() -> None:
    assert refused() == ["roles: a workload has at least one role"]
    assert refused(RoleSpec("a"), RoleSpec("a")) == ["roles.a: duplicate name; names must be unique"]
    assert refused(RoleSpec("a"), pools=(Pool("p", num_cpus=1),) * 2) == [
        "resource_pools.p: duplicate name; names must be unique"
    ]


def test_a_pool_that_is_named_must_be_there() -> None:
    assert refused(RoleSpec("a", pool="p")) == ["roles.a.pool: there is no pool 'p'; the workload has no pools"]
    assert refused(RoleSpec("a", pool="p"), pools=(Pool("q", num_cpus=1),)) == [
        "roles.a.pool: there is no pool 'p'; there are q"
    ]


def test_colocated_roles_have_equal_counts_one_kind_and_one_pool() -> None:
    pools = (Pool("p", num_cpus=1), Pool("q", num_cpus=1))
    first = RoleSpec("a", count=2, colocation_group="g", pool="p")

    assert refused(first, RoleSpec("b", count=3, colocation_group="g"), pools=pools) == [
        "roles.b.count: 3, but a, in the same colocation group, has 2"
    ]
    assert refused(first, RoleSpec("b", count=(2, 3), colocation_group="g"), pools=pools) == [
        "roles.b.count: 2 to 3, but a, in the same colocation group, has 2"
    ]
    assert refused(first, RoleSpec("b", count=2, colocation_group="g", colocation="bundle"), pools=pools) == [
        "roles.b.colocation: must be process, like that of a in the same colocation group"
    ]
    assert refused(first, RoleSpec("b", count=2, colocation_group="g", pool="q"), pools=pools) == [
        "roles.b.pool: q, but a, in the same colocation group, is in p"
    ]
    workload(first, RoleSpec("b", count=2, colocation_group="g"), pools=pools)


def test_one_process_has_one_environment() -> None:
    def colocated(role: str, **more: Any) -> RoleSpec:
        return RoleSpec(role, colocation_group="g", **more)

    first = colocated("a", env={"COLOUR": "green", "SHAPE": "round"})

    assert refused(first, colocated("b", env={"COLOUR": "a secret", "SHAPE": "round"})) == [
        "roles.b.env.COLOUR: a, in the same process, sets it to something else"
    ]
    workload(first, colocated("b", env={"COLOUR": "green"}), RoleSpec("c", env={"COLOUR": "red"}))
    apart = {"colocation": "bundle", "colocation_group": "g"}
    workload(RoleSpec("a", env={"A": "1"}, **apart), RoleSpec("b", env={"A": "2"}, **apart))


def test_in_one_process_what_a_role_sets_counts_more_than_what_another_passes_on() -> None:
    passes = RoleSpec("a", env_allow=["COLOUR", "SHAPE"], env_profile="documented")
    sets = RoleSpec("b", env={"COLOUR": "green", "LOG_LEVEL": "DEBUG"})

    for together in ((passes, sets), (sets, passes)):
        found = environment_of(together, {"COLOUR": "red", "SHAPE": "round", "A_SECRET": "x"})
        assert (found["COLOUR"], found["SHAPE"], found["LOG_LEVEL"]) == ("green", "round", "DEBUG")
        assert "A_SECRET" not in found


def test_what_belongs_together_keeps_its_order() -> None:
    load = workload(
        RoleSpec("a"), RoleSpec("b", colocation_group="g"), RoleSpec("c"), RoleSpec("d", colocation_group="g")
    )

    assert [[role.name for role in group] for group in load.together] == [["a"], ["b", "d"], ["c"]]


def test_a_role_and_a_colocation_group_of_the_same_name_are_two_things() -> None:
    load = workload(RoleSpec("a"), RoleSpec("b", colocation_group="a"))

    assert len(load.together) == 2


def test_counts_can_be_changed() -> None:
    load = workload(RoleSpec("a"), RoleSpec("b")).with_counts({"b": 3})

    assert isinstance(load, Workload) and [role.count for role in load.roles] == [1, 3]


# -- which nodes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "allowed", "touched"),
    [
        ([], True, False),
        (["n1"], True, True),
        (["n2"], False, False),
        (["n1", "n2"], True, True),
        (["zone=a"], True, True),
        (["zone=b", "zone=a"], True, True),
        (["zone=a", "disk=hdd"], False, True),
        (["zone=a", "n2"], False, True),
        (["zone=a", "n1"], True, True),
        (["other=a"], False, False),
    ],
)
def test_a_selector(words: list[str], allowed: bool, touched: bool) -> None:
    selector, labels = NodeSelector.parse(words), {"zone": "a", "disk": "ssd"}

    assert (selector.allows("n1", labels), selector.touches("n1", labels)) == (allowed, touched)
    assert NodeSelector.parse(selector.words()) == selector


def test_an_allow_list_has_patterns_that_never_bring_ranks_or_devices() -> None:
    caller = {
        "LLM_JUDGE_URL": "u",
        "LLM_JUDGE_KEY": "k",
        "RANK": "9",
        "ROLE_RANK": "9",
        "llm_judge_x": "x",
        "HOME": "h",
    }
    role = RoleSpec("r", env_allow=["LLM_JUDGE_*", "R*"])

    assert role.environment(caller) == {"LLM_JUDGE_URL": "u", "LLM_JUDGE_KEY": "k"}
    assert role.environment(caller, also=["HOM?"])["HOME"] == "h"


def test_the_documented_list_has_the_variables_of_newer_versions() -> None:
    caller = {"SWANLAB_API_KEY": "s", "LLM_JUDGE_MODEL": "m", "LOG_STREAM": "1", "OTHER": "o"}
    found = RoleSpec("r", env_profile="documented").environment(caller)
    assert {key: value for key, value in found.items() if key in caller} == {
        k: v for k, v in caller.items() if k != "OTHER"
    }


def test_a_run_that_stops_can_only_end() -> None:
    assert LEGAL.keys() == set(RunState)
    assert LEGAL[RunState.STOPPING] < OVER
    assert not any(LEGAL[state] for state in OVER)
