"""What grid does with processes on nodes. `processes.py` and `runner.py` are the real ones; tests may bring others.

Calls block; none is made from an event loop.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeId


class NodeSilent(Exception):
    """A node did not answer, or is gone: nobody knows whether what it was asked for is done."""


class RunnerGone(Exception):
    """The actor that ran a command is not there, and so the command is not."""


class Processes(Protocol):
    """Looking at processes where they run, and ending them. Nodes that do not answer in time are left out."""

    def scan(self, nodes: Mapping[NodeId, bool]) -> dict[NodeId, dict[str, Any]]:
        """The heavy ones; True: also what runs on the machine beside Ray."""

    def look_at(self, node_ids: list[NodeId], pid: int) -> dict[NodeId, dict[str, Any]]: ...
    def find_on(self, node_ids: list[NodeId], paths: list[str]) -> dict[NodeId, dict[str, Any]]: ...

    def environment(self, node_id: NodeId, pid: int, created_at: float, names: list[str]) -> Any:
        """A reference to these values, once they are read; for `Runners.prepare`. Raises `NodeSilent`."""

    def stop(self, node_id: NodeId, pid: int, created_at: float, grace_s: float) -> dict[str, Any]:
        """Raises `NodeSilent`."""

    def read_log(self, node_id: NodeId, path: str, output_from: int, begin: int) -> dict[str, Any]: ...


class Runners(Protocol):
    """The actors in which commands run, each in the lease that has its id. All raise `RunnerGone`, and `TimeoutError`
    where one is there and does not answer.
    """

    def create(self, lease: Lease, record: Mapping[str, Any]) -> None: ...
    def prepare(
        self, lease_id: str, order: Mapping[str, Any], copied: Any, given: Mapping[str, str]
    ) -> dict[str, Any]: ...
    def note(self, lease_id: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Put something into its record."""

    def go(self, lease_id: str) -> dict[str, Any]: ...
    def about(self, lease_id: str) -> dict[str, Any] | None:
        """None instead of a `TimeoutError`."""

    def read(self, lease_id: str, begin: int) -> dict[str, Any]: ...
    def end(self, lease_id: str, grace_s: float, within_s: float) -> dict[str, Any]: ...
    def remove(self, lease_id: str) -> None: ...
    def known(self) -> list[str]:
        """The leases of all runners in the cluster, whoever started them."""


@dataclass(frozen=True, slots=True)
class Hands:
    processes: Processes
    runners: Runners
