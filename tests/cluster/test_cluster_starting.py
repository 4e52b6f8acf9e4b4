"""The order in which nodes start. That real raylets get along is shown in tests/integration."""

import sys
from pathlib import Path

import psutil
import pytest

from distributed_grid.cluster import NodeSpec, starting
from distributed_grid.cluster.starting import NodeStart, at_once, start_in_turn
from distributed_grid.errors import ClusterStartFailed


class Told:
    """What happened, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def note(self, what: str, node: "FakeStart") -> None:
        self.events.append(f"{what} {node.spec.name}")


class FakeStart:
    """Has its sockets after `sockets` looks, and is up after `up` looks; its first `failures` starts fail."""

    def __init__(self, spec: NodeSpec, reported: Told, *, sockets: int = 0, up: int = 2, failures: int = 0) -> None:
        self.spec = spec
        self._told = reported
        self._sockets = sockets
        self._up = up
        reported.note("loaded", self)
        self._fails = reported.events.count(f"loaded {spec.name}") <= failures

    def let_go(self) -> None:
        self._told.note("let go", self)

    def has_its_sockets(self) -> bool:
        self._sockets -= 1
        return self._sockets < 0

    def is_up(self) -> bool:
        if self._fails:
            raise ClusterStartFailed(f"Node {self.spec.name} did not start")
        self._up -= 1
        return self._up < 0

    def end(self) -> None:
        self._told.note("ended", self)


def node(name: str, *, is_head: bool = False) -> NodeSpec:
    return NodeSpec(name, 1, 0, 2**30, {}, is_head)


def played(
    monkeypatch: pytest.MonkeyPatch, reported: Told, *, load: float = 0.0, **behaviour: dict[str, int]
) -> list[str]:
    monkeypatch.setattr(starting, "POLL_S", 0.0)
    monkeypatch.setattr(starting.os, "getloadavg", lambda: (load, 0.0, 0.0))
    start_in_turn(
        [node("head", is_head=True), node("a"), node("b")],
        lambda spec: FakeStart(spec, reported, **behaviour.get(spec.name, {})),  # type: ignore[arg-type,return-value]
        begun=lambda _: None,
        up=lambda started: reported.note("up", started),  # type: ignore[arg-type]
        again=lambda spec, failed: reported.events.append(f"again {spec.name}"),
    )
    return reported.events


def test_each_is_loaded_while_the_one_before_starts_and_none_goes_before_the_head_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert played(monkeypatch, Told(), a={"up": 9}, b={"up": 0}) == [
        "loaded head",
        "let go head",
        "loaded a",
        "up head",
        "let go a",
        "loaded b",
        "let go b",
        "up a",
        "up b",
    ]


def test_a_node_whose_raylet_has_no_names_for_its_sockets_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    events = played(monkeypatch, Told(), a={"sockets": 10**6, "up": 5})

    assert events.index("up a") < events.index("let go b")


def test_a_node_that_goes_on_failing_is_reported_once_those_before_it_are_up(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = Told()

    with pytest.raises(ClusterStartFailed, match="Node b"):
        played(monkeypatch, reported, a={"up": 9}, b={"failures": 99})

    assert reported.events.count("again b") == 2
    assert reported.events.index("up a") < reported.events.index("ended b")


@pytest.mark.parametrize("failing", ["head", "a", "b"])
def test_a_node_whose_first_start_fails_is_ended_and_starts_again(
    monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    events = played(monkeypatch, Told(), **{failing: {"failures": 2}})

    assert sorted(event for event in events if event.startswith("up")) == ["up a", "up b", "up head"]
    assert events.count(f"ended {failing}") == events.count(f"again {failing}") == 2
    assert events.index("up head") < min(events.index("let go a"), events.index("let go b"))


def test_on_a_machine_with_a_high_load_one_node_starts_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    events = played(monkeypatch, Told(), load=10_000.0, a={"up": 9})

    assert events.index("up a") < events.index("let go b")


@pytest.mark.parametrize(
    ("cores", "load", "expected"), [(2, 0.0, 2), (2, 6.0, 2), (2, 20.0, 1), (1, 0.5, 2), (64, 20.0, 64)]
)
def test_the_machine_decides_how_many_nodes_start_at_once(cores: int, load: float, expected: int) -> None:
    assert at_once(cores=cores, load=load) == expected


def test_what_was_loaded_ends_with_the_process_that_should_have_let_it_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "WHEN_RELEASED", "import sys; sys.stdin.readline() and print('Ray runtime started')")
    forgotten = NodeStart(node("a"), [], tmp_path / "a.log", {"PATH": ""})
    process = psutil.Process(forgotten.pid)

    assert forgotten.process.stdin is not None
    forgotten.process.stdin.close()

    assert forgotten.process.wait(60) == 0
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    assert (tmp_path / "a.log").read_text() == ""


def test_one_that_is_let_go_and_comes_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "WHEN_RELEASED", "import sys; sys.stdin.readline(); print('Ray runtime started')")
    started = NodeStart(node("a"), [], tmp_path / "a.log", {"PATH": sys.prefix})

    started.let_go()

    assert started.process.wait(60) == 0
    assert started.is_up()
    assert not started.has_its_sockets()
