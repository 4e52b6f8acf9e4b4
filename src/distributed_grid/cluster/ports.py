"""The address and the ports of an embedded cluster.

A port for Ray must still be free when Ray binds it, seconds after it was picked. So grid picks ports that nothing else
takes by itself: outside Ray's worker ports and outside the range from which the kernel assigns ports.
"""

import random
import socket
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from distributed_grid.errors import ClusterStartFailed

RAY_WORKER_PORTS: Final = range(10002, 20000)

_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_EPHEMERAL: Final = range(32768, 61000)
_ABOVE_RAY: Final = range(RAY_WORKER_PORTS.stop, 65536)
_BELOW_RAY: Final = range(2048, RAY_WORKER_PORTS.start)
_ENOUGH: Final = 1000


def ephemeral_ports() -> range:
    """The ports that the kernel assigns to connections and to servers that ask for any port."""
    try:
        low, high = _EPHEMERAL.read_text().split()
        return range(int(low), int(high) + 1)
    except (OSError, ValueError):
        return _USUAL_EPHEMERAL


def allowed_ports(ephemeral: range) -> list[int]:
    """The ports to pick from: below the ephemeral ports, or elsewhere if those leave too little room there.

    Never one of Ray's worker ports. Ephemeral ports only if they cover everything, as on some hosts.
    """
    below = [port for port in _ABOVE_RAY if port < ephemeral.start]
    if len(below) >= _ENOUGH:
        return below
    elsewhere = [port for part in (_ABOVE_RAY, _BELOW_RAY) for port in part if port not in ephemeral]
    return elsewhere if len(elsewhere) >= _ENOUGH else list(_ABOVE_RAY)


class LockedPorts:
    """Free ports, locked against every other grid on this host until the `with` block ends.

    Binding shows that a port is free now. The lock keeps a second cluster, started at the same time, from picking the
    same port until Ray has bound it.
    """

    def __init__(self, allowed: Iterable[int] | None = None) -> None:
        self._candidates = list(allowed_ports(ephemeral_ports()) if allowed is None else allowed)
        random.shuffle(self._candidates)
        self._locks: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lock in self._locks:
            lock.close()
        self._locks.clear()

    def take(self) -> int:
        """A port that is free, and that no other `LockedPorts` gives out meanwhile."""
        while self._candidates:
            port = self._candidates.pop()
            if self._lock(port) and is_free(port):
                return port
        raise ClusterStartFailed("No free port is left for Ray on this host")

    def _lock(self, port: int) -> bool:
        # An abstract socket is the lightest lock there is: it has the scope of the port (the network namespace, all
        # users), and it goes with the process. Systems other than Linux have to rely on chance.
        if sys.platform != "linux":
            return True
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0distributed-grid-port-{port}")
        except OSError:
            lock.close()
            return False
        self._locks.append(lock)
        return True


def is_free(port: int) -> bool:
    """True if no process on this host uses the port, on any address."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def address_facing(host: str) -> str | None:
    """The address of this host from which packets to that one would come; None if there is no route to it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 53))
            return str(probe.getsockname()[0])
        except OSError:
            return None


def own_address(*, facing: str | None = None, route_to: Callable[[str], str | None] = address_facing) -> str:
    """This host's address as Ray finds it: the one that faces the outside, or the one that faces `facing`.

    `route_to`: this host's address on the way to another host.

    Nothing is sent. Ray never keeps 127.0.0.1 if there is another address, so a cluster at 127.0.0.1 would report a
    different one.
    """
    if facing is not None and (found := route_to(facing)) is not None and not found.startswith("127."):
        return found
    if (found := route_to("8.8.8.8")) is not None:
        return found
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
