"""The options and the output of every `ray start`, and the check of Ray's version. Imports nothing of Ray."""

from typing import Final

from distributed_grid.decide.diagnosis.checks import OLDEST_RAY, is_new_enough
from distributed_grid.errors import RayUnsuitable


def check_ray_version(version: str) -> None:
    """Raise `RayUnsuitable` for a Ray that cannot resize raylets."""
    if not is_new_enough(version):
        raise RayUnsuitable(
            f"Ray {version} is too old: grid needs {OLDEST_RAY} or newer",
            because=["older versions cannot change a running node's resources"],
            try_next="pip install --upgrade 'ray[default]' on every node, then restart the cluster.",
        )


LOOPBACK: Final = "127.0.0.1"
"""A node with this address opens no socket beyond loopback: all parts of Ray bind to it alone."""

LOOPBACK_HOST: Final = "LOCALHOST"
"""The same for the host in a head's address. It is in capitals because Ray's programs replace `localhost` and
`127.0.0.1` with the machine's outward address, where nothing listens. They leave other names alone, and host names
ignore case."""

PATIENCE_S: Final = 240.0

AGENT_PORTS: Final = (
    "--metrics-export-port",
    "--dashboard-agent-listen-port",
    "--dashboard-agent-grpc-port",
    "--runtime-env-agent-port",
)
"""Without ports chosen in advance, each raylet waits seconds for its agents to report theirs."""

_PORT_FILES: Final = (
    "metrics_export_port",
    "dashboard_agent_listen_port",
    "metrics_agent_port",
    "runtime_env_agent_port",
)
"""A raylet reads the ports of its agents from these files, and ends if they are missing after 15 s; on a busy machine
the agents need longer to write them. The ports are known in advance, so grid writes the files first."""

_IDLE_AGENT: Final = "import os,time;p=os.getppid();all(not time.sleep(1) for _ in iter(lambda:os.getppid()==p,False))"
"""Runs in place of a node's agent, which serves Ray's dashboard and exports Ray's metrics; ends with its raylet."""

RUN: Final = f"""
import sys
sys.modules["ray.serve.scripts"] = None
from ray._private import services
from ray._private.node import Node
from ray.scripts.scripts import main
import inspect
import time
from ray import _raylet
start_gcs_server, start_monitor, get_node = Node.start_gcs_server, services.start_monitor, services.get_node
def start_and_name_it(node):
    start_gcs_server(node)
    node._gcs_address = node._gcs_address.replace("{LOOPBACK}:", "{LOOPBACK_HOST}:")
def start_it_on_loopback(gcs_address, *args, **options):
    return start_monitor(gcs_address.replace("{LOOPBACK_HOST}:", "{LOOPBACK}:"), *args, **options)
start_raylet, raylets = services.start_raylet, []
def start_and_watch_it(*args, **options):
    bound = inspect.signature(start_raylet).bind(*args, **options).arguments
    for name in {_PORT_FILES!r}:
        if bound.get(name) and hasattr(_raylet, "persist_port"):
            _raylet.persist_port(bound["session_dir"], bound["node_id"], name, bound[name])
    raylets.append(start_raylet(*args, **options))
    return raylets[-1]
def get_node_in_time(*args, **options):
    until = time.monotonic() + {PATIENCE_S}
    while True:
        try:
            return get_node(*args, **options)
        except RuntimeError:
            if any(raylet.process.poll() is not None for raylet in raylets):
                sys.exit("The raylet has ended: see raylet.out in Ray's session folder")
            if time.monotonic() > until:
                raise
        time.sleep(0.1)
Node.start_gcs_server, services.start_monitor = start_and_name_it, start_it_on_loopback
services.start_raylet, services.get_node = start_and_watch_it, get_node_in_time
services.resolve_ip_for_localhost = lambda host: host
python_command = services._build_python_executable_command_memory_profileable
def with_an_idle_agent(process_type, *args, **options):
    if process_type == services.ray_constants.PROCESS_TYPE_DASHBOARD_AGENT:
        return [sys.executable, "-S", "-c", {_IDLE_AGENT!r}]
    return python_command(process_type, *args, **options)
services._build_python_executable_command_memory_profileable = with_an_idle_agent
"""
"""Python code that replaces the `ray` command, before the call of `main`. It leaves out Ray Serve's commands, which
take a third of the loading time; binds a node to `LOOPBACK` if that is its address; and waits longer for the raylet
than Ray's own 30 s, which is too little on a machine that starts many. These clusters have no dashboard, so their nodes
do without its agents: each would take 60 MB and most of a second of CPU time at the start."""

STARTED: Final = "Ray runtime started"

STAYING: Final = ("--log-style", "record", "--log-color", "false", "--disable-usage-stats", "--block")
"""`ray start` stays for as long as the node does, and writes plain lines."""
