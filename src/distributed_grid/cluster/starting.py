"""Starts the nodes of an embedded cluster one after another, without waiting for each to be fully up.

The start paces itself by the load that it makes, and retries a node before it gives up: many nodes on few cores take
long, but they come up.

Of the seconds that `ray start` takes, one goes into loading Ray and most of the others into waiting for the agents of
its raylet. So each node is loaded while the one before it starts, and is released as soon as that one cannot be
disturbed.
"""

import os
import secrets
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from distributed_grid.cluster.nodes import POLL_S, START_TIMEOUT_S, NodeSpec, is_up, spawn
from distributed_grid.cluster.processes import NODE_MARKER, carrying, end
from distributed_grid.errors import ClusterStartFailed
from distributed_grid.execution.ray_start import RUN

# If the process that should release it ends instead, so does it.
WHEN_RELEASED: Final = f"""
{RUN}
sys.stdin.readline() and sys.exit(main())
"""
_SOCKETS_OF_A_RAYLET: Final = 2  # its own and its object store's
_TRIES: Final = 3
_HIGH_LOAD: Final = 3.0  # processes that want a core, for each core


class NodeStart:
    """One `ray start`: loaded, then released when its turn comes."""

    def __init__(self, spec: NodeSpec, arguments: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.spec = spec
        self.log = log
        # -P: files in the current folder must not shadow modules.
        command = [sys.executable, "-P", "-c", WHEN_RELEASED, *arguments]
        self._marker = f"{spec.name}@{secrets.token_hex(8)}"
        self.process = spawn(command, log, {**env, NODE_MARKER: self._marker}, stdin=subprocess.PIPE)
        self._let_go_at = 0.0

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def seconds(self) -> float:
        """Since it was released."""
        return time.monotonic() - self._let_go_at

    def let_go(self) -> None:
        self._let_go_at = time.monotonic()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError), self.process.stdin as pipe:  # if it has ended, `is_up` will say why
            pipe.write(b"\n")

    def is_up(self) -> bool:
        return is_up(self.spec.name, self.process, self.log, self._let_go_at + START_TIMEOUT_S)

    def end(self) -> None:
        """End everything that it has started."""
        try:
            roots = [psutil.Process(self.pid)]
        except psutil.NoSuchProcess:
            roots = []
        end(roots, gently="", grace_s=0.0, strays=lambda: carrying(self._marker, NODE_MARKER))
        self.process.wait()

    def has_its_sockets(self) -> bool:
        """Raylets of one host share a folder, and each takes the first names that it finds free for its sockets."""
        try:
            raylets = [p for p in psutil.Process(self.pid).children() if p.name() == "raylet"]
            names = {found.laddr for raylet in raylets for found in raylet.net_connections("unix") if found.laddr}
        except psutil.Error:
            return False
        return len(names) >= _SOCKETS_OF_A_RAYLET


def start_in_turn(
    specs: Sequence[NodeSpec],
    load: Callable[[NodeSpec], NodeStart],
    *,
    begun: Callable[[NodeStart], None],
    up: Callable[[NodeStart], None],
    again: Callable[[NodeSpec, ClusterStartFailed], None],
) -> None:
    """Start the nodes, the first of which is the head; `begun` and `up` are called for each in this order.

    The others start once the head is up: Ray checks for a missing head only every two seconds. A node that fails is
    ended and started again, and `again` is called; its last try raises.
    """
    waiting = deque(specs)
    coming: deque[NodeStart] = deque()
    loaded: deque[NodeStart] = deque()
    tries = Counter[str]()
    while waiting or loaded or coming:
        if not loaded and waiting:
            loaded.append(load(waiting.popleft()))
        if loaded and _may_go(loaded[0], coming):
            coming.append(loaded.popleft())
            coming[-1].let_go()
            begun(coming[-1])
            continue
        try:
            is_up = bool(coming) and coming[0].is_up()
        except ClusterStartFailed as failed:
            spec = coming[0].spec
            tries[spec.name] += 1
            if tries[spec.name] >= _TRIES:
                raise
            coming.popleft().end()
            again(spec, failed)
            loaded.appendleft(load(spec))
            continue
        if is_up:
            up(coming.popleft())
        else:
            time.sleep(POLL_S)


def _may_go(node: NodeStart, coming: "deque[NodeStart]") -> bool:
    """The head starts alone; of the others, as many at once as the machine can bear, and at least one."""
    if not coming:
        return True
    if node.spec.is_head or coming[0].spec.is_head or not coming[-1].has_its_sockets():
        return False
    return len(coming) < at_once(cores=len(os.sched_getaffinity(0)), load=os.getloadavg()[0])


def at_once(*, cores: int, load: float) -> int:
    """How many nodes may be starting at the same time; one start keeps about one core busy."""
    return 1 if load > _HIGH_LOAD * cores else max(2, cores)
