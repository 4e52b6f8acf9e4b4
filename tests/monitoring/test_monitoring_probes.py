"""How many probes are started and asked at a time; what real ones do is in `tests/integration/test_probes.py`."""

from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from ray import exceptions

from distributed_grid.decide.monitoring.naming import Raylet
from distributed_grid.execution import actors
from distributed_grid.model.snapshots import Reading
from distributed_grid.monitoring import probes as module
from distributed_grid.monitoring.probes import Probes, Unread

SAID = {
    "host": dict.fromkeys(("cpus", "cpu_used", "memory_total", "memory_used", "swap_total", "swap_used"), 1)
    | {"load": (0.0, 0.0, 0.0)},
    "own": {"cpu_used": 0.0, "memory_used": 0, "processes": 1},
    "gpus": [],
    "no_gpus_because": "none",
}


class Call:
    """Answers once its actor is up and not silent."""

    def __init__(self, actor: "Actor", said: Any) -> None:
        self.actor, self.said = actor, said

    @property
    def is_done(self) -> bool:
        return self.actor.is_up and not self.actor.is_silent


class Actor:
    def __init__(self, ray: "FakeRay", name: str) -> None:
        self.is_up = self.is_silent = False
        self.reads = 0
        self.says: Any = SAID
        self.about = SimpleNamespace(remote=lambda: Call(self, {"pid": 1}))
        self.read = SimpleNamespace(remote=self._read)
        ray.actors[name] = self

    def _read(self) -> Call:
        self.reads += 1
        return Call(self, self.says)


class FakeRay:
    """Brings one actor up in every wait, which takes a tenth of a second."""

    exceptions = exceptions

    def __init__(self) -> None:
        self.actors: dict[str, Actor] = {}
        self.most_at_once = 0
        self.now = 0.0
        self.util = SimpleNamespace(list_named_actors=lambda all_namespaces: [])

    def options(self, name: str, **_: Any) -> Any:
        return SimpleNamespace(remote=lambda *_: Actor(self, name))

    def wait(self, calls: list[Call], num_returns: int = 1, timeout: float = 0) -> tuple[list[Call], list[Call]]:
        starting = [actor for actor in self.actors.values() if not actor.is_up]
        self.most_at_once = max(self.most_at_once, len(starting))
        if timeout:
            self.now += 0.1
            for actor in starting[:1]:
                actor.is_up = True
        return [call for call in calls if call.is_done], [call for call in calls if not call.is_done]

    def get(self, call: Call) -> Any:
        if isinstance(call.said, Exception):
            raise call.said
        return call.said

    def kill(self, actor: Actor, no_restart: bool) -> None:
        self.actors = {name: one for name, one in self.actors.items() if one is not actor}

    def get_actor(self, name: str, namespace: str) -> Actor:
        return self.actors[name]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    fake = FakeRay()
    monkeypatch.setattr(module, "ray", fake)
    monkeypatch.setattr(actors, "ray", fake)
    yield fake


def node_id(number: int) -> str:
    return f"{number + 1:056x}"


def raylets(count: int) -> list[Raylet]:
    return [
        Raylet(node_id=node_id(n), labels={}, host="h", ip="i", base={"CPU": 1.0}, is_head=n == 0, manager_port=1)
        for n in range(count)
    ]


def test_a_hundred_probes_are_started_a_few_at_a_time(ray: FakeRay) -> None:
    probes = Probes(clock=lambda: ray.now, actor_class=lambda: ray)

    probes.keep(raylets(100), within_s=60.0)

    assert len(ray.actors) == 100
    assert ray.most_at_once <= 8


def test_those_that_did_not_get_their_turn_are_for_the_next_call_and_say_so(ray: FakeRay) -> None:
    probes = Probes(clock=lambda: ray.now, actor_class=lambda: ray)

    probes.keep(raylets(100), within_s=1.0)
    found = probes.read_all(timeout_s=1.0)

    assert 8 <= len(ray.actors) < 30
    assert found[node_id(99)] == Unread("its probe has not been started yet")
    for _ in range(20):
        probes.keep(raylets(100), within_s=1.0)
    assert len(ray.actors) == 100


def test_probes_that_never_come_up_do_not_keep_others_out_for_ever(ray: FakeRay) -> None:
    probes = Probes(clock=lambda: ray.now, actor_class=lambda: ray)
    ray.wait = lambda calls, num_returns=1, timeout=0: ([], calls)  # type: ignore[method-assign]

    probes.keep(raylets(20), within_s=0.0)
    assert len(ray.actors) == 8
    ray.now += 31
    probes.keep(raylets(20), within_s=0.0)

    assert len(ray.actors) == 16


def test_a_silent_node_is_not_asked_again_and_its_late_answer_is_not_taken_for_news(ray: FakeRay) -> None:
    probes = Probes(clock=lambda: ray.now, actor_class=lambda: ray)
    probes.keep(raylets(2))
    while not all(isinstance(said, Reading) for said in probes.read_all(1.0).values()):
        pass
    silent = ray.actors[module.name_of(node_id(1))]
    before = silent.reads
    silent.is_silent = True
    for _ in range(5):
        found = probes.read_all(timeout_s=1.0)
        assert isinstance(found[node_id(1)], Unread)
        assert isinstance(found[node_id(0)], Reading)
    assert silent.reads == before + 1

    silent.is_silent = False
    found = probes.read_all(timeout_s=1.0)

    assert isinstance(found[node_id(1)], Reading)
    assert silent.reads == before + 2  # it was asked anew


def test_a_probe_that_fails_is_replaced_at_once_and_then_less_and_less_often(ray: FakeRay) -> None:
    probes = Probes(clock=lambda: ray.now, actor_class=lambda: ray)
    started = []
    for _ in range(4000):
        probes.keep(raylets(1))
        for actor in ray.actors.values():
            if actor.says is SAID:
                actor.says = exceptions.RayError("broken")
                started.append(ray.now)
        found = probes.read_all(timeout_s=1.0)
        assert isinstance(found[node_id(0)], Unread)
        ray.now += 1.0

    assert "broken" in found[node_id(0)].because
    pauses = [round(later - earlier) for earlier, later in pairwise(started)]
    assert pauses[0] < 5
    assert pauses == sorted(pauses)
    assert pauses[-1] == 300


def test_a_node_that_left_is_not_asked_and_has_no_probe(ray: FakeRay) -> None:
    probes = Probes(clock=lambda: ray.now, actor_class=lambda: ray)
    probes.keep(raylets(3))

    probes.keep(raylets(2))

    assert set(probes.read_all(timeout_s=1.0)) == {node_id(0), node_id(1)}
    assert len(ray.actors) == 2
