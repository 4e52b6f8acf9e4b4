"""What members meet on a real cluster: tests/roles/test_roles_local_faces.py asks the same of local mode.

And what a launcher sees there of GPUs.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from live_grid import NOTICE_SOON, TWO_LENDERS, LiveGrid, until
from role_classes import Teller, small
from role_faces import CHECKS, faces

from distributed_grid.roles import Run, Workload, launch
from distributed_grid.roles.keeping.surveying import Surveyor

pytestmark = pytest.mark.cluster

CONFIG = TWO_LENDERS
ENV = NOTICE_SOON


@pytest.fixture(autouse=True)
def _found(grid: LiveGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid of the tests is the one that is found."""
    monkeypatch.setenv("GRID_HOME", str(grid.home.path))


@pytest.fixture(scope="module")
def _one() -> Iterator[dict[str, Any]]:
    made: dict[str, Any] = {}
    yield made
    for run, _ in made.values():
        run.shutdown()


@pytest.fixture
def met(_found: None, _one: dict[str, tuple[Run, dict[str, Any]]]) -> tuple[Run, dict[str, Any]]:
    """One run for all of them. Tests give back all leases in the end, so it has groups of its own."""
    if "faces" not in _one:
        workload, config = faces()
        _one["faces"] = launch(workload, leases=False), config
    return _one["faces"]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_members_meet_the_same_as_in_local_mode(
    check: Callable[[Any, dict[str, Any]], None], met: tuple[Run, dict[str, Any]]
) -> None:
    check(*met)


def test_parts_of_gpus_that_groups_hold_are_seen_one_by_one(grid: LiveGrid) -> None:
    surveyor = Surveyor.connected()
    with launch(Workload("parts", (small("judge", Teller, gpus=0.4, node_affinity=["one"]),)), leases=False):
        until(lambda: surveyor.look().inventory["one"].gpu_parts == (4_000,), what="it is held")
    until(lambda: surveyor.look().inventory["one"].gpu_parts == (), what="it is free")
