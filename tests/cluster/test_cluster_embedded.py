"""What is said before an embedded cluster starts."""

import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from distributed_grid.cluster import embedded
from distributed_grid.config import load_config, packaged_config
from distributed_grid.store.home import GridHome


class NotToday(Exception):
    pass


def told_before_start(folder: Path, monkeypatch: pytest.MonkeyPatch, nodes: str) -> list[str]:
    config = folder / "cluster.yaml"
    config.write_text(f"name: crowded\nembedded: true\nnodes:\n{nodes}")

    def start(*args: object, **options: object) -> None:
        raise NotToday

    monkeypatch.setattr(embedded.local, "start", start)
    reported: list[str] = []
    with pytest.raises(NotToday):
        embedded.start_embedded(GridHome(folder / "home"), str(config), progress=reported.append)
    return reported


@pytest.mark.parametrize(("cores", "is_said"), [(2, True), (4, True), (5, False), (64, False)])
def test_a_machine_with_far_fewer_cores_than_its_nodes_have_cpus_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, is_said: bool
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    nodes = "- {name: head, role: master, cpu_count: 8, memory_gb: 1}\n- {name: other, cpu_count: 12, memory_gb: 1}\n"

    reported = told_before_start(tmp_path, monkeypatch, nodes)

    notes = [line for line in reported if "20 CPUs together" in line]
    assert len(notes) == is_said
    if is_said:
        assert f"this machine has {cores} cores" in notes[0]
        assert f"grid run --cpus {cores} -- PROGRAM" in notes[0]


def test_nodes_that_hand_out_the_same_gpu_of_this_machine_are_named() -> None:
    packaged = load_config(packaged_config()).config

    (reported,) = embedded.shared_gpus(packaged, devices=1)
    assert reported.startswith("gpu1 and gpu2 hand out the same GPU, device 0")
    assert embedded.shared_gpus(packaged, devices=0) == []


@pytest.mark.parametrize(("devices", "is_said"), [(["nvidia0", "nvidiactl"], True), (["nvidiactl"], False)])
def test_the_start_of_the_cluster_warns_of_shared_gpus_if_the_machine_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: list[str], is_said: bool
) -> None:
    real = Path.glob

    def glob(self: Path, pattern: str) -> Iterator[Path]:
        found = (self / name for name in devices if fnmatch(name, pattern))
        return found if self == Path("/dev") else real(self, pattern)

    monkeypatch.setattr(Path, "glob", glob)
    nodes = "".join(f"- {{name: {name}, cpu_count: 1, memory_gb: 1, gpu_count: 1}}\n" for name in ("one", "two"))

    reported = told_before_start(
        tmp_path, monkeypatch, nodes + "- {name: head, role: master, cpu_count: 1, memory_gb: 1}"
    )

    notes = [line for line in reported if line.startswith("Note: one and two hand out the same GPU, device 0 ")]
    assert len(notes) == is_said
