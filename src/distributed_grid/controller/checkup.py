"""Runs apart from the command line: looks at everything that grid needs, and tells what it saw.

`python -m distributed_grid.controller.checkup` reads one JSON object from stdin and writes one to stdout. What the
facts mean is for `decide.diagnosis` to say. Nothing here may end without an answer: a cluster that hangs is
itself a finding.
"""

import fcntl
import json
import os
import platform
import shutil
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from distributed_grid.decide.diagnosis import (
    REPORT_PERIOD,
    ActorState,
    AutoscalerFacts,
    ClusterFacts,
    ControllerFacts,
    Facts,
    GroupFacts,
    HomeFacts,
    MachineFacts,
    NodeFacts,
    ResizeFacts,
    Trouble,
    ray_is_suitable,
)
from distributed_grid.decide.naming import ConfiguredName, Naming, Raylet, name_raylets
from distributed_grid.errors import GridError
from distributed_grid.model.nodes import NodeId, NodeName
from distributed_grid.store.home import GridHome

if TYPE_CHECKING:
    from distributed_grid.execution.port import NodeView, Raylets

TRIAL: Final = "grid:doctor"
"""The resource that is grown and taken away again; nobody asks for it, so nobody can hold it."""

_LIMIT_S: Final = 75.0
_HTTP_S: Final = 5.0
_NODES_S: Final = 20.0
_GROUP_S: Final = 5.0
_VIEW_S: Final = 3.0
_SAMPLES: Final = 3
_SLOW_TRIP_S: Final = 0.5
_ENV: Final = (
    "KUBERNETES_SERVICE_HOST",
    "RAY_CLUSTER_NAME",
    "RAY_USAGE_STATS_KUBERAY_IN_USE",
    REPORT_PERIOD,
)


class Checkup:
    """One look around. The facts are there at any time, as far as the look has come."""

    def __init__(self, home: GridHome, address: str | None, *, nodes_within_s: float = _NODES_S) -> None:
        self._home = home
        self._asked_address = address
        self._nodes_within_s = nodes_within_s
        self._machine = MachineFacts(platform.python_version(), sys.executable, None, "its import did not end")
        self._home_facts = HomeFacts(str(home.path), False, "looking at it did not end")
        self._controller = ControllerFacts()
        self._configured: tuple[ConfiguredName, ...] = ()
        self._cluster: dict[str, Any] | None = None
        self._step = ""

    def facts(self, *, ended: bool) -> Facts:
        cluster = None
        if self._cluster is not None:
            cluster = ClusterFacts(**self._cluster, stuck_at="" if ended else self._step)
        return Facts(self._machine, self._home_facts, self._controller, cluster)

    def look(self) -> None:
        self._home_facts = look_at_home(self._home)
        self._controller, self._configured = look_at_controller(self._home)
        address, address_from = self._choose_address()
        if address:
            self._cluster = {
                "address": address,
                "address_from": address_from,
                "patience_s": self._nodes_within_s,
                "errors": {},
            }
        self._machine = look_at_machine()
        if self._cluster is not None and ray_is_suitable(self._machine.ray):
            with self._attempt("ray cluster", "connecting to it"):
                self._cluster["trouble"], self._cluster["error"] = connect(address)
                if self._cluster["trouble"] is None:
                    self._look_inside(self._cluster)

    def _choose_address(self) -> tuple[str, str]:
        candidates = (
            (self._asked_address, "--address"),
            (self._controller.ray_address, "controller.json"),
            (embedded_address(self._home), "cluster.json"),
            (os.environ.get("RAY_ADDRESS"), "RAY_ADDRESS"),
        )
        return next(((address, source) for address, source in candidates if address), ("", ""))

    def _look_inside(self, cluster: dict[str, Any]) -> None:
        from distributed_grid.execution.ray_gateway import RayGateway

        gateway = RayGateway.connected()
        cluster["address"] = gateway.gcs_address
        with self._attempt("controller", "asking for the controller"):
            self._controller = replace(self._controller, **ask_for_controller())
        with self._attempt("autoscaler", "reading what an autoscaler has reported"):
            cluster["autoscaler"] = look_at_autoscaler(gateway.gcs_address)
        raylets = gateway.raylets()
        its_own = self._controller.ray_address == gateway.gcs_address
        naming = name_raylets(raylets, self._configured if its_own else ())
        cluster |= {"missing": naming.missing, "naming_problems": naming.problems}
        head = next((raylet for raylet in raylets if raylet.is_head), None)
        if head is not None:
            cluster["head_labels"] = dict(head.labels)
            with self._attempt("resize", f"resizing {TRIAL} on the head"):
                cluster["resize"] = try_resize(gateway, head.node_id)
        with self._attempt("nodes", "running something on every node"):
            cluster["nodes"], around = look_at_nodes(naming, self._nodes_within_s)
            if head is not None and head.node_id in around:
                cluster["token_auth"] = around[head.node_id]["token_auth"]
                cluster["head_env"] = around[head.node_id]["env"]
        answering = {node.name: naming.raylets[node.name] for node in cluster.get("nodes", ()) if node.answered}
        if answering:
            with self._attempt("reservations", "making a placement group"):
                cluster["group"] = try_group(answering, gateway.view())

    @contextmanager
    def _attempt(self, check: str, step: str) -> Iterator[None]:
        """One look that may fail without keeping the others from being taken."""
        assert self._cluster is not None
        self._step = step
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is what we are here to tell
            self._cluster["errors"][check] = one_line(error)


# This machine


def look_at_machine() -> MachineFacts:
    python = platform.python_version()
    try:
        import ray

        return MachineFacts(python, sys.executable, str(ray.__version__))
    except Exception as error:  # noqa: BLE001 - a broken installation can fail in any way
        return MachineFacts(python, sys.executable, None, one_line(error))


def look_at_home(home: GridHome) -> HomeFacts:
    """Nothing is created but, for a moment, one file in a home that is there."""
    path = home.path
    try:
        exists = path.exists()
        nearest = next(folder for folder in (path, *path.parents) if folder.exists())
        filesystem, mount_point = mounted_at(nearest.resolve(), _mounts())
        return HomeFacts(
            str(path),
            exists,
            error=_why_not_writable(path) if exists else _why_not_creatable(nearest),
            mode=stat.S_IMODE(path.stat().st_mode) if exists else 0o700,
            damaged=tuple(_damaged(home)),
            filesystem=filesystem,
            mount_point=mount_point,
            free_bytes=shutil.disk_usage(nearest).free,
            token_mode=stat.S_IMODE(home.token.stat().st_mode) if home.token.exists() else None,
        )
    except OSError as error:
        return HomeFacts(str(path), False, one_line(error))


def _why_not_writable(folder: Path) -> str:
    """Writes, locks and syncs a file, which is all that the store does."""
    if not folder.is_dir():
        return "it is not a folder"
    trial = folder / f".doctor-{os.getpid()}"
    try:
        with trial.open("x") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write("trial")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"it cannot be written: {error.strerror}"
    finally:
        with suppress(OSError):
            trial.unlink()
    return ""


def _why_not_creatable(nearest: Path) -> str:
    if not nearest.is_dir():
        return f"it cannot be created: {nearest} is not a folder"
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"it cannot be created: {nearest} is not writable"
    return ""


def _damaged(home: GridHome) -> Iterator[str]:
    try:
        if not isinstance(json.loads(home.cluster.read_text())["ray_address"], str):
            raise TypeError("ray_address is not text")
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield f"{home.cluster.name} cannot be read: {one_line(error)}"


def embedded_address(home: GridHome) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(home.cluster.read_text())["ray_address"])
    return ""


def _mounts() -> str:
    with suppress(OSError):
        return Path("/proc/self/mounts").read_text()
    return ""


def mounted_at(path: Path, mounts: str) -> tuple[str, str]:
    """The filesystem that a path is on and where that is mounted; the last mount hides those before it."""
    best = ("", "")
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount_point = _unescaped(fields[1])
        if path.is_relative_to(mount_point) and len(mount_point) >= len(best[1]):
            best = (fields[2], mount_point)
    return best


def _unescaped(mount_point: str) -> str:
    """Spaces and their like are written as octal numbers."""
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        mount_point = mount_point.replace(octal, character)
    return mount_point


# The controller


def look_at_controller(home: GridHome) -> tuple[ControllerFacts, tuple[ConfiguredName, ...]]:
    """What the recorded controller answers, and the nodes that it was configured with."""
    try:
        record = json.loads(home.controller.read_text())
        url, ray_address = str(record["url"]), str(record["ray_address"])
    except FileNotFoundError:
        return ControllerFacts(), ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        return ControllerFacts(recorded=True, record_error=one_line(error)), ()
    found = ControllerFacts(recorded=True, url=url, ray_address=ray_address)
    try:
        token = home.token.read_text().strip()
    except OSError as error:
        found, token = replace(found, token_error=f"{home.token} cannot be read: {error.strerror}"), ""
    _, health_error = _get(f"{url}/api/v1/health")
    if health_error or found.token_error:
        return replace(found, health_error=health_error), ()
    answer, token_error = _get(f"{url}/api/v1/config", token)
    nodes = answer.get("config", {}).get("nodes", ())
    configured = tuple(ConfiguredName(node["name"], node.get("host")) for node in nodes)
    return replace(found, token_error=token_error), configured


def _get(url: str, token: str = "") -> tuple[dict[str, Any], str]:
    """The answer, or why there is none."""
    import httpx2

    try:
        answer = httpx2.get(
            url, headers={"Authorization": f"Bearer {token}"} if token else {}, timeout=_HTTP_S, trust_env=False
        )
        if not answer.is_success:
            return {}, f"it answered {answer.status_code} to {url}"
        return dict(answer.json()), ""
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        return {}, one_line(error)


def ask_for_controller() -> dict[str, Any]:
    """What the Ray cluster itself says of the controller."""
    import ray

    from distributed_grid.controller import actor

    controller = actor.existing()
    if controller is None:
        return {"actor": ActorState.ABSENT}
    try:
        where = ray.get(controller.where.remote(), timeout=_HTTP_S)
    except ray.exceptions.RayError:
        return {"actor": ActorState.SILENT}
    return {"actor": ActorState.THERE, "actor_url": where["url"]}


# The cluster


def connect(address: str) -> tuple[Trouble | None, str]:
    """Join the cluster as a driver; if that fails, why."""
    import ray.exceptions

    from distributed_grid.controller import join

    host, _, port = address.rpartition(":")
    if "://" in address:
        return Trouble.ADDRESS, "that is the address of a Ray client server, not of the head itself"
    if address != "auto":
        if not host or not port.isdigit():
            return Trouble.ADDRESS, "that is not HOST:PORT"
        try:
            # Ray itself would try again for a long time.
            socket.create_connection((host.strip("[]"), int(port)), timeout=_HTTP_S).close()
        except (OSError, OverflowError) as error:
            return Trouble.NOBODY, f"nothing listens there ({getattr(error, 'strerror', None) or one_line(error)})"
    try:
        if address != "auto" and (trouble := _why_not_a_head(address)):
            return trouble
        join.connect(address)
    except Exception as error:  # noqa: BLE001 - Ray raises many kinds, as for a missing token
        said = one_line(error.__cause__ if isinstance(error, GridError) and error.__cause__ else error)
        if isinstance(error, ray.exceptions.AuthenticationError):
            return Trouble.TOKEN, said
        return (Trouble.VERSIONS if "Version mismatch" in said else Trouble.OTHER), said
    return None, ""


def _why_not_a_head(address: str) -> tuple[Trouble, str] | None:
    """Asked directly, since joining takes 20 s to fail and then does not say why."""
    import grpc
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

    channel = init_grpc_channel(address)
    try:
        stub = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        stub.CheckAlive(gcs_service_pb2.CheckAliveRequest(), timeout=_HTTP_S)
    except grpc.RpcError as error:
        return {
            grpc.StatusCode.UNAUTHENTICATED: (Trouble.TOKEN, "it asks for a token, and got none or another one"),
            grpc.StatusCode.DEADLINE_EXCEEDED: (Trouble.SILENT, f"it listens, but did not answer in {_HTTP_S:.0f} s"),
            grpc.StatusCode.UNAVAILABLE: (Trouble.NOT_RAY, "what listens there does not answer like a Ray head"),
        }.get(error.code())
    finally:
        channel.close()
    return None


def look_at_autoscaler(gcs_address: str) -> AutoscalerFacts:
    """What autoscalers of both generations leave with the control service."""
    import ray._raylet
    from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
    from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply

    raylet: Any = ray._raylet
    gcs = raylet.GcsClient(address=gcs_address)
    report = gcs.internal_kv_get(DEBUG_AUTOSCALING_STATUS.encode(), timeout=_HTTP_S)
    summary = (json.loads(report) if report else {}).get("autoscaler_report") or {}
    pending = [entry[1] for entry in summary.get("pending_nodes") or ()]
    namespace = raylet.GCS_AUTOSCALER_STATE_NAMESPACE.encode()
    config = gcs.internal_kv_get(
        raylet.GCS_AUTOSCALER_CLUSTER_CONFIG_KEY.encode(), namespace=namespace, timeout=_HTTP_S
    )
    status = GetClusterStatusReply.FromString(gcs.get_cluster_status(timeout_s=_HTTP_S))
    nodes = status.cluster_resource_state.node_states
    return AutoscalerFacts(
        node_types=tuple({*(summary.get("active_nodes") or ()), *(summary.get("pending_launches") or ()), *pending}),
        instance_types=tuple({node.ray_node_type_name for node in nodes if node.ray_node_type_name}),
        reports_state=status.HasField("autoscaling_state"),
        has_config=bool(config),
    )


def try_resize(raylets: "Raylets", node_id: NodeId, *, clock: Callable[[], float] = time.monotonic) -> ResizeFacts:
    """Grow and take away a harmless resource a few times; whatever happens, it is taken away in the end."""
    found = ResizeFacts()
    try:
        for _ in range(_SAMPLES):
            began = clock()
            found = replace(found, grown_to=raylets.resize(node_id, {TRIAL: 1.0}).get(TRIAL, 0.0))
            seen = _until_view_shows(raylets, node_id, 1.0, clock)
            lag = clock() - began
            found = replace(found, back_to=raylets.resize(node_id, {TRIAL: 0.0}).get(TRIAL, 0.0))
            if not seen or not _until_view_shows(raylets, node_id, 0.0, clock):
                return replace(found, unseen=True)
            found = replace(found, lags_s=(*found.lags_s, lag))
    except Exception as error:  # noqa: BLE001 - a private call of Ray; told as it comes
        return replace(found, error=one_line(error))
    finally:
        with suppress(Exception):
            raylets.resize(node_id, {TRIAL: 0.0})
    return found


def _until_view_shows(raylets: "Raylets", node_id: NodeId, amount: float, clock: Callable[[], float]) -> bool:
    deadline = clock() + _VIEW_S
    while raylets.totals().get(node_id, {}).get(TRIAL, 0.0) != amount:
        if clock() > deadline:
            return False
        time.sleep(0.001)
    return True


def try_group(raylets: Mapping[NodeName, Raylet], view: Mapping[NodeId, "NodeView"]) -> GroupFacts:
    """Pin a tiny group to a node, workers before the head, and remove it. It ends with this process anyway."""
    from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

    names = {raylet.node_id: name for name, raylet in raylets.items()}
    for raylet in sorted(raylets.values(), key=lambda raylet: (raylet.is_head, names[raylet.node_id])):
        bundle = _tiny_bundle(view[raylet.node_id].free) if raylet.node_id in view else None
        if bundle is None:
            continue
        kind, amount = next(iter(bundle.items()))
        found = GroupFacts(node=names[raylet.node_id], bundle=f"{amount:g} {kind}")
        group = placement_group(
            [bundle],
            name=f"grid-doctor-{os.getpid()}",
            bundle_label_selector=[{"ray.io/node-id": raylet.node_id}],
        )
        try:
            if not group.wait(_GROUP_S):
                return replace(found, error=f"it was not ready within {_GROUP_S:.0f} s")
            where = placement_group_table(group)["bundles_to_node_id"][0]
            return replace(found, landed_on=names.get(where, where))
        finally:
            remove_placement_group(group)
    return GroupFacts()


def _tiny_bundle(free: Mapping[str, float]) -> dict[str, float] | None:
    if free.get("CPU", 0.0) >= 0.01:
        return {"CPU": 0.01}
    if free.get("memory", 0.0) >= 1:
        return {"memory": 1}
    return None


def look_at_nodes(naming: Naming, within_s: float) -> tuple[tuple[NodeFacts, ...], dict[NodeId, dict[str, Any]]]:
    """Every node's facts, and the surroundings of those that answered."""
    from distributed_grid.execution import errands

    ids = [raylet.node_id for raylet in naming.raylets.values()]
    answers = errands.facts_of(ids, within_s)
    around = surroundings_of(list(answers), within_s)
    nodes = [
        _node(name, raylet, answers.get(raylet.node_id), around.get(raylet.node_id))
        for name, raylet in naming.raylets.items()
    ]
    return tuple(sorted(nodes, key=lambda node: (not node.is_head, node.name))), around


def _node(name: str, raylet: Raylet, facts: Mapping[str, Any] | None, around: Mapping[str, Any] | None) -> NodeFacts:
    if facts is None:
        return NodeFacts(name, raylet.is_head, answered=False)
    offset, round_trip = clock_of(raylet.node_id)
    return NodeFacts(
        name,
        raylet.is_head,
        answered=True,
        python=facts["python"],
        ray=facts["ray"],
        home=facts["home"],
        home_writable=facts["home_writable"],
        clock_offset_s=offset,
        round_trip_s=round_trip,
        report_period_ms=(around or {}).get("env", {}).get(REPORT_PERIOD, ""),
    )


def clock_of(node_id: NodeId) -> tuple[float | None, float]:
    """A node's clock minus ours and how long asking took; asked again while that was long."""
    import ray

    from distributed_grid.execution import errands, on_node

    best: tuple[float | None, float] = (None, float("inf"))
    for _ in range(_SAMPLES):
        began, ticks = time.time(), time.monotonic()
        try:
            told = ray.get(errands.on(node_id, on_node.facts), timeout=_HTTP_S)["time"]
        except ray.exceptions.RayError:
            break
        trip = time.monotonic() - ticks
        if trip < best[1]:
            best = (told - (began + trip / 2), trip)
        if trip < _SLOW_TRIP_S:
            break
    return best if best[0] is not None else (None, 0.0)


def surroundings_of(node_ids: Sequence[NodeId], within_s: float) -> dict[NodeId, dict[str, Any]]:
    import ray
    from ray import cloudpickle

    from distributed_grid.execution import errands

    # Other machines do not have this module.
    cloudpickle.register_pickle_by_value(sys.modules[surroundings.__module__])
    asked = {errands.on(node_id, surroundings, _ENV): node_id for node_id in node_ids}
    done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=within_s) if asked else ([], [])
    found = {}
    for reference in done:
        with suppress(ray.exceptions.RayError):
            found[asked[reference]] = ray.get(reference)
    return found


def surroundings(names: Sequence[str]) -> dict[str, Any]:
    """Runs on a node, where nothing of grid is installed: in what the node's raylet was started."""
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    env = {name: os.environ[name] for name in names if name in os.environ}
    return {"env": env, "token_auth": is_token_auth_enabled()}


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__


def main() -> int:
    order = json.load(sys.stdin)
    checkup = Checkup(
        GridHome(Path(order["home"])),
        order.get("address"),
        nodes_within_s=order.get("nodes_within_s", _NODES_S),
    )
    telling = threading.Lock()

    def tell(*, ended: bool) -> None:
        sys.stdout.write(json.dumps(asdict(checkup.facts(ended=ended))) + "\n")
        sys.stdout.flush()

    def give_up() -> None:
        """Tell what is known so far; what hangs cannot be ended otherwise."""
        with telling:
            tell(ended=False)
            os._exit(0)

    watchdog = threading.Timer(order.get("limit_s", _LIMIT_S), give_up)
    watchdog.daemon = True
    watchdog.start()
    checkup.look()
    if (ray := sys.modules.get("ray")) is not None and hasattr(ray, "shutdown"):
        ray.shutdown()  # now, since what it may print must not follow the answer
    with telling:
        watchdog.cancel()
        tell(ended=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
