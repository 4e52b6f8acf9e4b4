"""Process control on nodes: lists and ends processes there with small tasks that take none of the node's capacity.

The protocols are at the top; tests may bring other implementations. Calls block: none is made from an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from distributed_grid.decide.offload.recommend import HEAVY_CPU, HEAVY_MEMORY
from distributed_grid.execution.on_node_processes.ending import Ended, stop
from distributed_grid.execution.on_node_processes.looking import (
    NodeFiles,
    NodeProcesses,
    environment,
    find_here,
    look_at,
    scan,
)
from distributed_grid.execution.on_node_runner import RunnerOrder, RunnerRecord, RunnerSaid
from distributed_grid.execution.packing import on_node, on_node_runner
from distributed_grid.execution.port import WorkerFacts
from distributed_grid.model.codec import PLAIN
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeId
from distributed_grid.model.offload import (
    Elsewhere,
    ProcessFacts,
)

if TYPE_CHECKING:
    from distributed_grid.wire.offload import LogPiece


class NodeSilent(Exception):
    """A node is gone or did not answer: whether it did what it was asked is unknown."""


class RunnerGone(Exception):
    """The actor that ran a command is gone, and so is the command."""


class Processes(Protocol):
    """Looks at processes where they run, and ends them. Nodes that do not answer in time are left out."""

    def scan(self, nodes: Mapping[NodeId, bool]) -> dict[NodeId, NodeProcesses]:
        """The heavy processes of each node; True: also those that run on the machine outside Ray."""

    def look_at(self, node_ids: list[NodeId], pid: int) -> dict[NodeId, NodeProcesses]: ...
    def find_on(self, node_ids: list[NodeId], paths: list[str]) -> dict[NodeId, NodeFiles]: ...

    def environment(self, node_id: NodeId, pid: int, created_at: float, names: list[str]) -> Any:
        """A reference to these values, available once they are read; for `Runners.prepare`. Raises `NodeSilent`."""

    def stop(self, node_id: NodeId, pid: int, created_at: float, grace_s: float) -> Ended:
        """End a process. Raises `NodeSilent`."""

    def read_log(self, node_id: NodeId, path: str, output_from: int, begin: int) -> LogPiece: ...


class Runners(Protocol):
    """The actors in which commands run, each in the lease that has its id.

    All methods raise `RunnerGone`, and `TimeoutError` if the actor exists but does not answer.
    """

    def create(self, lease: Lease, record: RunnerRecord) -> None: ...
    def prepare(self, lease_id: str, order: RunnerOrder, copied: Any, given: Mapping[str, str]) -> RunnerSaid: ...
    def note(self, lease_id: str, changes: RunnerRecord) -> RunnerSaid:
        """Add to its record."""

    def go(self, lease_id: str) -> RunnerSaid: ...
    def about(self, lease_id: str) -> RunnerSaid | None:
        """Its state; None instead of a `TimeoutError`."""

    def read(self, lease_id: str, begin: int) -> LogPiece: ...
    def end(self, lease_id: str, grace_s: float, within_s: float) -> RunnerSaid: ...
    def remove(self, lease_id: str) -> None: ...
    def known(self) -> list[str]:
        """The leases of all runners in the cluster, whichever process started them."""


@dataclass(frozen=True, slots=True)
class ProcessControl:
    processes: Processes
    runners: Runners


T = TypeVar("T")


def on(node_id: NodeId, function: Callable[..., T], *args: Any) -> ray.ObjectRef[T]:
    """Run a function of `on_node` on one node; the reference to its result."""
    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=strategy)(function)
    reference: ray.ObjectRef[T] = task.remote(*args)
    return reference


def facts_of(node_ids: Iterable[NodeId], timeout_s: float) -> dict[NodeId, WorkerFacts]:
    """The facts of every node that answers in time."""
    references = {on(node_id, on_node.facts): node_id for node_id in node_ids}
    done, _ = ray.wait(list(references), num_returns=len(references), timeout=timeout_s) if references else ([], [])
    found: dict[NodeId, WorkerFacts] = {}
    for reference in done:
        try:
            found[references[reference]] = ray.get(reference)
        except ray.exceptions.RayError:
            continue  # the node died meanwhile; it has no facts
    return found


def kill_workers(node_id: NodeId, pids: list[int], timeout_s: float = 10.0) -> list[int]:
    """End Ray workers on a node; return those that still existed."""
    try:
        killed: list[int] = ray.get(on(node_id, on_node.kill_workers, pids), timeout=timeout_s)
    except ray.exceptions.RayError:
        return []
    return killed


_LOOK_S: Final = 20.0
_KILL_S: Final = 20.0


class RayProcesses:
    """The processes of the cluster that this process is connected to."""

    def __init__(self, on: Callable[..., Any] = on) -> None:
        """`on`: runs a function on a node, and returns the reference to its result."""
        self._on = on

    def scan(self, nodes: Mapping[NodeId, bool]) -> dict[NodeId, NodeProcesses]:
        return _answers({node: self._on(node, scan, whole, HEAVY_CPU, HEAVY_MEMORY) for node, whole in nodes.items()})

    def look_at(self, node_ids: list[NodeId], pid: int) -> dict[NodeId, NodeProcesses]:
        return _answers({node_id: self._on(node_id, look_at, pid) for node_id in node_ids})

    def find_on(self, node_ids: list[NodeId], paths: list[str]) -> dict[NodeId, NodeFiles]:
        return _answers({node_id: self._on(node_id, find_here, paths) for node_id in node_ids})

    def environment(self, node_id: NodeId, pid: int, created_at: float, names: list[str]) -> Any:
        reference = self._on(node_id, environment, pid, created_at, names)
        if not ray.wait([reference], timeout=_LOOK_S)[0]:
            raise NodeSilent(node_id)
        return reference

    def stop(self, node_id: NodeId, pid: int, created_at: float, grace_s: float) -> Ended:
        try:
            done: Ended = ray.get(self._on(node_id, stop, pid, created_at, grace_s), timeout=grace_s + _KILL_S)
        except ray.exceptions.RayError as error:
            raise NodeSilent(node_id) from error
        return done

    def read_log(self, node_id: NodeId, path: str, output_from: int, begin: int) -> LogPiece:
        reference = self._on(node_id, on_node_runner.read_piece, path, output_from, begin)
        answers: dict[NodeId, LogPiece] = _answers({node_id: reference})
        if node_id not in answers:
            raise NodeSilent(node_id)
        return answers[node_id]


def _answers(references: Mapping[NodeId, Any]) -> dict[NodeId, Any]:
    """The answers of all nodes that answer in time; a node that died meanwhile has none."""
    by_reference = {reference: node_id for node_id, reference in references.items()}
    done = ray.wait([*by_reference], num_returns=len(references), timeout=_LOOK_S)[0] if references else []
    found = {}
    for reference in done:
        try:
            found[by_reference[reference]] = ray.get(reference)
        except ray.exceptions.RayError:
            continue
    return found


def facts_from(node: str, answer: NodeProcesses) -> list[ProcessFacts]:
    """The answer of `scan` or `look_at`, as data."""
    place = {"node": node, "machine": answer["machine"]}
    return [PLAIN.decode(ProcessFacts, {**one, **place, "family": one["pids"]}) for one in answer["processes"]]


def elsewhere_from(node: str, answer: NodeFiles) -> Elsewhere:
    """The answer of `find_on`, as data."""
    return PLAIN.decode(Elsewhere, {**answer, "node": node})


def paths_of(processes: Iterable[ProcessFacts]) -> list[str]:
    return sorted({file.path for facts in processes for file in facts.files})
