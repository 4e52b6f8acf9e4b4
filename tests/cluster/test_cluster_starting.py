"""The order in which nodes start. That real raylets get along is shown in tests/integration."""

import sys
from pathlib import Path

import psutil
import pytest

from distributed_grid.cluster import NodeSpec, starting
from distributed_grid.cluster.starting import NodeStart, start_in_turn
from distributed_grid.errors import ClusterStartFailed


class Told:
    """What happened, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def note(self, what: str, node: "FakeStart") -> None:
        self.events.append(f"{what} {node.spec.name}")


class FakeStart:
    """Has its sockets after `sockets` looks, and is up after `up` looks; it fails where `up` is None."""

    def __init__(self, spec: NodeSpec, told: Told, *, sockets: int = 0, up: int | None = 2) -> None:
        self.spec = spec
        self._told = told
        self._sockets = sockets
        self._up = up
        told.note("loaded", self)

    def let_go(self) -> None:
        self._told.note("let go", self)

    def has_its_sockets(self) -> bool:
        self._sockets -= 1
        return self._sockets < 0

    def is_up(self) -> bool:
        if self._up is None:
            raise ClusterStartFailed(f"Node {self.spec.name} did not start")
        self._up -= 1
        return self._up < 0


def node(name: str, *, is_head: bool = False) -> NodeSpec:
    return NodeSpec(name, 1, 0, 2**30, {}, is_head)


def played(monkeypatch: pytest.MonkeyPatch, told: Told, **behaviour: dict[str, int | None]) -> list[str]:
    monkeypatch.setattr(starting, "POLL_S", 0.0)
    start_in_turn(
        [node("head", is_head=True), node("a"), node("b")],
        lambda spec: FakeStart(spec, told, **behaviour.get(spec.name, {})),  # type: ignore[arg-type,return-value]
        begun=lambda _: None,
        up=lambda started: told.note("up", started),  # type: ignore[arg-type]
    )
    return told.events


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


def test_a_node_that_fails_is_told_once_those_before_it_are_up(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()

    with pytest.raises(ClusterStartFailed, match="Node b"):
        played(monkeypatch, told, a={"up": 9}, b={"up": None})

    assert told.events[-1] == "up a"


def test_what_was_loaded_ends_with_whoever_should_have_let_it_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "_WHEN_TOLD", "import sys; sys.stdin.readline() and print('Ray runtime started')")
    forgotten = NodeStart(node("a"), [], tmp_path / "a.log", {"PATH": ""})
    process = psutil.Process(forgotten.pid)

    assert forgotten._process.stdin is not None
    forgotten._process.stdin.close()

    assert forgotten._process.wait(60) == 0
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    assert (tmp_path / "a.log").read_text() == ""


def test_one_that_is_let_go_and_comes_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "_WHEN_TOLD", "import sys; sys.stdin.readline(); print('Ray runtime started')")
    started = NodeStart(node("a"), [], tmp_path / "a.log", {"PATH": sys.prefix})

    started.let_go()

    assert started._process.wait(60) == 0
    assert started.is_up()
    assert not started.has_its_sockets()
