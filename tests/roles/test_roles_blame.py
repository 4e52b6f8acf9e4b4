"""Who is told to have failed, where one that did not start makes others fail as well."""

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle

from distributed_grid.errors import MemberFailed
from distributed_grid.roles.calls.endpoints import Endpoint
from distributed_grid.roles.on_node.actor import Host, role_method
from distributed_grid.roles.supervision.launching import Launching
from distributed_grid.roles.supervision.managed import Fault


class Fine:
    def step(self) -> str:
        return "done"


class Broken:
    def __init__(self) -> None:
        raise OSError("no disk")


def host(*classes: type, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A process with the roles `a`, `b`, ... of these classes."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
    ports: Future[tuple[str, list[int]]] = Future()
    ports.set_result(("here", [1]))
    roles = "abc"[: len(classes)]
    place = {
        "ranks": {},
        "port": 0,
        "namespace": "n",
        "roles": tuple(roles),
        "index": 2,
        "node": "n1",
        "run": "r",
        "folders": ([], []),
    }
    packed = [cloudpickle.dumps((cloudpickle.dumps((cls, None)), b"", "")) for cls in classes]
    return Host(place, [SimpleNamespace(future=lambda: ports)], {}, *packed)


@pytest.mark.parametrize("kind", ["function", "coroutine", "threaded", "generator", "async_generator"])
def test_a_caller_of_a_member_that_did_not_start_learns_that(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there = host(Fine, Broken, Fine, monkeypatch=monkeypatch)

    def called(role: str) -> Any:
        found = role_method(role, "step", kind)(there)
        if kind == "generator":
            return next(found)
        return asyncio.run(anext(found) if kind == "async_generator" else found) if kind != "function" else found

    with pytest.raises(RuntimeError, match="b 2 did not start: OSError: no disk"):
        called("b")
    with pytest.raises(RuntimeError, match="c 2 did not start: b, in the same process, did not: OSError: no disk"):
        called("c")
    assert role_method("a", "step", "function")(there) == "done"


def fault(of: str, why: str, **others: Any) -> Fault:
    spec = SimpleNamespace(index=0, node="n1")
    endpoints = (Endpoint(of, 0, node="n1"),)
    process: Any = SimpleNamespace(key=(of,), title=f"{of} 0", endpoints=endpoints, spec=spec, handle=None)
    return Fault(process, why, **others)


def launched(*looks: list[Fault]) -> MemberFailed:
    """What a launch raises that finds these faults, one look after the other."""
    left = list(looks)
    process_set = SimpleNamespace(coming=[1], by_name={}, look=lambda within_s: left.pop(0) if left else [])
    parts: Any = SimpleNamespace(process_set=process_set, late=list)
    with pytest.raises(MemberFailed) as caught:
        Launching(parts, lambda _: None).await_up()
    return caught.value


IN_VAIN = fault("worker", "pool 0 did not start: OSError: no disk", what="failed in on_peers()")
TO_BLAME = fault("pool", "OSError: no disk", role="pool", what="did not start")


@pytest.mark.parametrize("looks", [[[IN_VAIN, TO_BLAME]], [[IN_VAIN], [TO_BLAME]]])
def test_the_one_whose_own_constructor_failed_is_reported_first(looks: list[list[Fault]]) -> None:
    error = launched(*looks)

    assert error.message == "pool 0 on n1 did not start: OSError: no disk"
    assert "worker 0" in error.because[-1]


def test_where_no_other_failed_it_is_its_own_fault() -> None:
    assert launched([IN_VAIN]).role == "worker"
