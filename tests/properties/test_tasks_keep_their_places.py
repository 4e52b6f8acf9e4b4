"""Tasks, gangs, boosts, foreign work and crashes, in any order: no place is given twice, and none is left over."""

import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from builders import LENDS_ALL, ask
from fake_cluster import FakeCluster
from whole_grid import WholeGrid, at_home, together

from distributed_grid.config import GridConfig
from distributed_grid.errors import GridError
from distributed_grid.model.resources import ResourceVector, total
from distributed_grid.model.scheduling import SchedulingRequest

pytestmark = pytest.mark.filterwarnings("ignore")

NODES = {"a": {"cpus": 4}, "b": {"cpus": 4, "gpus": 1}, "c": {"cpus": 6}}
STRATEGIES = ("local_first", "best_fit", "load_balanced", "spread", "cost_optimized", "performance_optimized")


class World:
    def __init__(self, folder: str, seed: int) -> None:
        self.chance = random.Random(seed)
        cluster = FakeCluster.lagging(seed)
        for name, base in NODES.items():
            cluster.add_node(name, **base)
        sharing = LENDS_ALL | {"grace_seconds": 1}
        config = {"name": "lab", "resource_sharing": sharing, "nodes": [{"name": name} for name in NODES]}
        self.grid = WholeGrid(cluster, GridConfig.from_dict(config), Path(folder) / "home", seed)
        self.count = 0

    @property
    def tasks(self) -> Any:
        return self.grid.engine.scheduling

    def step(self) -> None:
        act = self.chance.choice((self.schedule, self.schedule, self.complete, self.boost, self.release, self.work))
        act() if self.chance.random() > 0.03 else self.grid.crash()
        self.grid.wait(self.chance.choice((0.0, 0.0, 0.1, 1.5)))

    def request(self) -> SchedulingRequest:
        self.count += 1
        return SchedulingRequest(
            task_id=f"t{self.count}",
            cpu=self.chance.choice((1, 2, 3)),
            gpu=self.chance.choice((0, 0, 0, 1)),
            count=self.chance.choice((1, 1, 1, 2, 3)),
            wait=self.chance.random() < 0.3,
            strategy=self.chance.choice(STRATEGIES),
            target=self.chance.choice(list(NODES)),
            priority=self.chance.choice(("low", "normal", "high")),
            tags=("apart",) if (apart := self.chance.random() < 0.2) else (),
            anti_affinity={"tasks": ["apart"], "nodes": ["c"]} if apart else None,
        )

    def schedule(self) -> None:
        asked = [self.tasks.schedule(self.request(), who="ann") for _ in range(self.chance.choice((1, 1, 3)))]
        for answer in self.grid.run(together(*asked)):
            assert not isinstance(answer, BaseException), repr(answer)
            if not answer and not answer.queued:
                assert answer.reasons

    def complete(self) -> None:
        known = list(self.tasks.state.tasks)
        if known:
            assert self.grid.run(self.tasks.complete(self.chance.choice(known), who="ann"))

    def boost(self) -> None:
        delivery = self.chance.choice(("reserve", "reserve", "transfer"))
        wanted = ask(self.chance.choice("abc"), amount=self.chance.choice((1, 2, 4)), delivery=delivery)
        self.grid.run(together(self.grid.service.request(wanted)))

    def release(self) -> None:
        boosts = [lease.id for lease in self.grid.leases.values() if lease.purpose == "boost"]
        if boosts:
            self.grid.run(together(self.grid.service.release(self.chance.choice(boosts))))

    def work(self) -> None:
        """A task of another program, which Ray starts whatever grid plans."""
        running = self.grid.cluster.running()
        if running and self.chance.random() < 0.5:
            self.grid.cluster.finish(self.chance.choice(running))
        else:
            self.grid.cluster.start(self.chance.choice("abc"), self.chance.choice((1, 2)))

    def check(self) -> None:
        leases, inside = self.grid.leases, {}
        for task in self.tasks.state.placed:
            for member in task.members:
                held = leases.get(member.lease_id or member.boost_id or "")
                if held is None:
                    continue  # it went this very moment, and is told of within a second
                at = held.shares or (held,)
                assert at[member.bundle - 1].source == member.runs_on
                if member.boost_id is not None:
                    assert held.target == member.node == task.request.target
                    inside.setdefault(held.id, []).append(ResourceVector(task.needs))
                else:
                    assert at[member.bundle - 1].resources == ResourceVector(task.needs)
        self.check_conditions()
        for boost_id, promised in inside.items():
            assert leases[boost_id].resources.covers(total(promised))
        assert not self.grid.cluster.violations, self.grid.cluster.violations[0]

    def check_conditions(self) -> None:
        """Tasks that must be apart are, whether they had to wait or not; and none both waits and has a place."""
        apart = [task for task in self.tasks.state.placed if "apart" in task.request.tags]
        nodes = [member.node for task in apart for member in task.members]
        assert len(nodes) == len(set(nodes)) and "c" not in nodes
        placed = {task.id for task in self.tasks.state.placed}
        assert placed.isdisjoint(each.ask.label for each in self.grid.service.queue.in_order())

    def end(self) -> None:
        self.grid.cluster.finish_everything()
        for task_id in list(self.tasks.state.tasks):
            self.grid.run(self.tasks.complete(task_id, who="ann"))
        for lease in list(self.grid.leases.values()):
            assert lease.purpose == "boost", f"{lease} belongs to no task any more"
            try:
                self.grid.run(self.grid.service.release(lease.id))
            except GridError:
                continue
        self.grid.wait(10.0)
        at_home(self.grid)
        assert not self.tasks.flights and not self.tasks.state.tasks


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_no_place_is_given_twice_and_none_is_left_over(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(folder, seed)
        try:
            for _ in range(60):
                world.step()
                world.check()
            world.end()
        finally:
            world.grid.close()
