"""What Ray's control service says of processes, read: who is gone, even where it was not told."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from ray.core.generated import gcs_service_pb2
from ray.core.generated.gcs_pb2 import GcsNodeInfo

from distributed_grid.errors import Unavailable
from distributed_grid.execution.role_records import RayKeyValueStore

HERE, GONE = b"here", b"gone"
KNOWN = {b"\1": (True, HERE), b"\2": (False, HERE), b"\3": (True, GONE)}
"""Processes: what was last told of each, and its node."""


class NodeId(bytes):
    def binary(self) -> bytes:
        return bytes(self)


def known_worker(request: Any, timeout: float) -> Any:
    reply = gcs_service_pb2.GetWorkerInfoReply()
    if request.worker_id in KNOWN:
        reply.worker_table_data.is_alive, reply.worker_table_data.worker_address.node_id = KNOWN[request.worker_id]
    return reply


def store(worker_info: Callable[..., Any] = known_worker) -> RayKeyValueStore:
    nodes = {
        NodeId(HERE): SimpleNamespace(state=GcsNodeInfo.ALIVE),
        NodeId(GONE): SimpleNamespace(state=GcsNodeInfo.DEAD),
    }
    gcs = SimpleNamespace(get_all_node_info=lambda timeout: nodes)
    return RayKeyValueStore("127.0.0.1:1", "grid", gcs=gcs, workers=SimpleNamespace(GetWorkerInfo=worker_info))


def test_a_process_that_ended_whose_node_died_or_that_never_existed_is_dead() -> None:
    ray_store = store()
    assert ray_store.dead_workers(["01", "02", "03", "04"]) == {"02", "03", "04"}
    assert ray_store.dead_workers(["02", "04"]) == {"02", "04"}
    assert ray_store.dead_workers([]) == frozenset()


def test_silence_is_reported_as_such() -> None:
    def silent(*_: Any, **__: Any) -> Any:
        raise grpc.RpcError("no answer")

    with pytest.raises(Unavailable, match="does not answer"):
        store(silent).dead_workers(["01"])
