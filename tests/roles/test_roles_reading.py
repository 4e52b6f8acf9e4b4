"""Signals as they are read: numbers of methods, functions, queues, and a Prometheus server on loopback."""

from types import SimpleNamespace
from typing import Any

import pytest
from hook_server import HookServer

from distributed_grid.errors import GridError
from distributed_grid.model.roles.scaling import Scaling
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.roles.supervision.signals import SignalReader


def read(signal: Any, *, calls: tuple[tuple[int, int], ...] = (), answers: tuple[Any, ...] = ()) -> float:
    process_set = SimpleNamespace(
        of_roles=lambda _: [SimpleNamespace(running=running, queue=queue) for running, queue in calls]
    )
    group = SimpleNamespace(options=lambda **_: SimpleNamespace(call=lambda _: list(answers)))
    role = RoleSpec("worker", count=(1, 4), scaling=Scaling(signal, up_at=2, down_at=1))
    return SignalReader(SimpleNamespace(process_set=process_set), lambda _: group).read(role)  # type: ignore[arg-type]


def prometheus(kind: str, result: Any) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": kind, "result": result}}


def from_server(answer: Any, **more: Any) -> float:
    with HookServer(answer, **more) as server:
        return read({"prometheus": f"http://127.0.0.1:{server.port}", "query": "sum(queue)"})


def test_a_queue_is_the_mean_of_what_runs_and_waits_at_each_member() -> None:
    assert read("queue", calls=((1, 3), (0, 0))) == 2.0
    assert read("queue", calls=((1, 0), (1, 0))) == 1.0  # who is busy is not idle
    assert read("queue") == 0.0


def test_a_method_is_the_mean_of_what_its_role_answers() -> None:
    assert read({"role": "pool", "method": "fullness"}, answers=(0.25, 0.75)) == 0.5
    with pytest.raises(GridError, match="pool has no members"):
        read({"role": "pool", "method": "fullness"})


def test_a_function_is_called() -> None:
    assert read(lambda: 3) == 3.0


@pytest.mark.parametrize(
    "answer",
    [
        prometheus("vector", [{"metric": {}, "value": [1.0, "1.5"]}]),
        prometheus("scalar", [1.0, "1.5"]),
    ],
)
def test_prometheus_answers_with_one_number(answer: Any) -> None:
    assert from_server(answer) == 1.5


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (prometheus("vector", []), "0 series"),
        (prometheus("vector", [{"value": [1.0, "1"]}, {"value": [1.0, "2"]}]), "2 series"),
        (prometheus("matrix", [{"values": []}]), "a single number"),
        ({"status": "error", "error": "parse error"}, "parse error"),
        (b"<html>", "not answer as Prometheus does"),
        ([1], "not answer as Prometheus does"),
    ],
)
def test_what_is_not_one_number_says_why(answer: Any, why: str) -> None:
    with pytest.raises(GridError, match=why):
        from_server(answer)


def test_a_server_that_is_not_there_or_refuses_says_so_without_its_password() -> None:
    with pytest.raises(GridError, match="400"):
        from_server({"status": "error"}, status=400)
    with pytest.raises(GridError, match="cannot be reached") as caught:
        read({"prometheus": "http://me:secret@127.0.0.1:9", "query": "up"})
    assert "secret" not in str(caught.value)


def test_a_password_in_the_url_is_sent_as_one() -> None:
    with HookServer(prometheus("scalar", [1.0, "2"])) as server:
        value = read({"prometheus": f"http://me:s%2Fcret@127.0.0.1:{server.port}/prom/", "query": "a + b"})

    assert value == 2.0
    assert server.told == [("/prom/api/v1/query?query=a+%2B+b", "Basic bWU6cy9jcmV0")]
