"""Shared by all tests: the support folder on the path, and real clusters for those that need one."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, so that a green run means the same thing everywhere. To look for new ones:
# HYPOTHESIS_PROFILE=explore pytest tests/properties
# No test fails because the machine is busy.
_PATIENT: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", derandomize=True, max_examples=100, **_PATIENT)
settings.register_profile("explore", max_examples=1000, **_PATIENT)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

sys.path.insert(0, str(Path(__file__).parent / "support"))
sys.path.insert(0, str(Path(__file__).parents[1]))  # for `bench`, which is no part of the package


@pytest.fixture(scope="module")
def grid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[object]":
    """A real embedded cluster with grid in it, and this process as a Ray driver of its own.

    A module may set `CONFIG` to another configuration than the packaged one.
    """
    from live_grid import LiveGrid

    config = getattr(request.module, "CONFIG", None)
    live = LiveGrid(tmp_path_factory.mktemp("grid"), config)
    try:
        live.start()
        yield live
    finally:
        live.stop()


@pytest.fixture(autouse=True)
def _nothing_left_over(request: pytest.FixtureRequest) -> "Iterator[None]":
    """Each test on a shared cluster gives back what it took."""
    yield
    if "grid" in request.fixturenames:
        request.getfixturevalue("grid").release_everything()
