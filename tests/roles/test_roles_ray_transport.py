"""What Ray raises for a call, and what callers are told."""

import traceback
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RaySystemError, RayTaskError, TaskCancelledError

from distributed_grid.errors import CallTimedOut, GridError, MemberFailed, MemberLost
from distributed_grid.roles.calls.endpoints import Endpoint, EndpointRegistry
from distributed_grid.roles.calls.groups import CallOptions, RoleGroup
from distributed_grid.roles.calls.ray_transport import RayTransport


class TwoNeeded(Exception):
    """It cannot be made again of what it says."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}, since {why}\nand more")


class Stays(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("it does not travel")


def travelled(raised: Exception) -> Exception:
    """What `ray.get` raises where a method raised this, after its way here."""
    try:
        raise raised
    except Exception as error:  # noqa: BLE001
        sent = RayTaskError("teller.step", f"\x1b[36mray::teller.step()\x1b[39m\n{traceback.format_exc()}", error)
    found = RayError.from_bytes(sent.to_bytes())
    return found.as_instanceof_cause() if isinstance(found, RayTaskError) else found


def reported(raised: Exception, monkeypatch: pytest.MonkeyPatch) -> GridError:
    def get(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(GridError) as caught:
        RayTransport().outcome(object(), Endpoint("teller", 1, node="n1"), "step", 5.0)
    return caught.value


@pytest.mark.parametrize(
    "raised", [GetTimeoutError("40 s are over"), RayActorError(), ValueError("no"), GridError("x")]
)
def test_whatever_a_method_raises_is_its_failure_with_its_traceback(
    raised: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = reported(travelled(raised), monkeypatch)

    assert isinstance(error, MemberFailed)
    assert type(error.cause) is type(raised)
    assert "in travelled" in error.remote_traceback and "\x1b" not in error.remote_traceback


@pytest.mark.parametrize(
    ("raised", "said"),
    [(TwoNeeded("no", "so"), "TwoNeeded: no, since so"), (Stays("here"), "Stays: here")],
)
def test_what_cannot_travel_is_told_by_its_traceback(
    raised: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = reported(travelled(raised), monkeypatch)

    assert isinstance(error, MemberFailed) and error.cause is None
    assert error.message.startswith("teller 1 on n1 failed in step(): ") and error.message.endswith(said)
    assert "in travelled" in error.remote_traceback


@pytest.mark.parametrize(
    ("raised", "kind", "said"),
    [
        (GetTimeoutError(), CallTimedOut, "within 5 s"),
        (RayActorError(), MemberLost, "was lost during step()"),
        (ray.exceptions.LocalRayletDiedError(), MemberLost, "was lost during step()"),
        (TaskCancelledError(error_message="It was cancelled."), MemberFailed, "It was cancelled."),
        (RaySystemError(ImportError("no torch here")), MemberFailed, "no torch here"),
        (RayError(), MemberFailed, "RayError"),
    ],
)
def test_nothing_of_ray_escapes_as_it_is(
    raised: Exception, kind: type[GridError], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = reported(raised, monkeypatch)

    assert type(error) is kind and said in error.message


def test_a_value_may_be_missing_among_many_and_the_others_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(refs: Any, timeout: float | None = None) -> Any:
        if isinstance(refs, list):
            return [get(one) for one in refs]
        if refs % 2:
            raise travelled(TwoNeeded("no", "so"))
        return refs

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", lambda refs, **_: (refs[:1], refs[1:]))
    registry = EndpointRegistry("run")
    for rank in range(4):
        endpoint = Endpoint("teller", rank, methods=["step"])
        endpoint.connect(
            SimpleNamespace(**{"teller.step": SimpleNamespace(remote=lambda *given, rank=rank: (*given, rank)[0])})
        )
        registry.put(endpoint)
    group: RoleGroup[Any] = RoleGroup(registry, RayTransport(), "teller", CallOptions()).options(errors="values")

    for found in (group.call("step"), group.map("step", range(4))):
        assert found[::2] == [0, 2]
        assert [type(one) for one in found[1::2]] == [MemberFailed, MemberFailed]
