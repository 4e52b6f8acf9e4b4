"""Ray's control service as runs of roles use it: keys and values, who lives, and placement groups by name."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import grpc
import ray._raylet
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc
from ray.core.generated.gcs_pb2 import GcsNodeInfo, PlacementGroupTableData

from distributed_grid.errors import Unavailable

_ANSWER_S: Final = 5.0


class RayShelf:
    """The `Shelf` of a Ray cluster. Works in drivers, in workers, and where only its address is known.

    Where it does not answer in time, `Unavailable` is raised.
    """

    def __init__(self, gcs_address: str, namespace: str) -> None:
        self._gcs: Any = ray._raylet.GcsClient(address=gcs_address)
        self._namespace = namespace.encode()
        channel = init_grpc_channel(gcs_address)
        self._workers = gcs_service_pb2_grpc.WorkerInfoGcsServiceStub(channel)
        self._groups = gcs_service_pb2_grpc.PlacementGroupInfoGcsServiceStub(channel)

    def put(self, key: str, value: bytes, *, replace: bool) -> bool:
        added = _answer(self._gcs.internal_kv_put, key.encode(), value, replace, self._namespace)
        return replace or bool(added)

    def get(self, key: str) -> bytes | None:
        found: bytes | None = _answer(self._gcs.internal_kv_get, key.encode(), self._namespace)
        return found

    def keys(self, prefix: str) -> list[str]:
        found: list[bytes] = _answer(self._gcs.internal_kv_keys, prefix.encode(), self._namespace)
        return [key.decode() for key in found]

    def remove(self, key: str) -> bool:
        return bool(_answer(self._gcs.internal_kv_del, key.encode(), False, self._namespace))

    def dead_workers(self, worker_ids: Iterable[str]) -> frozenset[str]:
        asked = {one: self._worker(one) for one in set(worker_ids)}
        if not any(one.is_alive for one in asked.values()):
            return frozenset(asked)
        # Of a node that died nobody has told that its processes did.
        nodes = _answer(self._gcs.get_all_node_info)
        alive = {node_id.binary() for node_id, node in nodes.items() if node.state == GcsNodeInfo.ALIVE}
        return frozenset(
            worker_id for worker_id, one in asked.items() if not one.is_alive or one.worker_address.node_id not in alive
        )

    def _worker(self, worker_id: str) -> Any:
        """Of one that nobody knows, nothing is said: it is not alive."""
        request = gcs_service_pb2.GetWorkerInfoRequest(worker_id=bytes.fromhex(worker_id))
        return _answer(self._workers.GetWorkerInfo, request).worker_table_data

    def groups(self) -> dict[str, str]:
        found = _answer(self._groups.GetAllPlacementGroup, gcs_service_pb2.GetAllPlacementGroupRequest())
        return {
            one.placement_group_id.hex(): one.name
            for one in found.placement_group_table_data
            if one.state != PlacementGroupTableData.REMOVED
        }

    def remove_group(self, group_id: str) -> None:
        request = gcs_service_pb2.RemovePlacementGroupRequest(placement_group_id=bytes.fromhex(group_id))
        _answer(self._groups.RemovePlacementGroup, request)


def _answer(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args, timeout=_ANSWER_S)
    except (ray.exceptions.RpcError, grpc.RpcError) as error:
        raise Unavailable("Ray's control service does not answer", because=[str(error)]) from error
