"""One node of an embedded cluster: its resources, and the command that starts it."""

import importlib.util
import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from distributed_grid.cluster.ports import LockedPorts
from distributed_grid.errors import ClusterStartFailed, RayUnsuitable
from distributed_grid.execution.ray_start import AGENT_PORTS, LOOPBACK, LOOPBACK_HOST, PATIENCE_S, RUN, STARTED, STAYING
from distributed_grid.model.resources import CPU, GPU, MEMORY, describe, scale

NAME_LABEL: Final = "grid/name"
"""The Ray node label with the configured name of a node."""

START_TIMEOUT_S: Final = PATIENCE_S + 60.0

# Small, since all nodes share one host; by default each raylet would take 30 % of its memory.
_OBJECT_STORE_BYTES: Final = 100_000_000
_LOG_LINES_SHOWN: Final = 12
POLL_S: Final = 0.05
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """The resources that one raylet advertises; memory for tasks, in bytes."""

    name: str
    cpus: float | int
    gpus: int
    memory_bytes: int
    resources: Mapping[str, float]
    is_head: bool
    labels: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """For messages: "8 CPUs, 16 GB of memory, 1 GPU"."""
        parts = [describe(CPU, round(self.cpus * scale(CPU))), describe(MEMORY, self.memory_bytes)]
        if self.gpus:
            parts.append(describe(GPU, self.gpus * scale(GPU)))
        parts += [describe(kind, round(amount * scale(kind))) for kind, amount in self.resources.items()]
        return ", ".join(parts)


def head_first(nodes: Sequence[NodeSpec]) -> list[NodeSpec]:
    """The nodes in start order; `ClusterStartFailed` for nodes that Ray could never start."""
    wrong = [
        f"{node.name}: Ray starts a node with a whole number of CPUs, not {node.cpus}"
        for node in nodes
        if not float(node.cpus).is_integer()
    ]
    wrong += [
        f"{node.name!r} is not a valid node name: use letters, digits and _.- in between, at most 63"
        for node in nodes
        if not _LABEL_VALUE.fullmatch(node.name)
    ]
    if len({node.name for node in nodes}) < len(nodes):
        wrong.append("Two nodes have the same name")
    if (heads := sum(node.is_head for node in nodes)) != 1:
        wrong.append(f"A cluster has one head node, not {heads}")
    if wrong:
        raise ClusterStartFailed(
            "The cluster cannot start with this configuration",
            because=wrong,
            try_next="Correct the nodes in the configuration.",
        )
    return sorted(nodes, key=lambda node: not node.is_head)


def ray_executable() -> list[str]:
    """The `ray` command of this very Python, found without importing it; `RayUnsuitable` if there is none."""
    if importlib.util.find_spec("ray") is None:
        raise RayUnsuitable(
            f"Ray is not installed for {sys.executable}",
            try_next=f"{sys.executable} -m pip install 'ray[default]'",
        )
    # -P: files in the current folder must not shadow modules.
    return [sys.executable, "-P", "-c", f"{RUN}\nsys.exit(main())"]


def start_command(node: NodeSpec, ray_address: str, ports: LockedPorts) -> list[str]:
    """The arguments of `ray` that start the head at `ray_address`, or join a worker to it, and stay."""
    host, _, port = ray_address.rpartition(":")
    if node.is_head:
        role = ["--head", "--port", port, "--include-dashboard", "false"]
        role += ["--ray-client-server-port", str(ports.take())]
    else:  # one log monitor per host is enough: a second would show drivers every line twice
        role = ["--address", ray_address, "--include-log-monitor", "false"]
    labels = {**node.labels, NAME_LABEL: node.name}
    return [
        "start",
        *role,
        *("--node-ip-address", LOOPBACK if host == LOOPBACK_HOST else host),
        *("--num-cpus", str(int(node.cpus))),
        *("--num-gpus", str(node.gpus)),
        *("--memory", str(node.memory_bytes)),
        *("--object-store-memory", str(_OBJECT_STORE_BYTES)),
        *("--resources", json.dumps(dict(node.resources))),
        *("--labels", ",".join(f"{key}={value}" for key, value in labels.items())),
        *(part for flag in AGENT_PORTS for part in (flag, str(ports.take()))),
        *STAYING,
    ]


def spawn(
    command: Sequence[str], log: Path, env: Mapping[str, str], *, stdin: int = subprocess.DEVNULL
) -> "subprocess.Popen[bytes]":
    """Run `command` so that it outlives us, out of reach of a Ctrl-C meant for us; it writes to `log`."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=env,
        )


def is_up(name: str, process: "subprocess.Popen[bytes]", log: Path, deadline: float) -> bool:
    """True if Ray reports that the node runs; raises `ClusterStartFailed` if it has ended, or after the deadline."""
    if STARTED in log.read_text(errors="replace"):
        return True
    if (status := process.poll()) is not None:
        raise start_failed(name, f"Ray ended with exit status {status}", log)
    if time.monotonic() > deadline:
        raise start_failed(name, f"it was not up after {START_TIMEOUT_S:.0f} seconds", log)
    return False


def start_failed(name: str, why: str, log: Path) -> ClusterStartFailed:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return ClusterStartFailed(
        f"Node {name} did not start: {why}",
        because=lines[-_LOG_LINES_SHOWN:] or ["Ray wrote nothing to its log"],
        try_next=f"Ray's full output is in {log}.",
    )
