import socket

import pytest

from distributed_grid.cluster.ports import (
    RAY_WORKER_PORTS,
    LockedPorts,
    allowed_ports,
    ephemeral_ports,
    is_free,
    own_address,
)
from distributed_grid.errors import ClusterStartFailed


@pytest.mark.parametrize(
    "ephemeral",
    [
        pytest.param(range(32768, 61000), id="usual"),
        pytest.param(range(15000, 61000), id="begins among the worker ports"),
        pytest.param(range(9000, 65536), id="all high ports"),
    ],
)
def test_ports_are_neither_rays_nor_the_kernels(ephemeral: range) -> None:
    allowed = allowed_ports(ephemeral)

    assert len(allowed) >= 1000
    assert not set(allowed) & set(RAY_WORKER_PORTS)
    assert not set(allowed) & set(ephemeral)


def test_the_ports_below_the_ephemeral_ones_come_first() -> None:
    assert set(allowed_ports(range(32768, 50000))) == set(range(20000, 32768))


def test_where_every_port_is_ephemeral_the_worker_ports_are_still_left_alone() -> None:
    allowed = allowed_ports(range(1024, 65536))

    assert allowed
    assert not set(allowed) & set(RAY_WORKER_PORTS)


def test_the_kernels_range_is_a_range_of_ports() -> None:
    assert 0 < ephemeral_ports().start < ephemeral_ports().stop <= 65536


def test_a_port_in_use_is_passed_over() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        used = server.getsockname()[1]

        assert not is_free(used)
        with LockedPorts([used]) as ports, pytest.raises(ClusterStartFailed, match="No free port"):
            ports.take()


def test_two_clusters_that_start_together_never_get_the_same_port() -> None:
    pool = allowed_ports(ephemeral_ports())[:40]
    with LockedPorts(pool) as one, LockedPorts(pool) as other:
        taken = [ports.take() for _ in range(10) for ports in (one, other)]

    assert len(set(taken)) == 20


def test_a_claim_ends_with_its_block() -> None:
    with LockedPorts() as ports:
        port = ports.take()
        with LockedPorts([port]) as other, pytest.raises(ClusterStartFailed):
            other.take()

    with LockedPorts([port]) as later:
        assert later.take() == port


def test_without_a_network_the_hosts_name_gives_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", unreachable)
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "10.1.2.3")
    assert own_address() == "10.1.2.3"

    monkeypatch.setattr(socket, "gethostbyname", unreachable)
    assert own_address() == "127.0.0.1"


@pytest.mark.parametrize(
    ("facing", "ways", "address"),
    [
        ("10.1.0.1", {"10.1.0.1": "10.1.0.7"}, "10.1.0.7"),  # the way to the cluster's other machines
        ("10.1.0.1", {"10.1.0.1": "10.1.0.7", "8.8.8.8": "192.0.2.7"}, "10.1.0.7"),
        ("127.0.0.1", {"127.0.0.1": "127.0.0.1", "8.8.8.8": "192.0.2.7"}, "192.0.2.7"),
        (None, {"8.8.8.8": "192.0.2.7"}, "192.0.2.7"),
        ("10.1.0.1", {}, "127.0.0.1"),  # and the host's name is not known either
    ],
)
def test_a_host_is_at_the_address_that_faces_the_hosts_that_are_to_reach_it(
    monkeypatch: pytest.MonkeyPatch, facing: str | None, ways: dict[str, str], address: str
) -> None:
    def unknown(_: str) -> str:
        raise OSError

    monkeypatch.setattr(socket, "gethostbyname", unknown)

    assert own_address(facing=facing, route_to=ways.get) == address
