"""Records of runs of roles, and commands to them: JSON in Ray's key-value store.

Only the process that owns a run writes its record. Other processes leave commands, which the owner takes. Every command
has its own key, so none is lost when two are written at once.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc
import ray._raylet
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc
from ray.core.generated.gcs_pb2 import GcsNodeInfo, PlacementGroupTableData

from distributed_grid.errors import InvalidRequest, Unavailable
from distributed_grid.model.roles import checks
from distributed_grid.model.roles.runs import Command, Record, RunId, is_over, merged, run_id

if TYPE_CHECKING:
    from distributed_grid.wire.roles import RunHeader

_ANSWER_S: Final = 5.0


class RayKeyValueStore:
    """The `KeyValueStore` of a Ray cluster. Works in drivers, in workers, and in processes that only know its address.

    Raises `Unavailable` if the cluster does not answer in time.
    """

    def __init__(self, gcs_address: str, namespace: str, *, gcs: Any = None, workers: Any = None) -> None:
        """`gcs`, `workers`: Ray's clients of the control service and of its part for workers, if they exist already."""
        self._gcs: Any = gcs or ray._raylet.GcsClient(address=gcs_address)
        self._namespace = namespace.encode()
        channel = init_grpc_channel(gcs_address)
        self._workers: Any = workers or gcs_service_pb2_grpc.WorkerInfoGcsServiceStub(channel)
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
        records = {one: self._worker(one) for one in set(worker_ids)}
        if not any(one.is_alive for one in records.values()):
            return frozenset(records)
        # When a node dies, Ray does not report that its processes died.
        nodes = _answer(self._gcs.get_all_node_info)
        alive = {node_id.binary() for node_id, node in nodes.items() if node.state == GcsNodeInfo.ALIVE}
        return frozenset(
            worker_id
            for worker_id, one in records.items()
            if not one.is_alive or one.worker_address.node_id not in alive
        )

    def _worker(self, worker_id: str) -> Any:
        """The record of a worker; for an unknown worker it is empty, which reads as not alive."""
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


NAMESPACE: Final = "grid-roles"
_RUN, _COMMAND, _HEIR = "run:", "command:", "heir:"
_GROUP: Final = "grid-roles-"


class KeyValueStore(Protocol):
    """Keys and values that all processes of a cluster share. Tests may bring another."""

    def put(self, key: str, value: bytes, *, replace: bool) -> bool:
        """Write a value; without `replace`, only if the key is free. True if the value is there now."""

    def get(self, key: str) -> bytes | None: ...
    def keys(self, prefix: str) -> list[str]: ...
    def remove(self, key: str) -> bool:
        """True if it was there."""

    def dead_workers(self, worker_ids: Iterable[str]) -> frozenset[str]:
        """Those of these processes (Ray's workers and drivers) that are gone or unknown."""

    def groups(self) -> Mapping[str, str]:
        """The placement groups that exist: names by id."""

    def remove_group(self, group_id: str) -> None: ...


class RoleRecords:
    """Reads and writes records and commands. All calls block briefly; none is made from an event loop."""

    def __init__(self, store: KeyValueStore) -> None:
        self._kv = store

    @classmethod
    def at(cls, gcs_address: str) -> RoleRecords:

        return cls(RayKeyValueStore(gcs_address, NAMESPACE))

    @classmethod
    def connected(cls) -> RoleRecords:
        """The records of the cluster that this process is connected to."""
        import ray

        return cls.at(ray.get_runtime_context().gcs_address)

    # -- records -------------------------------------------------------------------------------------------------

    def register(self, record: Record) -> Record | None:
        """Write the first record of a run and take its name; otherwise return the record of the run that has the name.

        The name of a run that has recorded its end is free again; a lost run has to be cleared away first. If two runs
        register such a name at once, only one gets it.
        """
        key, value = _key(_RUN, record["name"]), _packed(record)
        if self._kv.put(key, value, replace=False):
            self._sweep(_COMMAND, record["name"])  # commands that came too late for an earlier run
            return None
        there = self.read_record(record["name"])
        if there is None:  # it was removed just now
            return self.register(record)
        if not is_over(there):
            return there
        heir = f"{_key(_HEIR, record['name'])}/{'/'.join(run_id(there)[1:])}"
        if not self._kv.put(heir, b"", replace=False):
            now_there = self.read_record(record["name"])
            return now_there or there
        self._sweep(_COMMAND, record["name"])  # commands to the earlier run
        self._kv.put(key, value, replace=True)
        return None

    def write_record(self, record: Record) -> None:
        self._kv.put(_key(_RUN, record["name"]), _packed(record), replace=True)

    def read_record(self, name: str) -> Record | None:
        found = self._kv.get(_key(_RUN, name))
        return None if found is None else json.loads(found)

    def names(self) -> list[str]:
        return sorted(key.removeprefix(_RUN) for key in self._kv.keys(_RUN))

    def remove_record(self, name: str) -> bool:
        """Remove a record and the commands to its run; True if there was a record."""
        was_there = self._kv.remove(_key(_RUN, name))
        self._sweep(_COMMAND, name)
        self._sweep(_HEIR, name)
        return was_there

    def remove_same(self, record: RunHeader) -> bool:
        """Remove the record only while it still belongs to this run: another run may have the name by now."""
        return self._is_here(run_id(record)) and self.remove_record(record["name"])

    def remove_mine(self, name: str) -> bool:
        """Remove the record only if this very process wrote it."""
        import ray

        there, me = self.read_record(name), ray.get_runtime_context().get_worker_id()
        return there is not None and there["owner"]["worker_id"] == me and self.remove_record(name)

    def clear_away(self, record: RunHeader) -> bool:
        """Remove the record of a run that is over, and the placement groups it left; True if the record was there.

        Ray removes groups when their job ends, which is too late if the owner was an actor or a task of that job.
        """
        # Listed before the name is free, so that groups of the next run with this name are not among them.
        left = self._groups_of(record["name"])
        if not self.remove_same(record):
            return False
        for group_id in left:
            self._kv.remove_group(group_id)
        return True

    def lost(self) -> frozenset[RunId]:
        """The runs whose owner is gone without recording an end."""
        read = map(self.read_record, self.names())
        found = [record for record in read if record is not None and not is_over(record)]
        dead = self.with_dead_owners(found)
        return frozenset(run_id(record) for record in found if record["name"] in dead)

    def remove_groups(self, lost: RunId) -> int:
        """Remove the placement groups that a lost run left, and keep its record; the number of groups."""
        left = self._groups_of(lost.name)
        if not left or not self._is_here(lost):  # checked last, so that these are not groups of the name's next run
            return 0
        for group_id in left:
            self._kv.remove_group(group_id)
        return len(left)

    def has_groups(self, run: RunId) -> bool:
        return bool(self._groups_of(run.name))

    def _groups_of(self, name: str) -> list[str]:
        return [one for one, group in self._kv.groups().items() if group.rpartition("-")[0] == _GROUP + name]

    def _is_here(self, run: RunId) -> bool:
        """True if the run still has its name."""
        there = self.read_record(run.name)
        return there is not None and run_id(there) == run

    def owner_is_dead(self, record: Record) -> bool:
        return bool(self.with_dead_owners([record]))

    def with_dead_owners(self, records: Iterable[Record]) -> frozenset[str]:
        """The names of the runs whose owner process is gone."""
        owners = {record["name"]: str(record["owner"]["worker_id"]) for record in records}
        dead = self._kv.dead_workers(owners.values())
        return frozenset(name for name, worker_id in owners.items() if worker_id in dead)

    # -- commands --------------------------------------------------------------------------------------------------

    def send_command(self, name: str, *, counts: Mapping[str, int] | None = None, down: bool = False) -> None:
        """Ask the owner of a run for a change; it is added to earlier commands."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        pending_command = {"counts": dict(counts or {}), "down": down, "at": at}
        # Keys sort by time, so that of two counts for one role the later one holds.
        key = f"{_key(_COMMAND, name)}/{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"
        self._kv.put(key, _packed(pending_command), replace=True)

    def pending_command(self, name: str) -> Command | None:
        """The commands that the owner has not taken yet."""
        return merged([command for _, command in self._commands(name)])

    def take_command(self, name: str) -> Command | None:
        """For the owner: take all commands, merged into one."""
        found = self._commands(name)
        with suppress(Unavailable):  # a command that is not removed is read again, with the same effect
            for key, _ in found:
                self._kv.remove(key)
        return merged([command for _, command in found])

    def _commands(self, name: str) -> list[tuple[str, Command]]:
        keys = sorted(self._kv.keys(f"{_key(_COMMAND, name)}/"))
        found = [(key, self._kv.get(key)) for key in keys]
        return [(key, json.loads(value)) for key, value in found if value is not None]

    def _sweep(self, kind: str, name: str) -> None:
        for key in self._kv.keys(f"{_key(kind, name)}/"):
            self._kv.remove(key)


def new_group_name(run: str) -> str:
    """A name for a placement group of a run; Ray requires each to be unique."""
    return f"{_GROUP}{run}-{uuid.uuid4().hex[:8]}"


def checked_name(name: object) -> str:
    """The checked name of a run: it becomes part of keys and of actors' names."""
    try:
        return checks.name(name)
    except checks.Wrong as wrong:
        raise InvalidRequest("This is not a valid name of a run", because=[str(wrong)]) from None


def _key(kind: str, name: object) -> str:
    return kind + checked_name(name)


def _packed(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
