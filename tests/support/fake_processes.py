"""The processes of a fake cluster's nodes, and runners that run nothing; for tests of what is done with them."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from distributed_grid.execution.processes import NodeSilent, ProcessControl, RunnerGone
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeId
from distributed_grid.model.offload import ProcessFacts


class FakeProcesses:
    """Everything that processes would be asked, answered from memory; `done` tells the order."""

    def __init__(self) -> None:
        self.running: dict[NodeId, list[ProcessFacts]] = {}
        self.environments: dict[int, dict[str, str]] = {}
        self.missing: dict[NodeId, set[str]] = {}
        """Files that a node does not have."""
        self.silent: set[NodeId] = set()
        self.runners: dict[str, dict[str, Any]] = {}
        self.busy: set[str] = set()
        """Runners that do not answer in time."""
        self.started: list[str] = []
        """Leases whose command was started: once each, or it runs twice."""
        self.given: dict[str, dict[str, str]] = {}
        self.done: list[str] = []
        self.before: Callable[[str], None] = lambda _: None
        """May raise, as whatever it is that goes wrong."""
        self.before_scan: Callable[[], object] = lambda: None
        self.written = "written"
        """What each runner's command has written."""
        self.stubborn = False
        self.ends_by_itself = False
        self.cannot_start = False
        self.lingers = False
        """Commands use their grace period."""

    @property
    def control(self) -> ProcessControl:
        return ProcessControl(_Processes(self), _Runners(self))

    def step(self, what: str) -> None:
        self.before(what)
        self.done.append(what)

    def add(self, node_id: NodeId, facts: ProcessFacts, **environment: str) -> ProcessFacts:
        self.running.setdefault(node_id, []).append(facts)
        self.environments[facts.pid] = environment
        return facts

    def ends(self, lease_id: str, exit_code: int) -> None:
        self.runners[lease_id] |= {"state": "ended", "exit_code": exit_code}


class _Processes:
    def __init__(self, fake: FakeProcesses) -> None:
        self._fake = fake

    def scan(self, nodes: Mapping[NodeId, bool]) -> dict[NodeId, dict[str, Any]]:
        self._fake.before_scan()
        return {node_id: self._told(node_id) for node_id in nodes if node_id not in self._fake.silent}

    def look_at(self, node_ids: list[NodeId], pid: int) -> dict[NodeId, dict[str, Any]]:
        answers = self.scan(dict.fromkeys(node_ids, True))
        return {
            node_id: told | {"processes": [one for one in told["processes"] if one["pid"] == pid]}
            for node_id, told in answers.items()
        }

    def find_on(self, node_ids: list[NodeId], paths: list[str]) -> dict[NodeId, dict[str, Any]]:
        files = {file.path: file for found in self._fake.running.values() for one in found for file in one.files}
        return {
            node_id: {
                "machine": f"machine of {node_id}",
                "uid": 1000,
                "user": "ana",
                "files": {
                    path: {
                        "path": path,
                        "is_folder": files[path].size == 0,
                        "size": files[path].size,
                        "inode": files[path].inode,
                        "is_network": files[path].is_network,
                        "may_write": True,
                        "may_execute": True,
                    }
                    for path in paths
                    if path not in self._fake.missing.get(node_id, ())
                },
            }
            for node_id in node_ids
            if node_id not in self._fake.silent
        }

    def environment(self, node_id: NodeId, pid: int, created_at: float, names: list[str]) -> Any:
        self._fake.step("environment")
        return {name: self._fake.environments[pid][name] for name in names}

    def stop(self, node_id: NodeId, pid: int, created_at: float, grace_s: float) -> dict[str, Any]:
        fake = self._fake
        fake.step("stop")
        if node_id in fake.silent:
            raise NodeSilent(node_id)
        was_there = not fake.ends_by_itself
        if not fake.stubborn:
            fake.running[node_id] = [one for one in fake.running[node_id] if one.pid != pid]
        return {"was_there": was_there, "ended": not fake.stubborn, "killed": 0}

    def read_log(self, node_id: NodeId, path: str, output_from: int, begin: int) -> dict[str, Any]:
        return {"text": "left", "next": begin + 4, "more": False}

    def _told(self, node_id: NodeId) -> dict[str, Any]:
        return {
            "machine": f"machine of {node_id}",
            "processes": [_dict(one) for one in self._fake.running.get(node_id, ())],
        }


class _Runners:
    def __init__(self, fake: FakeProcesses) -> None:
        self._fake = fake

    def create(self, lease: Lease, record: Mapping[str, Any]) -> None:
        self._fake.step("create")
        plain = {"why": None, "pid": None, "exit_code": None, "output": "/log", "output_from": 0}
        self._fake.runners[lease.id] = {"state": "prepared", **plain, **record}

    def prepare(self, lease_id: str, order: Mapping[str, Any], copied: Any, given: Mapping[str, str]) -> dict[str, Any]:
        self._fake.step("prepare")
        self._fake.given[lease_id] = {**copied, **given}
        return self._said(lease_id)

    def note(self, lease_id: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        self._said(lease_id).update(changes)
        return self._said(lease_id)

    def go(self, lease_id: str) -> dict[str, Any]:
        self._fake.step("go")
        said = self._said(lease_id)
        if self._fake.cannot_start:
            said |= {"state": "failed", "why": "no such program"}
        elif said["state"] == "prepared":
            self._fake.started.append(lease_id)
            said |= {"state": "running", "pid": 99}
        return said

    def about(self, lease_id: str) -> dict[str, Any] | None:
        return None if lease_id in self._fake.busy else self._said(lease_id)

    def read(self, lease_id: str, begin: int) -> dict[str, Any]:
        self._said(lease_id)
        text = self._fake.written[begin:]
        return {"text": text, "next": begin + len(text), "more": False}

    def end(self, lease_id: str, grace_s: float, within_s: float) -> dict[str, Any]:
        self._fake.step("end")
        if not self._fake.lingers:
            self._said(lease_id).update({"state": "ended", "exit_code": -15})
        return self._said(lease_id)

    def remove(self, lease_id: str) -> None:
        self._fake.runners.pop(lease_id, None)

    def known(self) -> list[str]:
        return list(self._fake.runners)

    def _said(self, lease_id: str) -> dict[str, Any]:
        if lease_id not in self._fake.runners:
            raise RunnerGone(lease_id)
        return self._fake.runners[lease_id]


def _dict(facts: ProcessFacts) -> dict[str, Any]:
    """As a node would tell of it."""
    told = asdict(facts) | {"pids": list(facts.family)}
    for name in ("node", "machine", "family"):
        del told[name]
    return told
