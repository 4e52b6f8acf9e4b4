"""The processes of the cluster's nodes, looked at and ended by small errands there."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import ray

from distributed_grid.decide.offloading.worth import HEAVY_CPU, HEAVY_MEMORY
from distributed_grid.execution.by_value import on_node_runner
from distributed_grid.execution.errands import on
from distributed_grid.execution.on_node_processes.ending import stop
from distributed_grid.execution.on_node_processes.looking import environment, find_here, look_at, scan
from distributed_grid.execution.process_port import NodeSilent
from distributed_grid.model.nodes import NodeId
from distributed_grid.model.offloading import (
    Ancestor,
    Elsewhere,
    FileFacts,
    FileRole,
    FileThere,
    ProcessFacts,
    Stream,
    StreamKind,
)

_LOOK_S: Final = 20.0
_KILL_S: Final = 20.0


class RayProcesses:
    """Of the cluster that this process is connected to."""

    def __init__(self, on: Callable[..., Any] = on) -> None:
        """`on`: runs a function on a node, and gives the reference to its result."""
        self._on = on

    def scan(self, nodes: Mapping[NodeId, bool]) -> dict[NodeId, dict[str, Any]]:
        return _answers({node: self._on(node, scan, whole, HEAVY_CPU, HEAVY_MEMORY) for node, whole in nodes.items()})

    def look_at(self, node_ids: list[NodeId], pid: int) -> dict[NodeId, dict[str, Any]]:
        return _answers({node_id: self._on(node_id, look_at, pid) for node_id in node_ids})

    def find_on(self, node_ids: list[NodeId], paths: list[str]) -> dict[NodeId, dict[str, Any]]:
        return _answers({node_id: self._on(node_id, find_here, paths) for node_id in node_ids})

    def environment(self, node_id: NodeId, pid: int, created_at: float, names: list[str]) -> Any:
        reference = self._on(node_id, environment, pid, created_at, names)
        if not ray.wait([reference], timeout=_LOOK_S)[0]:
            raise NodeSilent(node_id)
        return reference

    def stop(self, node_id: NodeId, pid: int, created_at: float, grace_s: float) -> dict[str, Any]:
        try:
            done: dict[str, Any] = ray.get(self._on(node_id, stop, pid, created_at, grace_s), timeout=grace_s + _KILL_S)
        except ray.exceptions.RayError as error:
            raise NodeSilent(node_id) from error
        return done

    def read_log(self, node_id: NodeId, path: str, output_from: int, begin: int) -> dict[str, Any]:
        answers = _answers({node_id: self._on(node_id, on_node_runner.read_piece, path, output_from, begin)})
        if node_id not in answers:
            raise NodeSilent(node_id)
        return answers[node_id]


def _answers(asked: Mapping[NodeId, Any]) -> dict[NodeId, dict[str, Any]]:
    """Of all who answer in time; one that died meanwhile does not."""
    by_reference = {reference: node_id for node_id, reference in asked.items()}
    done = ray.wait([*by_reference], num_returns=len(asked), timeout=_LOOK_S)[0] if asked else []
    found = {}
    for reference in done:
        try:
            found[by_reference[reference]] = ray.get(reference)
        except ray.exceptions.RayError:
            continue
    return found


def facts_from(node: str, answer: Mapping[str, Any]) -> list[ProcessFacts]:
    """What `scan` and `look_at` tell, as data."""
    return [_facts(node, answer["machine"], told) for told in answer["processes"]]


def _facts(node: str, machine: str, told: Mapping[str, Any]) -> ProcessFacts:
    plain = {
        key: told[key] for key in told.keys() - {"command", "streams", "files", "ancestors", "pids", "environment"}
    }
    standard = [Stream(StreamKind(one["kind"]), one["path"]) for one in told["streams"]]
    return ProcessFacts(
        node=node,
        machine=machine,
        command=tuple(told["command"]),
        streams=(standard[0], standard[1], standard[2]),
        files=tuple(FileFacts(**one | {"role": FileRole(one["role"])}) for one in told["files"]),
        ancestors=tuple(Ancestor(**one | {"command": tuple(one["command"])}) for one in told["ancestors"]),
        family=tuple(told["pids"]),
        environment=tuple(told["environment"]),
        **plain,
    )


def elsewhere_from(node: str, answer: Mapping[str, Any]) -> Elsewhere:
    """What `find_on` tells, as data."""
    files = {
        path: FileThere(**{key: found[key] for key in found.keys() - {"path"}})
        for path, found in answer["files"].items()
    }
    return Elsewhere(node, answer["machine"], answer["user"], answer["uid"], files)


def paths_of(processes: Iterable[ProcessFacts]) -> list[str]:
    return sorted({file.path for facts in processes for file in facts.files})
