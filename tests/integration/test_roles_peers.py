"""What members meet on a real cluster: tests/roles/test_roles_local_faces.py asks the same of local mode.

And what a launcher sees there of GPUs.
"""

from collections.abc import Callable
from typing import Any

import pytest
from live_grid import NOTICE_SOON, TWO_LENDERS, LiveGrid, until
from live_roles import grid_is_found, shared_runs  # noqa: F401 - fixtures
from role_classes import Teller, small
from role_faces import CHECKS, faces

from distributed_grid.roles import Run, Workload, launch
from distributed_grid.roles.supervision.surveying import Surveyor

pytestmark = pytest.mark.cluster

CONFIG = TWO_LENDERS
ENV = NOTICE_SOON


FACES, CONFIGURED = faces()


@pytest.fixture
def met(runs: dict[str, Run]) -> Run:
    """One run for all of them. Tests give back all leases in the end, so it has groups of its own."""
    if "faces" not in runs:
        runs["faces"] = launch(FACES, leases=False)
    return runs["faces"]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_members_meet_the_same_as_in_local_mode(check: Callable[[Any, dict[str, Any]], None], met: Run) -> None:
    check(met, CONFIGURED)


def test_parts_of_gpus_that_groups_hold_are_seen_one_by_one(grid: LiveGrid) -> None:
    surveyor = Surveyor.connected()
    with launch(Workload("parts", (small("judge", Teller, gpus=0.4, node_affinity=["one"]),)), leases=False):
        until(lambda: surveyor.look().inventory["one"].gpu_parts == (4_000,), what="it is held")
    until(lambda: surveyor.look().inventory["one"].gpu_parts == (), what="it is free")
