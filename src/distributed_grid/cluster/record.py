"""The record on disk of the embedded cluster of one home: enough to find all of it again."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from distributed_grid.errors import AlreadyRunning, StoreBroken
from distributed_grid.model.codec import PLAIN
from distributed_grid.store.durable import bytes_of, json_of, replace_durably
from distributed_grid.store.home import GridHome


@dataclass(frozen=True, slots=True)
class NodeProcess:
    """The `ray start` process of one node. The creation time tells it from a later process with its pid."""

    name: str
    pid: int
    create_time: float
    log: str


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """An embedded cluster; `nodes` are in the order in which they were started, the head first."""

    name: str
    ray_address: str
    started_at: str
    nodes: tuple[NodeProcess, ...] = ()
    config_digest: str | None = None

    @property
    def marker(self) -> str:
        """A text that no other cluster has, now or later; all its processes carry it in their environment."""
        return f"{self.ray_address}@{self.started_at}"

    def with_node(self, node: NodeProcess) -> "ClusterRecord":
        """With this process for the node, replacing one that was started before."""
        if all(known.name != node.name for known in self.nodes):
            return replace(self, nodes=(*self.nodes, node))
        return replace(self, nodes=tuple(node if known.name == node.name else known for known in self.nodes))

    def to_dict(self) -> dict[str, object]:
        return PLAIN.encode(self)

    @classmethod
    def from_dict(cls, data: object) -> "ClusterRecord":
        return PLAIN.decode(cls, data)


def save(home: GridHome, record: ClusterRecord) -> None:
    """Replace the record on disk in one step, readable by its owner only."""
    try:
        replace_durably(home.cluster, json.dumps(record.to_dict(), indent=2).encode())
    except OSError as error:
        raise StoreBroken(f"Cannot write {home.cluster}: {error.strerror}") from error


def load(home: GridHome) -> ClusterRecord | None:
    """The record on disk; None if there is none."""
    if (data := bytes_of(home.cluster)) is None:
        return None
    try:
        return ClusterRecord.from_dict(json_of(data))
    except (ValueError, TypeError, KeyError) as error:
        raise StoreBroken(
            f"{home.cluster} is not a cluster record: {error}",
            try_next=f"End the cluster's processes by hand if any are left, then remove {home.cluster}.",
        ) from error


def forget(home: GridHome) -> None:
    try:
        home.cluster.unlink(missing_ok=True)
    except OSError as error:
        raise StoreBroken(f"Cannot remove {home.cluster}: {error.strerror}") from error


@contextmanager
def only_one(home: GridHome, *, wait: bool) -> Iterator[None]:
    """Keep other commands from starting or stopping this home's cluster meanwhile.

    Without `wait`, raises `AlreadyRunning` if another command is at it. The lock ends with the process that holds it.
    """
    lock: Path = home.cluster.with_suffix(".lock")
    try:
        opened = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o600)  # a pipe must not block us
    except OSError as error:
        raise StoreBroken(f"Cannot open {lock}: {error.strerror}", try_next=f"Remove {lock}.") from error
    with os.fdopen(opened, "rb+", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise AlreadyRunning(
                "Another command is starting or stopping this cluster",
                try_next="Wait for it to finish, or set GRID_HOME to start a second cluster.",
            ) from None
        yield
