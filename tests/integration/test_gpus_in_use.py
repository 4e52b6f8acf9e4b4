"""A GPU that a program outside Ray uses, on a real cluster with real probes. Only the driver is not real."""

import pytest
from fake_driver import BUSY, ENV, ONE_GPU, driver, needs_a_compiler, quiet  # noqa: F401 - fixtures, too
from live_grid import LiveGrid, until

from distributed_grid.monitoring.on_node_probe.probe import sees_all_processes

pytestmark = [pytest.mark.cluster, needs_a_compiler]

CONFIG = ONE_GPU
PATIENCE_S = 60


def withheld(grid: LiveGrid) -> float:
    (one,) = [node for node in grid.client.nodes()["nodes"] if node["name"] == "one"]
    return float(one["withheld"]["gpu"])


def test_a_gpu_that_another_program_uses_is_not_lent_until_it_is_free(grid: LiveGrid) -> None:
    BUSY.touch()
    until(lambda: withheld(grid) == 1, PATIENCE_S, "it was seen")

    refused = grid.cli("boost", "request", "head", "gpu", "1")
    planned = grid.cli("plan", "head", "gpu", "1")
    status = grid.cli("cluster", "status").stdout
    doctor = grid.cli("doctor").stdout

    assert refused.returncode == 4
    assert "GpuInUse" in refused.stderr
    reported = "GPU 0 is in use outside Ray: 100.0 of 140.0 GB, 100% busy, pid 1"
    for text in (refused.stderr, planned.stdout + planned.stderr, status, doctor):
        assert reported in " ".join(text.split())

    BUSY.unlink()
    until(lambda: withheld(grid) == 0, PATIENCE_S, "it is free")
    lent = grid.boost("head", "gpu", 1, wait_seconds=PATIENCE_S)
    assert (lent["state"], lent["source_node"]) == ("active", "one")


def test_what_runs_in_a_lent_gpu_is_rays_own(grid: LiveGrid) -> None:
    """The driver of a container does not tell whose process it is: Ray has given the device out."""
    lent = grid.boost("head", "gpu", 1, wait_seconds=PATIENCE_S)
    BUSY.touch()

    def pressed() -> bool:
        (one,) = [node for node in grid.client.nodes()["nodes"] if node["name"] == "one"]
        return bool(one["pressure"] and one["pressure"]["gpu"] == 1.0)

    until(pressed, PATIENCE_S, "its use was seen")
    if not sees_all_processes():
        assert withheld(grid) == 0
    assert grid.state(lent) == "active"
