"""Nodes with a GPU whose driver is not real: the C program `fake_driver.c`, which reports a busy device on request.

A module imports the two fixtures, and `ENV` and `ONE_GPU` for the cluster that it asks for.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

_FOLDER: Final = Path(tempfile.gettempdir()) / f"grid-fake-driver-{os.getpid()}"
BUSY: Final = _FOLDER / "busy"
"""While this file exists, the device is busy."""
ENV: Final = {"LD_LIBRARY_PATH": str(_FOLDER), "FAKE_GPU_BUSY": str(BUSY)}
IDLE_AFTER_S: Final = 8
ONE_GPU: Final = f"""
name: gpu-test
embedded: true
resource_sharing:
  enabled: true
  mode: share_and_offload
  monitoring_interval_seconds: 1
  idle_after: {IDLE_AFTER_S}
  idle_action: reclaim
  min_hold_seconds: 0
  grace_seconds: 4
  thresholds: {{excess_threshold: 0}}
nodes:
- {{name: head, role: master, cpu_count: 2, memory_gb: 2}}
- {{name: one, cpu_count: 4, memory_gb: 2, gpu_count: 1}}
"""
needs_a_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="the driver is made with a C compiler")


@pytest.fixture(scope="module", autouse=True)
def driver() -> Iterator[None]:
    """Made before the cluster that uses it starts."""
    _FOLDER.mkdir(exist_ok=True)
    made, source = _FOLDER / "libnvidia-ml.so.1", Path(__file__).with_name("fake_driver.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(made), str(source)], check=True, timeout=60)
    yield
    shutil.rmtree(_FOLDER, ignore_errors=True)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The device is idle again after each test."""
    yield
    BUSY.unlink(missing_ok=True)
