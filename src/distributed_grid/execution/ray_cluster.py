"""The real cluster: all of `port.Cluster`, each part by the module that knows how."""

from collections.abc import Iterable, Mapping
from functools import cached_property

from distributed_grid.decide.monitoring.naming import Raylet
from distributed_grid.execution import group_work, private_raylet, processes, ray_rpc
from distributed_grid.execution.drain import LATCH, DrainGates
from distributed_grid.execution.groups import Groups
from distributed_grid.execution.port import Holder, Mechanism, NodeView, WorkerFacts
from distributed_grid.execution.ray_gateway import RayGateway
from distributed_grid.execution.role_records import RayKeyValueStore, RoleRecords
from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.nodes import NodeId
from distributed_grid.model.roles.runs import RunId
from distributed_grid.model.work import Driver, Work


class RayCluster(RayGateway):
    """The cluster that this process is connected to with `ray.init`, or as one of its workers."""

    def __init__(self, gcs_address: str) -> None:
        super().__init__(gcs_address)
        self._gates = DrainGates(self)
        self.mechanisms: Mapping[Delivery, Mechanism] = {Delivery.RESERVE: Groups(gcs_address, self)}

    def reported_by(self, raylet: Raylet) -> NodeView | None:
        return ray_rpc.reported_by(raylet)

    def work_of_job(self, job_id: str, group_id: str) -> Work:
        return group_work.work_of_job(self.gcs_address, job_id, group_id)

    def drivers(self, since: float) -> tuple[Driver, ...]:
        return group_work.drivers(self.gcs_address, since)

    def cpus_in_use(self, raylet: Raylet, group_id: str) -> float:
        return group_work.cpus_in_use(ray_rpc.reported_by(raylet), group_id)

    def join_private_cluster(self, lease: Lease, head_address: str) -> None:
        private_raylet.join(lease, head_address)

    def leave_private_cluster(self, lease: Lease) -> None:
        private_raylet.leave(lease)

    def drain_private_cluster(self, lease: Lease, left_s: float, why: str) -> bool:
        return private_raylet.drain(lease, left_s, why)

    def holders_of(self, raylet: Raylet, kind: str) -> tuple[Holder, ...]:
        return ray_rpc.holders_of(raylet, kind, self.gcs_address)

    def kill(self, node_id: NodeId, victims: tuple[Holder, ...]) -> int:
        return len(processes.kill_workers(node_id, [victim.pid for victim in victims]))

    def gate(self, node_id: NodeId, cpus: float) -> None:
        self._gates.hold(node_id, cpus)

    def lift_gate(self, node_id: NodeId) -> None:
        self._gates.lift(node_id)

    def dead_processes(self, worker_ids: Iterable[str]) -> frozenset[str]:
        return self._kv.dead_workers(worker_ids)

    def lost_runs(self) -> frozenset[RunId]:
        return self._role_records.lost()

    def remove_groups_of_run(self, run: RunId) -> int:
        return self._role_records.remove_groups(run)

    @cached_property
    def _role_records(self) -> RoleRecords:
        return RoleRecords.at(self.gcs_address)

    @cached_property
    def _kv(self) -> RayKeyValueStore:
        return RayKeyValueStore(self.gcs_address, "grid")

    def clear_gates(self) -> None:
        left = [node_id for node_id, totals in self.totals().items() if LATCH in totals]
        self._gates.clear(left)

    def facts_of(self, node_ids: Iterable[NodeId], timeout_s: float) -> dict[NodeId, WorkerFacts]:
        return processes.facts_of(node_ids, timeout_s)
