"""Probes travel by value: where they arrive, nothing of grid is installed."""

import subprocess
import sys

from ray import cloudpickle

from distributed_grid.monitoring.on_node_probe.probe import Probe
from distributed_grid.monitoring.probes import nvml_source, version

ELSEWHERE = """
import os, pickle, sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("distributed_grid", "pynvml", "structlog", "pydantic"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Nowhere())
import ray  # as in any worker; it brings psutil
Probe, source = pickle.load(sys.stdin.buffer)
print(sorted(Probe(source, 1, os.getpid()).read()))
"""


def test_a_probe_works_where_only_ray_is_installed() -> None:
    parcel = cloudpickle.dumps((Probe, nvml_source()))

    done = subprocess.run([sys.executable, "-c", ELSEWHERE], input=parcel, capture_output=True, check=False, timeout=60)

    assert done.stdout.decode().strip() == "['gpus', 'host', 'no_gpus_because', 'own', 'workers']", done.stderr.decode()


def test_what_travels_to_a_probe_is_small_enough_to_stay_with_it() -> None:
    # Ray keeps up to 100 kB of an argument with the actor; more would be lost with the process that started it.
    assert len(nvml_source()) < 90_000
    assert len(version()) == 8
