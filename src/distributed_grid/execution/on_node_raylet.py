"""A Ray of its own for one run, on this machine; it cannot outlive the process that started it.

This module travels by value: it may import only what Python ships, and what travels along.
"""

import contextlib
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence

from distributed_grid.execution.on_node_kept import Kept
from distributed_grid.execution.ray_start import AGENT_PORTS, RUN, STARTED, STAYING

_GONE_WITHIN_S = 30.0
_ANSWER_S = 5.0
MOST_WINDOWS = 10
_LEAST_SHARE = 0.02
"""Of a core. A Ray that uses less during its start, and writes nothing, makes no progress. A hung one still polls."""
_MOST_TRIES = 5
_TOO_SLOW = "timed out during startup"
"""Ray's message when its own start timeout, which cannot be set, ends on a busy machine."""
MARK = "GRID_OWN_RAY"


class OwnRay:
    """One `ray start --block`, which ends with this object or its process."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """`arguments`: of `ray start`, except the ports of its agents and, for a head, its folder for files."""
        self._arguments, self._environment = arguments, dict(environment or {})
        self._tries = 0
        self.folder = ""
        """Of its log and, for a head, of all its files; it goes with Ray."""
        self._start()

    def _start(self) -> None:
        self._tries += 1
        arguments = self._arguments
        folder = tempfile.mkdtemp(prefix="grid-ray-", dir="/tmp")  # short: the kernel limits the paths of sockets
        where = ["--temp-dir", folder] if "--head" in arguments else []
        agents = zip(AGENT_PORTS, _free_ports(len(AGENT_PORTS)), strict=True)
        ports = [part for flag, port in agents for part in (flag, str(port))]
        ray = [sys.executable, "-P", "-c", f"{RUN}\nsys.exit(main())"]
        log = os.path.join(folder, "ray-start.log")
        self._log = open(log, "x+b")  # noqa: SIM115 - the folder goes with Ray, but its log is still read
        self._failed: str | None = None
        self._over = threading.Event()
        self.folder = folder
        self._kept = Kept()
        self._kept.tell(
            start={
                "command": [*ray, "start", *arguments, *where, *ports, *STAYING],
                "cwd": os.getcwd(),
                "env": _clean(os.environ) | self._environment | {MARK: folder},
                "stdin": None,
                "stdout": log,
                "stderr": None,
                "orphaned_s": 0.0,  # on SIGTERM Ray takes its time, and nothing in it is needed any more
                "folder": folder,
            }
        )
        threading.Thread(target=self._listen, args=(self._kept, self._over), daemon=True).start()

    def why_not_up(self, within_s: float) -> str | None:
        """Wait until Ray runs, for as long as it makes progress; it may stall for at most `within_s`.

        None if it runs; otherwise the last lines of its log.
        """
        began = time.monotonic()
        for _ in range(MOST_WINDOWS):
            signs = self._signs()
            deadline = time.monotonic() + within_s
            while time.monotonic() < deadline:
                is_over = self._over.wait(0.05)
                said = self._said()
                if STARTED in said and not is_over:
                    return None
                if is_over and _TOO_SLOW in said and self._tries < _MOST_TRIES:
                    self._log.close()
                    self._start()
                elif is_over:
                    return self._failed or _last_lines(said) or "Ray ended and wrote nothing to its log"
            if not self._gets_on(signs, within_s):
                break
        return f"it was not up after {time.monotonic() - began:.0f} s: {_last_lines(self._said())}"

    def _signs(self) -> tuple[int, int, float]:
        return self._tries, len(self._said()), _cpu_seconds(self.folder)

    def _gets_on(self, before: tuple[int, int, float], seconds: float) -> bool:
        now = self._signs()
        return now[:2] != before[:2] or abs(now[2] - before[2]) >= _LEAST_SHARE * seconds

    def until_over(self) -> None:
        self._over.wait()

    def end(self) -> None:
        """End Ray. On return all its processes and files are gone."""
        self._kept.let_go()
        self._over.wait(_GONE_WITHIN_S)
        self._log.close()

    def _listen(self, kept: Kept, over: threading.Event) -> None:
        for said in kept.heard():
            self._failed = said.get("failed", self._failed)
        over.set()

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")


class RayletHost:
    """The actor on the lender that holds one Ray and the capacity it runs on; the actor ends with it."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        import ray

        address, labels = ray.util.get_node_ip_address(), ray.get_runtime_context().get_node_labels()
        own = ["--node-ip-address", address, "--labels", _as_an_argument(labels)]
        self._ray = OwnRay([*own, *arguments], environment)
        self._arguments = arguments

    def why_not_up(self, within_s: float) -> str | None:
        why = self._ray.why_not_up(within_s)
        if why is None:  # otherwise this actor still has to report why
            threading.Thread(target=self._leave_with_it, daemon=True).start()
        return why

    def drain(self, left_s: float, why: str) -> bool:
        """Tell the private Ray that its nodes are preempted once so much time is over. It starts nothing new there.

        Only while actors live there, since Ray ends a draining node at once when nothing holds it: work of tasks alone
        would lose its grace period, and no task hears of this. Returns whether the call was made.
        """
        import ray._raylet
        from ray._private.grpc_utils import init_grpc_channel
        from ray.core.generated import autoscaler_pb2, gcs_pb2, gcs_service_pb2, gcs_service_pb2_grpc

        head = self._arguments[self._arguments.index("--address") + 1]
        actors = gcs_service_pb2.GetAllActorInfoRequest()
        actors.filters.state = gcs_pb2.ActorTableData.ALIVE
        channel = init_grpc_channel(head)
        try:
            stub = gcs_service_pb2_grpc.ActorInfoGcsServiceStub(channel)
            if not stub.GetAllActorInfo(actors, timeout=_ANSWER_S).actor_table_data:
                return False
            nodes = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
            found = nodes.GetAllNodeInfo(gcs_service_pb2.GetAllNodeInfoRequest(), timeout=_ANSWER_S).node_info_list
        finally:
            channel.close()
        deadline_ms = round((time.time() + left_s) * 1000)
        for node in found:
            if node.state == gcs_pb2.GcsNodeInfo.ALIVE and not node.is_head_node:
                ray._raylet.GcsClient(address=head).drain_node(
                    node.node_id.hex(),
                    autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION,
                    why,
                    deadline_ms,
                    timeout=_ANSWER_S,
                )
        return True

    def _leave_with_it(self) -> None:
        self._ray.until_over()
        os._exit(0)


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without another Ray's variables, except those for authentication."""
    kept = {name: value for name, value in environ.items() if not name.startswith("RAY_") or "AUTH" in name}
    mode = kept.get("RAY_AUTH_MODE") or "disabled"  # the same as that of the node that this process runs on
    return kept | {"RAY_AUTH_MODE": mode, "RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_worker_prestart": "0"}


def _as_an_argument(labels: Mapping[str, str]) -> str:
    """The node's labels, as an argument for a raylet on the same node; without those that Ray makes itself."""
    return ",".join(f"{key}={value}" for key, value in labels.items() if not key.startswith("ray.io/"))


def _cpu_seconds(folder: str) -> float:
    """The CPU time that the processes of this Ray have used so far."""
    mark, ticks = f"{MARK}={folder}\0".encode(), 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{pid}/environ", "rb") as environ:
                if mark not in environ.read():
                    continue
            with open(f"/proc/{pid}/stat", "rb") as stat:
                fields = stat.read().rpartition(b")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _free_ports(count: int) -> list[int]:
    """Ports that are free now; taken together, so that they differ."""
    with contextlib.ExitStack() as open_at_once:
        sockets = [open_at_once.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _last_lines(text: str, count: int = 8) -> str:
    return "; ".join([line.strip() for line in text.splitlines() if line.strip()][-count:])
