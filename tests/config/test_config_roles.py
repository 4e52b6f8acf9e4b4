"""Workloads as YAML: the same fields as in Python, and every mistake at its place."""

from collections.abc import Callable
from pathlib import Path

import pytest
from builders import amounts, place

from distributed_grid.config import load_config
from distributed_grid.config.roles_file import inventory_of, load_workload, not_said
from distributed_grid.errors import ConfigInvalid
from distributed_grid.model.roles.plan import Inventory
from distributed_grid.model.roles.profiles import from_profile
from distributed_grid.model.roles.scaling import MethodSignal, PrometheusSignal, QueueSignal, Scaling
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.roles.workload import Pool, Workload

Problems = Callable[[str], list[str]]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def problems(write: Callable[[str], Path]) -> Problems:
    def problems(text: str) -> list[str]:
        path = write(text)
        with pytest.raises(ConfigInvalid) as caught:
            load_workload(path)
        assert caught.value.message.startswith(f"The workload {path} has ")
        return [line.removeprefix(f"{path}:") for line in caught.value.because]

    return problems


EVERYTHING = """
name: everything
resource_pools:
  cpu_pool: {num_cpus: 64}
  gpu_pool: {num_gpus: 4, memory_gb: 100, resources: {disk: 1}, nodes: [gpu1, zone=a]}
roles:
  worker:
    profile: rollout_worker
    class: my_rl:Worker
    config: {steps: [1, 2], nested: {a: null}}
    count: {min: 2, max: 8}
    pool: cpu_pool
    placement: spread
    env_allow: [LOG_LEVEL]
    env: {MODE: fast}
    env_profile: documented
    node_anti_affinity: [gpu1]
    scaling:
      signal: {role: trainer, method: backlog}
      up_at: 4
      down_at: 1
      step: 2
      stable_seconds: 3
      cooldown_seconds: 0
      every_seconds: 0.5
      boost: true
      boost_duration_seconds: 60
  trainer:
    cpus: 4
    gpus: 0.5
    memory_gb: 8
    resources: {disk: 0.5}
    max_concurrency: 1
    pool: gpu_pool
    colocation_group: g
    colocation: bundle
    node_affinity: [zone=a]
    max_restarts: -1
    failure_policy: restart_gang
    failure_budget: 5
    startup_deadline_seconds: 60
    call_deadline_seconds: 2.5
  sync: {colocation_group: g, colocation: bundle}
"""


def test_a_file_has_the_same_fields_as_python(write: Callable[[str], Path]) -> None:
    found = load_workload(write(EVERYTHING))

    assert found.warnings == ()
    assert found.workload == Workload(
        "everything",
        (
            from_profile(
                "rollout_worker",
                "worker",
                cls="my_rl:Worker",
                config={"steps": [1, 2], "nested": {"a": None}},
                count=(2, 8),
                pool="cpu_pool",
                placement="spread",
                env_allow=("LOG_LEVEL",),
                env={"MODE": "fast"},
                env_profile="documented",
                node_anti_affinity=["gpu1"],
                scaling=Scaling(
                    MethodSignal("trainer", "backlog"),
                    up_at=4,
                    down_at=1,
                    step=2,
                    stable_seconds=3,
                    cooldown_seconds=0,
                    every_seconds=0.5,
                    boost=True,
                    boost_duration_seconds=60,
                ),
            ),
            RoleSpec(
                "trainer",
                cpus=4,
                gpus=0.5,
                memory_gb=8,
                resources={"disk": 0.5},
                max_concurrency=1,
                pool="gpu_pool",
                colocation_group="g",
                colocation="bundle",
                node_affinity=["zone=a"],
                max_restarts=-1,
                failure_policy="restart_gang",
                failure_budget=5,
                startup_deadline_seconds=60,
                call_deadline_seconds=2.5,
            ),
            RoleSpec("sync", colocation_group="g", colocation="bundle"),
        ),
        (
            Pool("cpu_pool", num_cpus=64),
            Pool("gpu_pool", num_gpus=4, memory_gb=100, resources={"disk": 1}, nodes=["gpu1", "zone=a"]),
        ),
    )


def test_roles_may_be_a_list_and_the_name_is_that_of_the_file(write: Callable[[str], Path]) -> None:
    found = load_workload(write("roles:\n- role: a\n- {role: b, count: [1, 2]}\n")).workload

    assert found == Workload("run", (RoleSpec("a"), RoleSpec("b", count=(1, 2))))


def test_a_role_that_says_nothing_has_all_defaults(write: Callable[[str], Path]) -> None:
    assert load_workload(write("roles:\n  a:\n  b: {cpus: }\n")).workload.roles == (RoleSpec("a"), RoleSpec("b"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "1:1: top level: the file is empty; it needs at least `roles:`"),
        ("- a\n", "1:1: top level: must be a mapping such as `roles: [...]`, not a list"),
        ("name: x\n", "1:1: roles: is missing"),
        ("roles: 3\n", "1:8: roles: must be a mapping by name, or a list, not 3"),
        ("roles: {}\n", "1:8: roles: a workload has at least one role"),
        ("roles: {a: 3}\n", "1:12: roles.a: must be a mapping, not 3"),
        ("roles:\n- cpus: 1\n", "2:3: roles[0].role: is missing"),
        ("roles:\n- 7\n", "2:3: roles[0]: must be a mapping, not 7"),
        (
            "roles:\n  a:\n    gpus: 1.5\n",
            "3:11: roles.a.gpus: must be a fraction of one GPU, or whole GPUs, not 1.5 GPUs",
        ),
        ("roles:\n- role: a\n  gpus: x\n", "3:9: roles[0].gpus: must be a number, not 'x'"),
        (
            "roles:\n  a:\n    class: here\n",
            "3:12: roles.a.class: must be a class, or \"module:Class\", not 'here'",
        ),
        ("roles:\n  a:\n    count: {min: 2}\n", "3:12: roles.a.count: must be a whole number, not a mapping"),
        (
            "roles: {a: {profile: validater}}\n",
            "1:22: roles.a.profile: must be one of rollout_worker, trainer_self_hosted, trainer_remote_api, "
            "trajectory_pool, data_loader, weight_sync_controller, validator, not 'validater'; "
            "did you mean 'validator'?",
        ),
        (
            "roles: {a: {env: {RANK: '0'}}}\n",
            "1:18: roles.a.env: RANK is set for each actor (ranks by grid, devices by Ray) and cannot be chosen",
        ),
        (
            "roles: {a: }\nresource_pools: {p: {num_cpus: -1}}\n",
            "2:32: resource_pools.p.num_cpus: must be zero or more, not -1",
        ),
        (
            "roles: {a: }\nresource_pools: {p: {}}\n",
            "2:21: resource_pools.p: it has no limit and no nodes; give num_cpus, num_gpus, memory_gb, resources or "
            "nodes",
        ),
        ("roles: {a: {pool: p}}\n", "1:19: roles.a.pool: there is no pool 'p'; the workload has no pools"),
        (
            "roles:\n- {role: a, colocation_group: g}\n- {role: b, colocation_group: g, count: 2}\n",
            "3:41: roles[1].count: 2, but a, in the same colocation group, has 1",
        ),
        ("name: 'a b'\nroles: {a: }\n", "1:7: name: must not contain spaces or '/', but is 'a b'"),
        ("roles: {a: {cpus: 1, cpus: 2}}\n", "1:22: roles.a.cpus: the key 'cpus' is given twice, first at 1:13"),
    ],
)
def test_a_mistake_is_reported_at_its_place(problems: Problems, text: str, said: str) -> None:
    assert problems(text) == [said]


def test_all_mistakes_are_reported_at_once(problems: Problems) -> None:
    found = problems("roles:\n  a: {cpus: -1}\n  b: {gpus: 1.5, count: 0}\nresource_pools: {p: 3}\n")

    assert [line.split(" ")[1] for line in found] == [
        "roles.a.cpus:",
        "roles.b.gpus:",
        "roles.b.count:",
        "resource_pools.p:",
    ]


def test_a_key_that_is_not_known_is_a_warning_with_a_suggestion(write: Callable[[str], Path]) -> None:
    path = write("rolls: 1\nroles:\n  a: {colocation_grup: g}\nresource_pools: {p: {num_cpu: 3, num_gpus: 1}}\n")

    assert [line.removeprefix(f"{path}:") for line in load_workload(path).warnings] == [
        "1:1: rolls: unknown key 'rolls' (ignored); did you mean 'roles'?",
        "3:7: roles.a.colocation_grup: unknown key 'colocation_grup' (ignored); did you mean 'colocation_group'?",
        "4:22: resource_pools.p.num_cpu: unknown key 'num_cpu' (ignored); did you mean 'num_cpus'?",
    ]


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="Cannot read the workload"):
        load_workload(tmp_path / "none.yaml")


# -- a cluster as a file describes it ------------------------------------------------------------------------


def test_a_configuration_is_an_empty_cluster_with_its_policys_headroom(
    write: Callable[[str], Path],
) -> None:
    loaded = load_config(
        write(
            "resource_sharing: {enabled: true, thresholds: {excess_threshold: 0.25}}\n"
            "nodes:\n"
            "- {name: a, cpu_count: 8, gpu_count: 2, memory_gb: 64, resources: {disk: 1}, tags: [zone=1, old],\n"
            "   resource_sharing: {max_share_cpu: 6, max_share_gpu: 0}}\n"
            "- {name: b, cpu_count: 4, resource_sharing: {can_share: false}}\n"
        )
    )

    assert inventory_of(loaded) == Inventory(
        [
            place(
                "a",
                gpus=2,
                disk=1,
                labels={"grid/name": "a", "zone": "1"},
                lends=amounts(cpu=6, memory=48, disk=0.75),
            ),
            place("b", cpus=4, memory=0, labels={"grid/name": "b"}),
        ]
    )
    assert not_said(loaded, {"cpu", "gpu", "memory"}) == []


def test_nodes_must_say_their_cpus(write: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        inventory_of(load_config(write("nodes: [{name: a}, {name: b, cpu_count: 1}]\n")))

    assert caught.value.because == ("a: cpu_count is missing",)


def test_what_no_node_says_and_a_role_needs_is_a_warning(write: Callable[[str], Path]) -> None:
    path = write("nodes: [{name: a, cpu_count: 1}]\n")

    assert not_said(load_config(path), {"cpu", "memory"}) == [f"{path}: no node has memory_gb, which counts as 0"]


@pytest.mark.parametrize(
    ("written", "source"),
    [
        ("queue", QueueSignal()),
        ("{role: pool, method: fullness}", MethodSignal("pool", "fullness")),
        (
            '{prometheus: "http://localhost:9090", query: "sum(up)"}',
            PrometheusSignal("http://localhost:9090", "sum(up)"),
        ),
    ],
)
def test_a_signal_is_written_in_one_of_three_ways(write: Callable[[str], Path], written: str, source: object) -> None:
    text = f"""
roles:
  pool: {{}}
  worker: {{count: {{min: 1, max: 4}}, scaling: {{signal: {written}, up_at: 4, down_at: 1}}}}
"""
    follows = load_workload(write(text)).workload.roles[1].follows

    assert follows is not None and follows.source == source


def test_mistakes_in_a_scaling_are_reported_at_their_place(problems: Problems) -> None:
    text = """
roles:
  a:
    count: {min: 1, max: 4}
    scaling:
      signal: load
      up_at: many
      step: 0
  b: {count: {min: 1, max: 4}, scaling: {signal: {role: a, method: _x}, up_at: 1, down_at: 2}}
  c: {count: 3, scaling: {signal: queue, up_at: 2, down_at: 1}}
  d: {count: {min: 1, max: 4}, scaling: 5}
  e: {count: {min: 1, max: 4}, scaling: {signal: {prometheus: localhost, query: ""}, up_at: 2, down_at: 2}}
"""
    forms = "queue, {role: ROLE, method: METHOD} or {prometheus: URL, query: QUERY}"
    assert problems(text) == [
        "6:7: roles.a.scaling.down_at: is missing",
        f"6:15: roles.a.scaling.signal: must be {forms}, not 'load'",
        "7:14: roles.a.scaling.up_at: must be a number, not 'many'",
        "8:13: roles.a.scaling.step: must be from 1 to 100000, not 0",
        "9:68: roles.b.scaling.signal.method: must be the name of a public method, not '_x'",
        "10:26: roles.c.scaling: needs a count with a min and a max, not 3",
        "11:41: roles.d.scaling: must be a mapping, not 5",
        "12:63: roles.e.scaling.signal.prometheus: must be the URL of a Prometheus server, such as http://localhost:9090",
        "12:81: roles.e.scaling.signal.query: must be a query, not ''",
    ]


def test_the_role_of_a_signal_must_be_there(problems: Problems) -> None:
    text = """
roles:
  - role: worker
    count: {min: 1, max: 4}
    scaling: {signal: {role: pool, method: fullness}, up_at: 0.3, down_at: 0.8}
"""
    assert problems(text) == [
        "5:30: roles[0].scaling.signal.role: there is no role 'pool'; there are worker",
    ]


def test_a_key_that_a_scaling_does_not_have_is_a_warning(write: Callable[[str], Path]) -> None:
    text = """
roles:
  worker: {count: {min: 1, max: 4}, scaling: {signal: queue, up_at: 4, down_at: 1, cooldown: 5}}
"""
    found = load_workload(write(text))

    assert len(found.warnings) == 1 and "roles.worker.scaling.cooldown: unknown key 'cooldown'" in found.warnings[0]
    assert found.workload.roles[0].scaling == Scaling("queue", 4, 1)
