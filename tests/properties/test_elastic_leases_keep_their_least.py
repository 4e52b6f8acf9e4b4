"""Whatever is requested and whatever breaks: an elastic lease has its least amount until it is preempted, its group
never has more than is reserved for it, and in the end everything is returned."""

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from builders import LENDS_ALL, ask
from fake_cluster import FakeCluster
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples
from whole_grid import WholeGrid, at_home

from distributed_grid.config import GridConfig
from distributed_grid.errors import NoCapacity
from distributed_grid.model.leases import Elastic, Lease, LeaseState, Purpose
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.resources import total

pytestmark = pytest.mark.filterwarnings("ignore")

ONE = 10_000
LEAST, MOST = 2, 10
NAMES = ("a", "b", "c")
CONFIG = GridConfig.from_dict(
    {
        "name": "elastic",
        "resource_sharing": LENDS_ALL | {"grace_seconds": 1},
        "nodes": [{"name": name} for name in NAMES],
    }
)

Step = Callable[["_Storm"], None]


class _Storm:
    def __init__(self, lab: WholeGrid) -> None:
        self.lab = lab
        wanted = ask("b", "cpu", LEAST, purpose=Purpose.RUN, delivery="reserve", own_too=True)
        self.id = lab.run(lab.service.request(replace(wanted, elastic=Elastic(MOST * ONE, own_too=True)))).id
        self.boosts: list[str] = []

    @property
    def lease(self) -> Lease | None:
        return self.lab.leases.get(self.id)

    def request(self, amount: int, priority: AllocationPriority) -> None:
        wanted = ask("b", "cpu", amount, delivery="reserve", priority=priority)
        with contextlib.suppress(NoCapacity):
            self.boosts.append(self.lab.run(self.lab.service.request(wanted, wait_s=1.0)).id)

    def release(self) -> None:
        if self.boosts and (boost := self.boosts.pop()) in self.lab.leases:
            self.lab.run(self.lab.service.release(boost, grace_s=0.0))

    def work(self, node: str) -> None:
        if self.lease is not None and self.lease.placement_group is not None:
            self.lab.cluster.start_in_extension(self.lease.placement_group, node)

    def finish(self) -> None:
        for pid in self.lab.cluster.running()[:1]:
            self.lab.cluster.finish(pid)

    def check(self) -> bool:
        """Whether the lease is there, or ends for a reason."""
        lease, leases = self.lease, self.lab.leases.values()
        if lease is None or lease.is_winding_down:
            assert self.preempted, "it ends only by preemption"
            return False
        assert lease.state is LeaseState.ACTIVE
        assert lease.capacity["cpu"] >= LEAST * ONE
        assert lease.capacity["cpu"] <= MOST * ONE
        for node in NAMES:
            growth = [one for one in leases if one.grows == self.id and one.source == node and one.held_by]
            has = self.lab.cluster.extension_of(lease.placement_group or "", node)
            assert total([one.resources for one in growth]).covers(has)
        return True

    @property
    def preempted(self) -> bool:
        return any(" takes precedence" in message for message in self.lab.events("reclaim_asked"))


steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(
        lambda amount, priority: lambda storm: storm.request(amount, priority),
        st.integers(1, 6),
        st.sampled_from(AllocationPriority),
    ),
    st.just(_Storm.release),
    st.builds(lambda node: lambda storm: storm.work(node), st.sampled_from(NAMES)),
    st.just(_Storm.finish),
    st.just(lambda storm: storm.lab.crash()),
    st.builds(lambda seconds: lambda storm: storm.lab.wait(seconds), st.sampled_from([0.05, 0.5, 3.0])),
)


@given(st.integers(0, 1000), st.lists(steps, min_size=3, max_size=25))
@settings(max_examples=examples(60))
def test_an_elastic_lease_falls_below_its_least_only_by_preemption(seed: int, storm_steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cluster = FakeCluster.lagging(seed)
        for name in NAMES:
            cluster.add_node(name, cpus=4, memory=1)
        lab = WholeGrid(cluster, CONFIG, Path(folder), seed)
        try:
            storm = _Storm(lab)
            for step in storm_steps:
                step(storm)
                lab.wait(0.05)
                if not storm.check():
                    break
            for lease in list(lab.leases.values()):
                if not lease.grows and not lease.is_winding_down:
                    lab.run(lab.service.release(lease.id, grace_s=0.0))
            lab.wait(6.0)
            at_home(lab)
        finally:
            lab.close()
