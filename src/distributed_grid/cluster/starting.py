"""The nodes of an embedded cluster, started one behind the other but without one waiting for the other's end.

Of the seconds that `ray start` takes, one is spent on loading Ray and most of the others on waiting for the agents of
its raylet. So each is loaded while the one before it starts, and is let go as soon as that one cannot be disturbed.
"""

import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from distributed_grid.cluster.nodes import POLL_S, START_TIMEOUT_S, NodeSpec, is_up, spawn

# A third of the time would go into loading Ray Serve, only to have its commands; without it they are left out.
# Left out as well, since the head would be a second later: an API server with nothing in it, for without the dashboard
# it has only Ray's usage statistics, which are off; and a server for ray:// programs at a port that nobody knows.
# If whoever should tell it ends instead, so does it.
_WHEN_TOLD: Final = """
import sys
sys.modules["ray.serve.scripts"] = None
from ray._private import services
from ray._private.node import Node
from ray.scripts.scripts import main
services.start_api_server = lambda *args, **options: ("", None)
Node.start_ray_client_server = lambda self: None
sys.stdin.readline() and sys.exit(main())
"""
_SOCKETS_OF_A_RAYLET: Final = 2  # its own and its object store's


class NodeStart:
    """One `ray start`: loaded, then let go when its turn comes."""

    def __init__(self, spec: NodeSpec, arguments: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.spec = spec
        self.log = log
        # -P: what lies in the current folder must not shadow modules.
        command = [sys.executable, "-P", "-c", _WHEN_TOLD, *arguments]
        self._process = spawn(command, log, env, stdin=subprocess.PIPE)
        self._let_go_at = 0.0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def seconds(self) -> float:
        """Since it was let go."""
        return time.monotonic() - self._let_go_at

    def let_go(self) -> None:
        self._let_go_at = time.monotonic()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as told:  # if it has ended, `is_up` will say why
            told.write(b"\n")

    def is_up(self) -> bool:
        return is_up(self.spec.name, self._process, self.log, self._let_go_at + START_TIMEOUT_S)

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
) -> None:
    """Start the nodes, the first of which is the head; `begun` and `up` are told of each in this order.

    The others start once the head is up, since Ray looks only every two seconds for one that is not.
    """
    waiting = deque(specs)
    coming: deque[NodeStart] = deque()
    loaded: NodeStart | None = None
    while waiting or loaded or coming:
        if loaded is None and waiting:
            loaded = load(waiting.popleft())
        if loaded and (loaded.spec.is_head or (not _head(coming) and (not coming or coming[-1].has_its_sockets()))):
            loaded.let_go()
            begun(loaded)
            coming.append(loaded)
            loaded = None
        elif coming and coming[0].is_up():
            up(coming.popleft())
        else:
            time.sleep(POLL_S)


def _head(coming: deque[NodeStart]) -> bool:
    return bool(coming) and coming[0].spec.is_head
