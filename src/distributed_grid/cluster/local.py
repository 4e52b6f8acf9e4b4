"""The embedded cluster: one real raylet per configured node, all on this host.

It outlives the command that started it, and its processes can always be found again: the record is on disk before the
first process starts, and every process carries the cluster's marker in its environment.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil

from distributed_grid.cluster import processes
from distributed_grid.cluster.nodes import NodeSpec, head_first, ray_executable, start_command, start_failed
from distributed_grid.cluster.ports import LockedPorts
from distributed_grid.cluster.record import ClusterRecord, NodeProcess, forget, load, only_one, save
from distributed_grid.cluster.starting import NodeStart, start_in_turn
from distributed_grid.errors import AlreadyRunning, ClusterStartFailed, StoreBroken
from distributed_grid.execution.ray_start import LOOPBACK_HOST
from distributed_grid.store.home import GridHome

Progress = Callable[[str], None]
Beside = Callable[[str, Callable[[], None]], None]
"""Receives the cluster's address, and a function to call regularly, which raises once the start is abandoned."""

# A raylet signs off and ends its workers in a moment. (The `ray start` above it would drain first, for 30 s if it is
# busy and for ever if the head is gone, and then end its other children one by one.)
_GRACE_S: Final = 2.0


def start(
    home: GridHome,
    name: str,
    nodes: Sequence[NodeSpec],
    *,
    config_digest: str | None = None,
    progress: Progress,
    beside: Beside | None = None,
) -> ClusterRecord:
    """Start all nodes, or none: if anything fails, the nodes already started are ended again.

    `beside` is called as soon as the head is up, while the others start; it is part of the start.

    Raises `AlreadyRunning` if any process of this home's last cluster lives, `RayUnsuitable` without Ray, and
    `ClusterStartFailed` with the last lines of the log of the node that failed.
    """
    specs = head_first(nodes)
    ray_executable()  # before anything is begun
    home.create().logs.mkdir(mode=0o700, exist_ok=True)
    with only_one(home, wait=False), LockedPorts() as ports:
        _refuse_if_running(home)
        record = ClusterRecord(
            name=name,
            ray_address=f"{LOOPBACK_HOST}:{ports.take()}",
            started_at=datetime.now(UTC).isoformat(),
            config_digest=config_digest,
        )
        save(home, record)
        env = processes.child_environment(os.environ, record.marker)
        companion = Companion(beside, record.ray_address)

        def load(spec: NodeSpec) -> NodeStart:
            log = home.logs / f"ray-{spec.name}.log"
            return NodeStart(spec, start_command(spec, record.ray_address, ports), log, env)

        def begun(node: NodeStart) -> None:
            nonlocal record
            record = record.with_node(_recorded(node.spec.name, node.pid, node.log))
            save(home, record)

        def up(node: NodeStart) -> None:
            progress(f"{node.spec.name}: {node.spec.describe()} ... up in {node.seconds:.1f} s")
            companion.start()

        def again(spec: NodeSpec, failed: ClusterStartFailed) -> None:
            progress(f"{spec.name}: {failed.message.partition(': ')[2]}; trying again")

        try:
            start_in_turn(specs, load, begun=begun, up=up, again=again)
            for spec in _gone(specs, record):
                progress(f"{spec.name}: Ray ended soon after the start; trying again")
                start_in_turn([spec], load, begun=begun, up=up, again=again)
            _check_all_live(record)
            companion.finish()
        except BaseException:  # an interrupt must leave nothing behind either
            companion.give_up()
            _end(record)
            forget(home)
            raise
    return record


class Companion:
    """Work that runs beside the start of the nodes, in its own thread."""

    def __init__(self, work: Beside | None, ray_address: str) -> None:
        self._work = work
        self._address = ray_address
        self._given_up = False
        self._pool = ThreadPoolExecutor(1)
        self._done: Future[None] | None = None

    def start(self) -> None:
        """Start it; only the first call has an effect."""
        if self._work is not None and self._done is None:
            self._done = self._pool.submit(self._work, self._address, self._go_on)

    def finish(self) -> None:
        """Wait for it; raise what it raised."""
        if self._done is not None:
            self._done.result()
        self._pool.shutdown()

    def give_up(self) -> None:
        self._given_up = True
        self._pool.shutdown(wait=False)

    def _go_on(self) -> None:
        if self._given_up:
            raise ClusterStartFailed("The cluster did not start")


def stop(home: GridHome, *, progress: Progress) -> ClusterRecord | None:
    """End every process of this home's cluster, and nothing else; safe to repeat. None: nothing ran."""
    if load(home) is None:
        return None
    with only_one(home, wait=True):
        record = load(home)
        if record is None:
            return None
        ended = _end(record)
        forget(home)
    if not ended:
        return None
    progress(f"{record.name}: {len(record.nodes)} nodes stopped, {ended} processes ended")
    return record


def running(home: GridHome) -> ClusterRecord | None:
    """The record of this home's cluster, if its head lives."""
    record = load(home)
    return record if record and record.nodes and _process(record, record.nodes[0]) else None


def is_over(home: GridHome, record: ClusterRecord) -> bool:
    """Whether this cluster has ended, or another one has taken its place in this home.

    A missing or unreadable file does not mean that it has.
    """
    try:
        there = load(home)
    except StoreBroken:
        there = None
    if there is not None and there.marker != record.marker:
        return True
    return not record.nodes or _process(record, record.nodes[0]) is None


def _refuse_if_running(home: GridHome) -> None:
    """Raise `AlreadyRunning`, or clear away what a dead cluster left."""
    record = load(home)
    if record is None:
        return
    if any(_process(record, node) for node in record.nodes):
        raise AlreadyRunning(
            f"The cluster {record.name} is already running at {record.ray_address}",
            try_next="Stop it with: grid cluster stop",
        )
    _end(record)
    forget(home)


def _gone(specs: Sequence[NodeSpec], record: ClusterRecord) -> list[NodeSpec]:
    """The nodes that have ended again. Without its head no cluster continues."""
    live = {node.name for node in record.nodes if _process(record, node)}
    return [spec for spec in specs if spec.name not in live and not spec.is_head]


def _check_all_live(record: ClusterRecord) -> None:
    """Some faults, such as a port that was taken meanwhile, end a node only after it reported that it was up."""
    for node in record.nodes:
        if not _process(record, node):
            raise start_failed(node.name, "Ray ended soon after the start", Path(node.log))


def _end(record: ClusterRecord) -> int:
    roots = [process for node in record.nodes if (process := _process(record, node))]
    return processes.end(roots, gently="raylet", grace_s=_GRACE_S, strays=lambda: processes.carrying(record.marker))


def _recorded(name: str, pid: int, log: Path) -> NodeProcess:
    try:
        create_time = psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        create_time = 0.0  # gone already; the wait for it will say why
    return NodeProcess(name=name, pid=pid, create_time=create_time, log=str(log))


def _process(record: ClusterRecord, node: NodeProcess) -> psutil.Process | None:
    return processes.find(node.pid, node.create_time, record.marker)
