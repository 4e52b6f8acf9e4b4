"""Reading a file: every mistake is found at once, each at its exact place; unknown keys are kept and said."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from distributed_grid.config import GridConfig, LoadedConfig, load_config
from distributed_grid.errors import ConfigInvalid

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "grid.yaml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def problems(write: Write) -> Callable[[str], list[str]]:
    """What is wrong with a text, without the file's name: `line:column: path: what`."""

    def problems(text: str) -> list[str]:
        path = write(text)
        with pytest.raises(ConfigInvalid) as caught:
            load_config(path)
        assert all(line.startswith(f"{path}:") for line in caught.value.because)
        return [line.removeprefix(f"{path}:") for line in caught.value.because]

    return problems


@pytest.fixture
def load(write: Write) -> Callable[[str], LoadedConfig]:
    return lambda text: load_config(write(text))


def warned(loaded: LoadedConfig) -> list[str]:
    return [warning.removeprefix(f"{loaded.source.path}:") for warning in loaded.warnings]


SHARING = "must be one of offload_only, share_and_offload, dynamic_balancing, not"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: 5\n", '1:7: name: must be text, not 5; quotes make it text: "5"'),
        ('name: ""\n', "1:7: name: must not be empty"),
        ("embedded: yes\n", "1:11: embedded: must be true or false, not 'yes'"),
        ("embedded:\n", "1:1: embedded: must be true or false, not empty"),
        ("execution: 3\n", "1:12: execution: must be a mapping, not 3"),
        ("resource_sharing: on\n", "1:19: resource_sharing: must be a mapping, not 'on'"),
        ("resource_sharing: {enabled: 1}\n", "1:29: resource_sharing.enabled: must be true or false, not 1"),
        (
            "execution:\n  resource_sharing:\n    mode: offload\n",
            f"3:11: execution.resource_sharing.mode: {SHARING} 'offload'; did you mean 'offload_only'?",
        ),
        (
            "resource_sharing: {policy: wild}\n",
            "1:28: resource_sharing.policy: must be one of conservative, balanced, aggressive, predictive, not 'wild'",
        ),
        (
            "resource_sharing: {delivery: mail}\n",
            "1:30: resource_sharing.delivery: must be one of transfer, reserve, auto, not 'mail'",
        ),
        (
            "resource_sharing:\n  rebalance_interval: 0\n",
            "2:23: resource_sharing.rebalance_interval: must be above zero, not 0",
        ),
        (
            "resource_sharing:\n  monitoring_interval_seconds: -1\n",
            "2:32: resource_sharing.monitoring_interval_seconds: must be above zero, not -1",
        ),
        (
            "resource_sharing: {grace_seconds: soon}\n",
            "1:35: resource_sharing.grace_seconds: must be a length of time such as 90 (seconds), 30m, 1h30m or 2d, "
            "not 'soon'",
        ),
        (
            "resource_sharing: {rebalance_interval: 0s}\n",
            "1:40: resource_sharing.rebalance_interval: must be above zero, not 0",
        ),
        (
            "resource_sharing: {grace_seconds: 400d}\n",
            "1:35: resource_sharing.grace_seconds: must be at most a year (31622400 seconds), not 34560000",
        ),
        (
            "resource_sharing: {grace_seconds: 1e12}\n",
            "1:35: resource_sharing.grace_seconds: must be at most a year (31622400 seconds), not 1000000000000",
        ),
        (
            "resource_sharing:\n  thresholds: {gpu_pressure_high: 1.1}\n",
            "2:35: resource_sharing.thresholds.gpu_pressure_high: must be between 0 and 1, not 1.1",
        ),
        (
            "resource_sharing:\n  pressure_thresholds:\n    cpu: {high: 0.5, low: 0.5}\n",
            "3:27: resource_sharing.pressure_thresholds.cpu.low: "
            "the low threshold (0.5) must be below the high one (0.5)",
        ),
        (  # only `high` was written, so that is where the person looks
            "resource_sharing:\n  thresholds: {cpu_pressure_high: 0.2}\n",
            "2:35: resource_sharing.thresholds.cpu_pressure_high: "
            "the low threshold (0.3) must be below the high one (0.2)",
        ),
        (
            "resource_sharing:\n  pressure_thresholds: {gpu: 3}\n",
            "2:30: resource_sharing.pressure_thresholds.gpu: must be a mapping, not 3",
        ),
        (
            "resource_sharing: {gpu_companions: {cpu: -1}}\n",
            "1:42: resource_sharing.gpu_companions.cpu: must be zero or more, not -1",
        ),
        ("nodes: {a: 1}\n", "1:8: nodes: must be a list, not a mapping"),
        ("nodes:\n- 3\n", "2:3: nodes[0]: must be a mapping, not 3"),
        ("nodes:\n- host: x\n", "2:3: nodes[0].name: is missing"),
        ("nodes:\n- name: 1\n", '2:9: nodes[0].name: must be text, not 1; quotes make it text: "1"'),
        ("nodes:\n- name: a b\n", "2:9: nodes[0].name: must not contain spaces or '/', but is 'a b'"),
        ("nodes:\n- name: a/b\n", "2:9: nodes[0].name: must not contain spaces or '/', but is 'a/b'"),
        (
            "nodes:\n- {name: a, port: 0}\n",
            "2:19: nodes[0].port: must be a port number from 1 to 65535, not 0",
        ),
        (
            "nodes:\n- {name: a, role: boss}\n",
            "2:19: nodes[0].role: must be one of master, worker, not 'boss'",
        ),
        ("nodes:\n- {name: a, cpu_count: -4}\n", "2:24: nodes[0].cpu_count: must be zero or more, not -4"),
        (
            "nodes:\n- {name: a, cpu_count: 1.5}\n",
            "2:24: nodes[0].cpu_count: must be a whole number, not 1.5",
        ),
        (
            "nodes:\n- {name: a, gpu_count: .nan}\n",
            "2:24: nodes[0].gpu_count: must be a finite number, not nan",
        ),
        (
            "nodes:\n- {name: a, memory_gb: .inf}\n",
            "2:24: nodes[0].memory_gb: must be a finite number, not inf",
        ),
        ("nodes:\n- {name: a, memory_gb: '8'}\n", "2:24: nodes[0].memory_gb: must be a number, not '8'"),
        (
            "nodes:\n- {name: a, memory_gb: 1e15}\n",
            "2:24: nodes[0].memory_gb: 1000000000000000 GB is more than any cluster has",
        ),
        ("nodes:\n- {name: a, tags: gpu}\n", "2:19: nodes[0].tags: must be a list, not 'gpu'"),
        ("nodes:\n- {name: a, tags: [x, [y]]}\n", "2:23: nodes[0].tags[1]: must be text, not a list"),
        (
            "nodes:\n- {name: a, resources: {t: -1}}\n",
            "2:28: nodes[0].resources.t: must be zero or more, not -1",
        ),
        (
            "nodes:\n- {name: a, resources: {CPU: 1}}\n",
            "2:25: nodes[0].resources.CPU: 'CPU' is not a custom resource; set the node's cpu_count instead",
        ),
        (
            "nodes:\n- {name: a, resources: {object_store_memory: 1}}\n",
            "2:25: nodes[0].resources.object_store_memory: "
            "'object_store_memory' is reserved by Ray; choose another name",
        ),
        (
            "nodes:\n- name: a\n  resource_sharing: {max_share_cpu: true}\n",
            "3:37: nodes[0].resource_sharing.max_share_cpu: must be a number, not true",
        ),
        (
            "nodes:\n- name: a\n  resource_sharing: {priority: -1}\n",
            "3:32: nodes[0].resource_sharing.priority: must be zero or more, not -1",
        ),
        (
            "nodes:\n- name: a\n- name: b\n- name: a\n",
            "4:9: nodes[2].name: the name 'a' is taken by nodes[0]; every node needs its own",
        ),
        (
            "nodes:\n- {name: a, role: master}\n- {name: b, role: master}\n",
            "3:19: nodes[1].role: a is already the master; a cluster has only one",
        ),
        ("name: a\nnodes: []\nname: b\n", "3:1: name: the key 'name' is given twice, first at 1:1"),
        ("nodes: &n [*n]\n", "1:8: nodes[0][0]: is nested too deeply, or contains itself"),
        ("name: !secret x\n", "1:7: name: the tag !secret is not known here; write the plain value"),
        ("? [a, b]\n: 1\n", "1:3: a key must be a single word, not a list or a mapping"),
        ("nodes:\n- <<: 3\n  name: a\n", "2:7: nodes[0].<<: must name a mapping, such as <<: *anchor"),
    ],
)
def test_a_bad_value_is_reported_at_its_exact_place(
    problems: Callable[[str], list[str]], text: str, expected: str
) -> None:
    assert expected in problems(text)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("", "1:1: top level: the file is empty"),
        ("# only a comment\n", "1:1: top level: the file is empty"),
        ("- name: a\n", "1:1: top level: must be a mapping such as `nodes: [...]`, not a list"),
        ("\n\nhello\n", "3:1: top level: must be a mapping such as `nodes: [...]`, not a single value"),
        ("nodes: [1,\nb: 2\n", "3:1: syntax: expected ',' or ']'"),
        (
            "nodes:\n\t- name: a\n",
            "2:1: syntax: found character '\\t' that cannot start any token (YAML is indented",
        ),
        ("name: *nobody\n", "1:7: syntax: found undefined alias 'nobody'"),
        ("a: 1\n---\nb: 2\n", "2:1: syntax: but found another document"),
        ("ab: 1\ncd: \x01\n", "2:5: syntax: the character"),
        ("name: " + "[" * 500, "1:1: top level: is nested too deeply"),
    ],
)
def test_a_file_that_is_no_configuration_says_what_it_is_instead(
    problems: Callable[[str], list[str]], text: str, start: str
) -> None:
    (only,) = problems(text)

    assert only.startswith(start)


def test_all_problems_of_a_file_come_at_once_in_file_order(problems: Callable[[str], list[str]]) -> None:
    found = problems(
        "nodes:\n"
        "- {name: a, cpu_count: -1}\n"
        "- {name: a, gpu_count: x}\n"
        "- {name: c, name: d}\n"
        "embedded: 3\n"
        "cluster_name: one\n"
        "name: two\n"
    )

    assert [line.split(":")[0] for line in found] == ["2", "3", "3", "4", "5", "7"]


def test_two_spellings_that_disagree_are_an_error_that_names_both(
    problems: Callable[[str], list[str]],
) -> None:
    (only,) = problems(
        "execution:\n  resource_sharing:\n    rebalance_interval: 20\n"
        "resource_sharing:\n  rebalance_interval_seconds: 30\n"
    )

    assert only == (
        "5:31: resource_sharing.rebalance_interval_seconds: 30 differs from 20 given as "
        "execution.resource_sharing.rebalance_interval at 3:25; keep one of them"
    )


@pytest.mark.parametrize(
    "text",
    [
        "name: a\ncluster_name: b\n",
        "name: a\ncluster: {name: b}\n",
        "resource_sharing: {enabled: true}\nexecution: {resource_sharing: {enabled: false}}\n",
        "resource_sharing: {enabled: true}\nexecution: {resource_sharing: {enabled: 1}}\n",
        "resource_sharing: {thresholds: {cpu_pressure_low: 0.1}, pressure_thresholds: {cpu: {low: 0.2}}}\n",
    ],
)
def test_disagreement_is_found_in_every_pair_of_spellings(problems: Callable[[str], list[str]], text: str) -> None:
    assert any("differs from" in line and "keep one of them" in line for line in problems(text))


def test_two_spellings_that_agree_or_complete_each_other_are_fine(
    load: Callable[[str], LoadedConfig],
) -> None:
    loaded = load(
        "name: a\ncluster_name: a\n"
        "execution:\n  resource_sharing: {enabled: true, rebalance_interval: 20}\n"
        "resource_sharing:\n"
        "  rebalance_interval_seconds: 20.0\n"
        "  thresholds: {cpu_pressure_high: 0.9, excess_threshold: 0.1}\n"
        "  pressure_thresholds: {cpu: {low: 0.1}, gpu: {high: 0.7}}\n"
    )
    sharing = loaded.config.resource_sharing

    assert not loaded.warnings
    assert (loaded.config.name, sharing.enabled, sharing.rebalance_interval_seconds) == ("a", True, 20)
    thresholds = sharing.thresholds
    assert (thresholds.cpu_pressure_high, thresholds.cpu_pressure_low) == (0.9, 0.1)
    assert (thresholds.gpu_pressure_high, thresholds.excess_threshold) == (0.7, 0.1)


def test_sections_left_empty_are_defaults(load: Callable[[str], LoadedConfig]) -> None:
    loaded = load("name: a\nexecution:\nnodes:\nresource_sharing:\n  thresholds:\n  pressure_thresholds:\n")

    assert loaded.config.resource_sharing == GridConfig().resource_sharing
    assert loaded.config.nodes == ()


def test_unknown_keys_warn_where_they_stand_and_are_kept(load: Callable[[str], LoadedConfig]) -> None:
    loaded = load(
        "nodes:\n"
        "- name: a\n"
        "  cpu_cuont: 4\n"
        "  ray_start_params: {num-cpus: 4}\n"
        "execution:\n"
        "  resource_sharing: {enabeld: true}\n"
        "  retries: 3\n"
        "runtime_env: {pip: [numpy]}\n"
    )

    assert warned(loaded) == [
        "3:3: nodes[0].cpu_cuont: unknown key 'cpu_cuont' (ignored); did you mean 'cpu_count'?",
        "4:3: nodes[0].ray_start_params: unknown key 'ray_start_params' (ignored)",
        "6:22: execution.resource_sharing.enabeld: unknown key 'enabeld' (ignored); did you mean 'enabled'?",
        "7:3: execution.retries: unknown key 'retries' (ignored)",
        "8:1: runtime_env: unknown key 'runtime_env' (ignored)",
    ]
    kept = loaded.config.to_dict()
    assert kept["nodes"][0]["ray_start_params"] == {"num-cpus": 4}
    assert kept["resource_sharing"]["enabeld"] is True
    assert kept["execution"] == {"retries": 3}
    assert kept["runtime_env"] == {"pip": ["numpy"]}


def test_a_mistyped_other_spelling_is_guessed_too(load: Callable[[str], LoadedConfig]) -> None:
    loaded = load("resource_sharing: {pressure_treshold: {cpu: {high: 0.9}}}\n")

    assert warned(loaded)[0].endswith("did you mean 'pressure_thresholds'?")


def test_anchors_aliases_and_merge_keys_work(load: Callable[[str], LoadedConfig]) -> None:
    loaded = load(
        "nodes:\n"
        "- &first\n"
        "  name: a\n"
        "  cpu_count: 8\n"
        "  resource_sharing: &limits {max_share_cpu: 4}\n"
        "- <<: *first\n"
        "  name: b\n"
        "- {name: c, resource_sharing: *limits}\n"
        "- name: d\n"
        "  resource_sharing: {<<: [{priority: 3}, *limits], max_share_cpu: 2}\n"
    )
    a, b, c, d = loaded.config.nodes

    assert not loaded.warnings
    assert (b.name, b.cpu_count, b.resource_sharing) == ("b", 8, a.resource_sharing)
    assert c.resource_sharing.max_share_cpu == 4
    assert (d.resource_sharing.max_share_cpu, d.resource_sharing.priority) == (2, 3)
    assert loaded.origins["nodes[1].cpu_count"] == f"{loaded.source.path}:4:14"


def test_a_bad_value_behind_an_alias_is_reported_where_it_is_written(
    problems: Callable[[str], list[str]],
) -> None:
    assert problems("nodes:\n- &a {name: a, cpu_count: -1}\n- {<<: *a, name: b}\n") == [
        "2:27: nodes[0].cpu_count: must be zero or more, not -1",
        "2:27: nodes[1].cpu_count: must be zero or more, not -1",
    ]


def test_aliases_that_unfold_without_end_are_refused_quickly(problems: Callable[[str], list[str]]) -> None:
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 9)]

    (only,) = problems("\n".join(lines))

    assert "aliases unfold to more than 100,000 values" in only


def test_origins_tell_each_value_its_line_or_default(load: Callable[[str], LoadedConfig]) -> None:
    loaded = load("execution:\n  resource_sharing:\n    pressure_thresholds: {cpu: {high: 0.9}}\n    extra: [1]\n")
    here = loaded.source.path

    assert loaded.origins["resource_sharing.thresholds.cpu_pressure_high"] == f"{here}:3:39"
    assert loaded.origins["resource_sharing.thresholds.cpu_pressure_low"] == "default"
    assert loaded.origins["resource_sharing.extra"] == f"{here}:4:12"
    assert loaded.origins["name"] == "default"


def test_numbers_words_and_dates_are_what_yaml_says(load: Callable[[str], LoadedConfig]) -> None:
    extras = load("a: 0x1F\nb: 1_000\nc: 2024-01-31\nd: ~\ne: 'true'\nf: True\n7: seven\n").config.to_dict()

    assert {key: extras[key] for key in "abcdef7"} == {
        "a": 31,
        "b": 1000,
        "c": "2024-01-31",
        "d": None,
        "e": "true",
        "f": True,
        "7": "seven",
    }


def test_a_file_that_is_not_utf8_says_where(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes("name: a\n# caf\xe9\n".encode("latin-1"))

    with pytest.raises(ConfigInvalid) as caught:
        load_config(path)

    assert caught.value.because == (f"{path}:2:6: syntax: is not UTF-8 text",)


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "windows.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: a\r\nnodes: []\r\n")

    assert load_config(path).config.name == "a"


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid) as missing:
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigInvalid) as folder:
        load_config(tmp_path)

    assert missing.value.because[0].endswith("none.yaml: No such file or directory (named by the caller)")
    assert "Is a directory" in folder.value.because[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file_says_so(write: Write) -> None:
    path = write("name: a\n")
    path.chmod(0)

    with pytest.raises(ConfigInvalid) as caught:
        load_config(path)

    assert "Permission denied" in caught.value.because[0]


def test_a_home_path_is_expanded(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("name: from-home\n")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert load_config("~/grid.yaml").config.name == "from-home"
