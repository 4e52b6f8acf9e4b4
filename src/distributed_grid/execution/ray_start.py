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

_SLEEPING_AGENT: Final = """
import os, runpy, select, socket, sys
del sys.argv[0]
options = dict(argument.split("=", 1) for argument in sys.argv[1:] if "=" in argument)
host, port = options["--node-ip-address"], int(options["--runtime-env-agent-port"])
family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
door, bind, raylet = socket.socket(family, kind, protocol), socket.socket.bind, os.getppid()
door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
door.bind(address)
door.listen()
while not select.select([door], [], [], 1.0)[0]:
    if os.getppid() != raylet:
        sys.exit()
def bind_or_take(new, where):
    if where == address:
        os.dup2(door.fileno(), new.fileno(), inheritable=False)
    else:
        bind(new, where)
socket.socket.bind = bind_or_take
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs in place of a node's agent for runtime environments, and becomes it when the raylet first connects to its port.
The connection waits in the listening socket, which the agent takes over. Ends with its raylet."""

_READ_AND_RUN: Final = "import sys;exec(bytes.fromhex(sys.argv.pop(1)))"
"""Raylets receive the commands of their agents as one line, in which quotes and line breaks would be lost."""

RUN: Final = f"""
import sys
for unused in ("ray.serve.scripts", "ray.util.state.state_cli", "ray.dashboard.modules.job.cli"):
    sys.modules[unused] = None
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
def with_idle_agents(process_type, *args, **options):
    if process_type == services.ray_constants.PROCESS_TYPE_DASHBOARD_AGENT:
        return [sys.executable, "-S", "-c", {_IDLE_AGENT!r}]
    if process_type == services.ray_constants.PROCESS_TYPE_RUNTIME_ENV_AGENT:
        return [sys.executable, "-u", "-P", "-c", {_READ_AND_RUN!r}, {_SLEEPING_AGENT.encode().hex()!r}]
    return python_command(process_type, *args, **options)
services._build_python_executable_command_memory_profileable = with_idle_agents
services.start_api_server = lambda *args, **options: ("", None)
Node.start_ray_client_server = lambda self: None
"""
"""Python code that replaces the `ray` command, before the call of `main`. It leaves out the commands of Ray Serve, of
Ray's jobs and of its state API, which take three quarters of the loading time; binds a node to `LOOPBACK` if that is
its address; and waits longer for the raylet than Ray's own 30 s, which is too little on a machine that starts many.

These clusters have no dashboard, so their nodes do without its agents: each would take 60 MB and most of a second of
CPU time at the start. The agents for runtime environments, of 80 MB each, start when they are needed. Heads do without
two servers that would delay the start by a second: an API server with nothing in it (without the dashboard it has only
Ray's usage statistics, which are off), and a server for ray:// programs at an unpublished port."""

STARTED: Final = "Ray runtime started"

STAYING: Final = ("--log-style", "record", "--log-color", "false", "--disable-usage-stats", "--block")
"""`ray start` stays for as long as the node does, and writes plain lines."""
