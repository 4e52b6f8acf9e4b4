"""A Ray of the run's own: its head here, without any capacity, and a raylet inside the lease."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from distributed_grid.client import GridClient
from distributed_grid.cluster.ports import ClaimedPorts, own_address
from distributed_grid.errors import ClusterStartFailed, GridError
from distributed_grid.execution.on_node_raylet import OwnRay
from distributed_grid.execution.ray_start import LOOPBACK, LOOPBACK_HOST

_STANDS_STILL_S: Final = 60.0
"""A head that gets on may take as long as it needs on a busy machine."""


class PrivateCluster:
    """Starts with the object, and is gone after `end`, or when this process is."""

    def __init__(self, client: GridClient, boost: Mapping[str, Any]) -> None:
        self._client, self._boost_id = client, boost["boost_id"]
        self._has_joined = False
        with ClaimedPorts() as ports:
            shared, port = client.ray_address(), ports.take()
            # A private head of a cluster on loopback stays there, too.
            on_loopback = shared.startswith(f"{LOOPBACK_HOST}:")
            host = LOOPBACK if on_loopback else own_address(facing=shared.rpartition(":")[0])
            self.address = f"{LOOPBACK_HOST if on_loopback else host}:{port}"
            # Said to all parts of it: else Ray decides for each by whether there is a token's file on its machine.
            self.auth_mode = str(client.cluster_status()["ray_auth_mode"])
            self._head = OwnRay(_head_arguments(host, port, ports.take()), {"RAY_AUTH_MODE": self.auth_mode})
            try:
                why = self._head.why_not_up(_STANDS_STILL_S)
                if why is not None:
                    raise ClusterStartFailed("The head of the private cluster did not start", because=[why])
                client.join_private_cluster(self._boost_id, self.address)
                self._has_joined = True
            except BaseException:
                self.end()
                raise

    def end(self) -> None:
        if self._has_joined:
            with suppress(GridError):  # then its raylet goes with the lease, or after its head
                self._client.leave_private_cluster(self._boost_id)
        with suppress(OSError):
            self._head.end()


def _head_arguments(host: str, port: int, client_port: int) -> list[str]:
    """Nothing can run on it: the lease is all that there is."""
    return [
        *("--head", "--port", str(port), "--node-ip-address", host),
        *("--include-dashboard", "false", "--ray-client-server-port", str(client_port)),
        *("--num-cpus", "0", "--num-gpus", "0", "--memory", "1"),
        *("--object-store-memory", "100000000"),
    ]
