"""Ray is told of the end of a lease with a private cluster, once for each deadline."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from builders import FOR_ANA, ask
from fake_cluster import FakeCluster
from whole_grid import WholeGrid

from distributed_grid.leases.programs import report_program
from distributed_grid.leases.reclaim import reclaim
from distributed_grid.model.endings import EndCause, Ending
from distributed_grid.model.leases import Lease, Purpose

GRACE_S = 40.0

pytestmark = pytest.mark.filterwarnings("ignore")


class WithRaylets(FakeCluster):
    """What private clusters are told; `has_actors`: whether something lives there that hears of it."""

    has_actors = True
    is_out_of_reach = False

    def __init__(self) -> None:
        super().__init__()
        self.drained: list[tuple[str, float, str]] = []

    def drain_private_cluster(self, lease: Lease, left_s: float, why: str) -> bool:
        if self.is_out_of_reach:
            raise OSError("no route")
        if self.has_actors:
            self.drained.append((lease.id, left_s, why))
        return self.has_actors


@pytest.fixture
def cluster() -> WithRaylets:
    return WithRaylets()


@pytest.fixture
def lab(make_grid: Callable[..., WholeGrid], cluster: WithRaylets) -> WholeGrid:
    return make_grid(cluster)


def reclaimed(lab: WholeGrid, *, has_program: bool = True, ending: Ending = FOR_ANA) -> Lease:
    held = lab.run(
        lab.service.request(
            ask("b", amount=2, source="a", delivery="reserve", grace_s=GRACE_S, purpose=Purpose.RUN, requester="bob")
        )
    )

    async def entering() -> None:
        if has_program:
            await report_program(lab.parts, held, "p1", "train.py")
        reclaim(lab.parts, held, "ana needs it", ending)
        await lab.parts.try_commit()

    lab.run(entering())
    return held


def test_ray_is_told_once_why_and_how_long(lab: WholeGrid, cluster: WithRaylets) -> None:
    held = reclaimed(lab)
    lab.wait(5.0)
    ((lease_id, left_s, why),) = cluster.drained
    assert lease_id == held.id
    assert GRACE_S - 2 < left_s <= GRACE_S
    assert why == "grid: preempted by ana's request r1e9f00d: 4 CPUs for gpu-master, priority high, team vision"
    assert len(lab.events("raylet_drained")) == 1


def test_ray_is_told_as_soon_as_something_lives_there_that_hears_of_it(lab: WholeGrid, cluster: WithRaylets) -> None:
    cluster.has_actors = False
    reclaimed(lab)
    lab.wait(5.0)
    assert not lab.events("raylet_drained")
    cluster.has_actors = True
    lab.wait(2.0)
    assert len(cluster.drained) == 1


def test_the_notice_of_an_idle_lease_drains_nothing_since_it_may_be_withdrawn(
    lab: WholeGrid, cluster: WithRaylets
) -> None:
    held = reclaimed(lab, ending=replace(FOR_ANA, cause=EndCause.IDLE))
    lab.wait(5.0)
    assert lab.leases[held.id].notice is not None
    assert not cluster.drained


def test_a_cluster_that_does_not_answer_is_told_again_and_delays_nothing(lab: WholeGrid, cluster: WithRaylets) -> None:
    cluster.is_out_of_reach = True
    reclaimed(lab)
    lab.wait(5.0)
    cluster.is_out_of_reach = False
    lab.wait(2.0)
    assert len(cluster.drained) == 1
    assert not lab.failures


def test_after_a_restart_ray_is_told_again(lab: WholeGrid, cluster: WithRaylets) -> None:
    reclaimed(lab)
    lab.wait(3.0)
    lab.crash()
    lab.wait(3.0)
    first, again = cluster.drained
    assert again[1] < first[1]


def test_a_lease_that_does_not_end_and_one_without_a_program_tell_nothing(lab: WholeGrid, cluster: WithRaylets) -> None:
    held = lab.run(lab.service.request(ask("b", amount=1, source="c", delivery="reserve", purpose=Purpose.RUN)))
    lab.run(report_program(lab.parts, held, "p1", "train.py"))
    reclaimed(lab, has_program=False)
    lab.wait(5.0)
    assert not cluster.drained
