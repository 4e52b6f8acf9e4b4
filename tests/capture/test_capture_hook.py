"""What a captured program's `ray.init` passes on to Ray."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distributed_grid.capture.inside_lease.hook import ONLY_FOR_A_NEW_CLUSTER, arguments, marked
from distributed_grid.capture.inside_lease.travelling import tell_programs
from distributed_grid.model.work import HOOK_MARK, RUN_MARK
from distributed_grid.run.driver import marked as run_mark

JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"

LEASE_AT = "10.0.0.1:6379"


class Captured(SimpleNamespace):
    """As much of it as is needed here."""

    def __init__(self) -> None:
        self.told: list[str] = []
        super().__init__(
            ray_address=LEASE_AT, reports=SimpleNamespace(rewritten=lambda what, _: self.told.append(what))
        )


@pytest.mark.parametrize("address", [None, "auto", LEASE_AT])
def test_what_only_a_new_cluster_could_have_is_dropped_and_told(address: str | None) -> None:
    captured = Captured()
    given: dict[str, Any] = {
        "num_cpus": 64,
        "resources": {"widget": 1},
        "runtime_env": {"pip": ["a"]},
        "namespace": "n",
    }

    assert arguments(captured, address, given) == {"runtime_env": {"pip": ["a"]}, "namespace": "n"}
    assert captured.told == ["ray.init(num_cpus=64, resources={'widget': 1})"]


@pytest.mark.parametrize("address", ["local", "10.0.0.2:6379", "ray://10.0.0.1:10001"])
def test_another_cluster_gets_what_was_meant_for_it(address: str) -> None:
    captured = Captured()

    assert arguments(captured, address, {"num_cpus": 64}) == {"num_cpus": 64}
    assert captured.told == []


def test_what_says_nothing_is_passed_on_untold() -> None:
    captured = Captured()
    given = dict.fromkeys(ONLY_FOR_A_NEW_CLUSTER)

    assert arguments(captured, None, given) == given
    assert captured.told == []


def test_the_environment_of_a_job_configuration_is_kept_beside_the_run_s_own() -> None:
    with_one = SimpleNamespace(runtime_env={"pip": ["a"]})

    assert arguments(Captured(), None, {"job_config": with_one})["runtime_env"] == {"pip": ["a"]}
    assert arguments(Captured(), None, {"job_config": with_one, "runtime_env": {}})["runtime_env"] == {}


def test_ray_s_record_of_a_job_names_its_run_and_whether_the_hook_is_in_it_but_not_in_what_it_starts() -> None:
    theirs = json.dumps({"metadata": {"job_submission_id": "raysubmit_1"}})
    environ = {JOB_CONFIG: run_mark(theirs, "abc")}
    run = {"job_submission_id": "raysubmit_1", RUN_MARK: "abc"}

    with marked(environ):
        assert json.loads(environ[JOB_CONFIG])["metadata"] == run | {HOOK_MARK: "1"}

    assert json.loads(environ[JOB_CONFIG])["metadata"] == run
    assert json.loads(run_mark("nonsense", "abc")) == {"metadata": {RUN_MARK: "abc"}}


def test_programs_that_a_worker_starts_find_the_hook_where_it_is_installed(tmp_path: Path) -> None:
    environ = {"PYTHONPATH": "/theirs", "GRID_BOOST": "old"}

    tell_programs({"GRID_BOOST": "new", "GRID_CAPTURE_FOLDER": str(tmp_path / "not here")}, environ)
    assert environ == {"PYTHONPATH": "/theirs", "GRID_BOOST": "new"}

    for _ in range(2):
        tell_programs({"GRID_CAPTURE_FOLDER": str(tmp_path)}, environ)
    assert environ["PYTHONPATH"] == f"{tmp_path}:/theirs"
