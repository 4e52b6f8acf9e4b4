"""What is said before an embedded cluster starts."""

import os
from pathlib import Path

import pytest

from distributed_grid.cluster import embedded
from distributed_grid.config import load_config, packaged_config
from distributed_grid.store.home import GridHome


class NotToday(Exception):
    pass


@pytest.mark.parametrize(("cores", "is_said"), [(2, True), (4, True), (5, False), (64, False)])
def test_a_machine_with_far_fewer_cores_than_its_nodes_have_cpus_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, is_said: bool
) -> None:
    config = tmp_path / "cluster.yaml"
    config.write_text(
        "name: crowded\nembedded: true\nnodes:\n"
        "- {name: head, role: master, cpu_count: 8, memory_gb: 1}\n- {name: other, cpu_count: 12, memory_gb: 1}\n"
    )

    def start(*args: object, **options: object) -> None:
        raise NotToday

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(embedded.local, "start", start)
    told: list[str] = []

    with pytest.raises(NotToday):
        embedded.start_embedded(GridHome(tmp_path / "home"), str(config), progress=told.append)

    notes = [line for line in told if "20 CPUs together" in line]
    assert len(notes) == is_said
    if is_said:
        assert f"this machine has {cores} cores" in notes[0]
        assert f"grid run --cpus {cores} -- PROGRAM" in notes[0]


def test_nodes_that_hand_out_the_same_gpu_of_this_machine_are_named() -> None:
    packaged = load_config(packaged_config()).config

    (told,) = embedded.shared_gpus(packaged, devices=1)
    assert told.startswith("gpu1 and gpu2 hand out the same GPU, device 0")
    assert embedded.shared_gpus(packaged, devices=0) == []
