"""Where the head of a private cluster is: its raylet, perhaps on another machine, has to reach it."""

from typing import Any

import pytest

from distributed_grid.execution.ray_start import LOOPBACK, LOOPBACK_HOST
from distributed_grid.run import wrapper


class SharedCluster:
    """The client of a cluster whose head is at this address."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.joined: list[str] = []

    def ray_address(self) -> str:
        return self._address

    def cluster_status(self) -> dict[str, str]:
        return {"ray_auth_mode": "token"}

    def join_private_cluster(self, boost_id: str, head_address: str) -> None:
        self.joined.append(head_address)

    def leave_private_cluster(self, boost_id: str) -> None:
        self.joined.clear()


class Head:
    """Keeps what Ray would be started with."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self.said = dict(zip(arguments[1::2], arguments[2::2], strict=True)) | environment

    def why_not_up(self, stands_still_s: float) -> None:
        pass

    def end(self) -> None:
        pass


@pytest.mark.parametrize(
    ("shared", "head", "told"),
    [("10.1.0.1:6379", "10.1.0.7", "10.1.0.7"), (f"{LOOPBACK_HOST}:6379", LOOPBACK, LOOPBACK_HOST)],
)
def test_the_head_is_where_the_shared_cluster_has_this_machine(
    monkeypatch: pytest.MonkeyPatch, shared: str, head: str, told: str
) -> None:
    """This machine has other addresses, too, which the lender may not reach."""
    started: list[Head] = []

    def start(*how: Any) -> Head:
        started.append(Head(*how))
        return started[0]

    def own_address(*, facing: str | None = None) -> str:
        return {"10.1.0.1": "10.1.0.7"}.get(facing or "", "192.0.2.7")

    monkeypatch.setattr(wrapper, "OwnRay", start)
    monkeypatch.setattr(wrapper, "own_address", own_address)
    client: Any = SharedCluster(shared)
    boost: Any = {"boost_id": "b1"}

    private = wrapper.PrivateCluster(client, boost)

    (one,) = started
    assert (one.said["--node-ip-address"], one.said["RAY_AUTH_MODE"]) == (head, "token")
    assert private.address == f"{told}:{one.said['--port']}"
    assert client.joined == [private.address]
    private.end()
    assert client.joined == []
