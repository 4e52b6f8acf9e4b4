"""What a look at an installation and its cluster means, and what to do about it.

The facts are collected by `controller.checkup`; here is only their meaning. Every check says something, also
when it is fine or could not be made.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

OLDEST_PYTHON: Final = (3, 11)
OLDEST_RAY: Final = (2, 55)
REPORT_PERIOD: Final = "RAY_raylet_report_resources_period_milliseconds"

_GB: Final = 2**30
_DISK_WARN: Final = _GB
_DISK_FAIL: Final = _GB // 10
_SKEW_WARN_S: Final = 1.0
_SKEW_FAIL_S: Final = 10.0
_LAG_WARN_S: Final = 0.3

_SHARED_FILESYSTEMS: Final = frozenset(
    (
        *("nfs", "nfs3", "nfs4"),
        *("cifs", "smbfs", "smb2", "smb3", "ncpfs", "afs"),
        *("9p", "virtiofs", "vboxsf", "vmhgfs", "prl_fs"),
        *("lustre", "gpfs", "beegfs", "ceph", "glusterfs", "orangefs", "pvfs2", "panfs", "wekafs"),
        *("gfs2", "ocfs2"),
    )
)
# What a monitor without a provider calls the nodes that it only mirrors.
_MIRRORED_TYPE: Final = re.compile(r"node_[0-9a-f]{56}")
_KUBERAY_LABELS: Final = (
    "ray.io/cluster",
    "ray.io/group",
    "ray.io/identifier",
    "ray.io/is-ray-node",
    "ray.io/node-type",
)

_START_ONE: Final = "Start one: grid cluster start   (or put grid into a running one: grid start --address HOST:PORT)"
_ONLY_RESERVE: Final = (
    "Set resource_sharing.delivery: reserve in the configuration and ask for no --delivery transfer; "
    "reservations work here."
)


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result; shown to people as it stands."""

    check: str
    status: Status
    detail: str
    what_to_do: str = ""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The Python that `grid` runs in."""

    python: str
    executable: str
    ray: str | None
    ray_error: str = ""


@dataclass(frozen=True, slots=True)
class HomeFacts:
    """`GRID_HOME`. Without `exists`, all but `path` is about the folder in which it would be created."""

    path: str
    exists: bool
    error: str = ""
    """Why it cannot be written or created."""
    mode: int = 0o700
    damaged: tuple[str, ...] = ()
    filesystem: str = ""
    mount_point: str = ""
    free_bytes: int | None = None
    token_mode: int | None = None


class ActorState(StrEnum):
    """What the Ray cluster says of the controller."""

    UNASKED = "unasked"
    ABSENT = "absent"
    SILENT = "silent"
    THERE = "there"


@dataclass(frozen=True, slots=True)
class ControllerFacts:
    """The controller that `controller.json` names, and the one that is in the Ray cluster."""

    recorded: bool = False
    record_error: str = ""
    url: str = ""
    ray_address: str = ""
    health_error: str = ""
    token_error: str = ""
    actor: ActorState = ActorState.UNASKED
    actor_url: str = ""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One live raylet. What only the node itself can tell is there if it answered."""

    name: str
    is_head: bool
    answered: bool
    python: str = ""
    ray: str = ""
    home: str = ""
    home_writable: bool = True
    clock_offset_s: float | None = None
    """Its clock minus the clock of the machine that looked, give or take half of the round trip."""
    round_trip_s: float = 0.0
    report_period_ms: str = ""


@dataclass(frozen=True, slots=True)
class ResizeFacts:
    """A harmless resource, grown to 1 and back to 0 on the head; the last replies, and when everybody saw it."""

    grown_to: float | None = None
    back_to: float | None = None
    error: str = ""
    lags_s: tuple[float, ...] = ()
    unseen: bool = False
    """The cluster's view did not show a change in time."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A tiny placement group, pinned to one node by label."""

    node: str = ""
    bundle: str = ""
    landed_on: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class AutoscalerFacts:
    """What the cluster's control service knows about an autoscaler."""

    node_types: tuple[str, ...] = ()
    """The types that a first-generation autoscaler reports its nodes to be."""
    instance_types: tuple[str, ...] = ()
    """The types that the nodes themselves were started as."""
    reports_state: bool = False
    """A second-generation autoscaler reports, which one without a provider does too."""
    has_config: bool = False


class Trouble(StrEnum):
    """Why a cluster is not reached."""

    ADDRESS = "address"
    NOBODY = "nobody"
    SILENT = "silent"
    NOT_RAY = "not ray"
    TOKEN = "token"
    VERSIONS = "versions"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The Ray cluster. A part that is None was not looked at: `errors` says why, or the cluster is not reached."""

    address: str
    address_from: str
    trouble: Trouble | None = None
    error: str = ""
    stuck_at: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)
    patience_s: float = 0.0
    """How long each node was waited for."""
    nodes: tuple[NodeFacts, ...] | None = None
    missing: tuple[str, ...] = ()
    naming_problems: tuple[str, ...] = ()
    resize: ResizeFacts | None = None
    group: GroupFacts | None = None
    token_auth: bool | None = None
    head_env: Mapping[str, str] | None = None
    head_labels: Mapping[str, str] = field(default_factory=dict)
    autoscaler: AutoscalerFacts | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    machine: MachineFacts
    home: HomeFacts
    controller: ControllerFacts
    cluster: ClusterFacts | None
    """None: there is no address to look at."""


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """Every check's result, in the order in which a person would go through them."""
    return (
        _python(facts.machine),
        _ray(facts.machine),
        *_home(facts.home),
        _controller(facts.controller, facts.cluster),
        _cluster(facts.machine, facts.cluster),
        *_inside(facts.machine, facts.cluster),
    )


def is_shared(filesystem: str) -> bool:
    """Whether other machines may write there at the same time."""
    return filesystem in _SHARED_FILESYSTEMS or filesystem.startswith("fuse.")


def ray_is_suitable(version: str | None) -> bool:
    return version is not None and _numbers(version) >= OLDEST_RAY


# This machine


def _python(machine: MachineFacts) -> Finding:
    found = f"Python {machine.python} ({machine.executable})"
    if _numbers(machine.python) < OLDEST_PYTHON:
        return Finding(
            "python",
            Status.FAIL,
            f"{found}: grid needs 3.11 or newer",
            "Install Python 3.11 or newer and distributed-grid into it; the cluster's nodes need the same version.",
        )
    return Finding("python", Status.OK, found)


def _ray(machine: MachineFacts) -> Finding:
    install = f"{machine.executable} -m pip install --upgrade 'ray[default]>=2.55'"
    if machine.ray is None:
        return Finding("ray", Status.FAIL, f"Ray cannot be imported: {machine.ray_error or 'it is missing'}", install)
    if not ray_is_suitable(machine.ray):
        return Finding(
            "ray",
            Status.FAIL,
            f"Ray {machine.ray} is too old: grid needs 2.55 or newer, which can change a running node's resources",
            f"{install}   (on every node, then restart the cluster)",
        )
    return Finding("ray", Status.OK, f"Ray {machine.ray}")


def _home(home: HomeFacts) -> Iterator[Finding]:
    yield _home_folder(home)
    yield _filesystem(home)
    yield _token_file(home)
    yield _disk(home)


def _home_folder(home: HomeFacts) -> Finding:
    if home.error:
        return Finding(
            "home", Status.FAIL, f"{home.path}: {home.error}", "Set GRID_HOME to a folder that you can write."
        )
    if home.damaged:
        return Finding(
            "home",
            Status.FAIL,
            f"{home.path}: " + "; ".join(home.damaged),
            "Stop what still runs (grid cluster stop, or by hand), then remove the damaged file.",
        )
    if not home.exists:
        return Finding("home", Status.OK, f"{home.path} is not there yet; it can be created")
    mode = f"{home.path} is writable, mode {home.mode:04o}"
    if home.mode & 0o022:
        return Finding("home", Status.FAIL, f"{mode}: others can change grid's state", f"chmod 700 {home.path}")
    if home.mode & 0o077:
        return Finding("home", Status.WARN, f"{mode}: others can look into it", f"chmod 700 {home.path}")
    return Finding("home", Status.OK, mode)


def _filesystem(home: HomeFacts) -> Finding:
    check = "home filesystem"
    if not home.filesystem:
        return Finding(check, Status.SKIP, f"it is not known what {home.path} is on")
    where = f"{home.filesystem} at {home.mount_point}"
    if is_shared(home.filesystem):
        return Finding(
            check,
            Status.WARN,
            f"{where} is shared between machines: a lock may not keep a second writer out, "
            "and fsync may not have written when it says so",
            "Set GRID_HOME to a folder on a local disk of the head node.",
        )
    return Finding(check, Status.OK, f"{where} is local")


def _token_file(home: HomeFacts) -> Finding:
    path = f"{home.path}/token"
    if home.token_mode is None:
        return Finding("token file", Status.SKIP, f"{path} is made when the controller first starts")
    if home.token_mode & 0o077:
        return Finding(
            "token file",
            Status.FAIL,
            f"{path} has mode {home.token_mode:04o}: who reads it can give and take capacity",
            f"chmod 600 {path}   (and if others could log in meanwhile: remove it and start grid again)",
        )
    return Finding("token file", Status.OK, f"{path} has mode {home.token_mode:04o}")


def _disk(home: HomeFacts) -> Finding:
    if home.free_bytes is None:
        return Finding("disk space", Status.SKIP, f"it is not known how much is free for {home.path}")
    free = f"{home.free_bytes / _GB:.1f} GB free for {home.path}"
    if home.free_bytes >= _DISK_WARN:
        return Finding("disk space", Status.OK, free)
    status = Status.FAIL if home.free_bytes < _DISK_FAIL else Status.WARN
    return Finding(
        "disk space",
        status,
        f"{free}: without space nothing can be granted, since every change is written down first",
        f"Make room on {home.mount_point or home.path}, or set GRID_HOME to a folder elsewhere.",
    )


# The controller


def _controller(controller: ControllerFacts, cluster: ClusterFacts | None) -> Finding:
    if controller.record_error:
        return Finding(
            "controller",
            Status.FAIL,
            f"controller.json cannot be read: {controller.record_error}",
            "Remove controller.json, then start again: grid cluster stop && grid cluster start",
        )
    if not controller.recorded:
        return _unrecorded(controller, cluster)
    at = f"the controller at {controller.url}"
    if controller.health_error:
        gone = cluster is not None and cluster.trouble is Trouble.NOBODY and cluster.address == controller.ray_address
        return Finding(
            "controller",
            Status.FAIL,
            f"{at} does not answer: {controller.health_error}"
            + (f"; its Ray cluster at {controller.ray_address} is gone too" if gone else ""),
            _START_ONE if gone else f"grid start --address {controller.ray_address}   (on the head node)",
        )
    if controller.token_error:
        return Finding(
            "controller",
            Status.FAIL,
            f"{at} answers, but not to the token of this GRID_HOME: {controller.token_error}",
            "Run grid as the user who started it and with the same GRID_HOME, or start it again: grid cluster start",
        )
    return _controller_in_ray(controller, cluster, at)


def _unrecorded(controller: ControllerFacts, cluster: ClusterFacts | None) -> Finding:
    if controller.actor in (ActorState.THERE, ActorState.SILENT):
        where = f" at {controller.actor_url}" if controller.actor_url else ""
        return Finding(
            "controller",
            Status.WARN,
            f"grid is in the Ray cluster{where}, but was not started from this GRID_HOME",
            "Set GRID_HOME to the folder that it was started with, on the head node.",
        )
    if cluster is None or cluster.trouble:
        return Finding("controller", Status.SKIP, "no controller was started from this GRID_HOME", _START_ONE)
    return Finding(
        "controller",
        Status.SKIP,
        f"grid is not in the Ray cluster at {cluster.address} yet",
        f"On the head node: grid start --address {cluster.address}",
    )


def _controller_in_ray(controller: ControllerFacts, cluster: ClusterFacts | None, at: str) -> Finding:
    if cluster is None or controller.actor is ActorState.UNASKED:
        return Finding("controller", Status.WARN, f"{at} answers; its Ray cluster could not be asked about it")
    if controller.actor is ActorState.THERE and controller.actor_url == controller.url:
        return Finding("controller", Status.OK, f"{at} answers, takes the token, and is in the Ray cluster")
    if cluster.address != controller.ray_address:
        return Finding(
            "controller",
            Status.WARN,
            f"{at} answers, but is in the Ray cluster at {controller.ray_address}; this is {cluster.address}",
            "Leave --address out to check the controller's own cluster.",
        )
    said = {
        ActorState.ABSENT: f"the Ray cluster at {cluster.address} has no controller",
        ActorState.SILENT: f"the controller actor in the Ray cluster at {cluster.address} does not answer",
        ActorState.THERE: f"the Ray cluster at {cluster.address} has another one, at {controller.actor_url}",
    }[controller.actor]
    return Finding(
        "controller",
        Status.FAIL,
        f"{at} answers, but {said}",
        f"grid stop, then: grid start --address {cluster.address}   (on the head node)",
    )


# The cluster


def _cluster(machine: MachineFacts, cluster: ClusterFacts | None) -> Finding:
    check = "ray cluster"
    if cluster is None:
        return Finding(
            check, Status.SKIP, "no --address, no controller, no embedded cluster, no RAY_ADDRESS", _START_ONE
        )
    where = f"{cluster.address} (from {cluster.address_from})"
    if not ray_is_suitable(machine.ray):
        return Finding(check, Status.SKIP, f"{where} cannot be looked at without a suitable Ray here")
    if cluster.trouble:
        return Finding(check, Status.FAIL, f"{where}: {cluster.error}", _HOW_TO_REACH[cluster.trouble])
    if check in cluster.errors:
        return _not_looked_at(check, cluster)
    if cluster.stuck_at:
        return Finding(
            check,
            Status.FAIL,
            f"{where} answers, but looking at it did not end in time; it hung at: {cluster.stuck_at}",
            "Look at the head's gcs_server.out and raylet.out in /tmp/ray/session_latest/logs, then try again.",
        )
    count = len(cluster.nodes or ())
    answers = f"{where} answers, with {count} live node{'' if count == 1 else 's'}"
    if cluster.missing or cluster.naming_problems:
        wrong = [f"{name} is configured but not there" for name in cluster.missing] + [*cluster.naming_problems]
        return Finding(
            check,
            Status.WARN,
            f"{answers}; " + "; ".join(wrong),
            f"Start Ray on the missing nodes: ray start --address {cluster.address} --labels grid/name=NAME",
        )
    return Finding(check, Status.OK, answers)


_HOW_TO_REACH: Final = {
    Trouble.ADDRESS: "Give HOST:PORT of the head's control service (ray start --port, 6379 if not said), or auto.",
    Trouble.NOBODY: "If it was stopped: grid cluster start. Else see where it is with `ray status` on the head.",
    Trouble.SILENT: "See whether the head has CPU time and memory to spare, and its gcs_server.out in "
    "/tmp/ray/session_latest/logs.",
    Trouble.NOT_RAY: "Give the port of the head's control service (ray start --port, 6379 if not said).",
    Trouble.TOKEN: "Set RAY_AUTH_MODE=token, and put the head's ~/.ray/auth_token into the same place here.",
    Trouble.VERSIONS: "Run grid with the very Python and Ray that the cluster was started with.",
    Trouble.OTHER: "Run it on a machine of that cluster, with the Python and Ray that it runs.",
}


_INSIDE: Final = ("nodes", "resize", "reservations", "authentication", "autoscaler", "kuberay", "view lag")


def _inside(machine: MachineFacts, cluster: ClusterFacts | None) -> Iterator[Finding]:
    """What can be said only of a cluster that was reached."""
    if cluster is None or cluster.trouble or not ray_is_suitable(machine.ray):
        for check in _INSIDE:
            yield Finding(check, Status.SKIP, "there is no Ray cluster to ask")
        return
    if cluster.nodes is None:
        yield _not_looked_at("nodes", cluster)
    else:
        head = next((node for node in cluster.nodes if node.is_head and node.answered), None)
        for node in cluster.nodes:
            yield _node(node, head, machine, cluster.patience_s)
    yield _resize(cluster)
    yield _group(cluster)
    yield _authentication(cluster)
    yield _autoscaler(cluster)
    yield _kuberay(cluster)
    yield _view_lag(cluster)


def _not_looked_at(check: str, cluster: ClusterFacts) -> Finding:
    if check in cluster.errors:
        return Finding(
            check,
            Status.FAIL,
            f"it could not be checked: {cluster.errors[check]}",
            "Try again; if it stays, look into /tmp/ray/session_latest/logs on the head.",
        )
    return Finding(check, Status.SKIP, "it was not reached: something before it did not end, or did not answer")


@dataclass(frozen=True, slots=True)
class _Remark:
    status: Status
    text: str
    what_to_do: str = ""


def _node(node: NodeFacts, head: NodeFacts | None, machine: MachineFacts, patience_s: float) -> Finding:
    check = f"node {node.name}"
    if not node.answered:
        return Finding(
            check,
            Status.FAIL,
            f"{node.name} is in the cluster, but ran nothing for us within {patience_s:.0f} s",
            f"On {node.name}: see raylet.out in /tmp/ray/session_latest/logs; is its Python and Ray that of the head?",
        )
    remarks = (
        _python_of(node, head.python if head else machine.python),
        _ray_of(node, (head.ray if head else machine.ray) or node.ray),
        _clock_of(node, head),
        _home_of(node),
    )
    # The worst comes first: it is what a person is to read.
    ordered = sorted(remarks, key=lambda remark: _SEVERITY.index(remark.status))
    return Finding(
        check,
        ordered[0].status,
        "; ".join(remark.text for remark in ordered),
        " ".join(remark.what_to_do for remark in ordered if remark.what_to_do),
    )


_SEVERITY: Final = (Status.FAIL, Status.WARN, Status.SKIP, Status.OK)


def _python_of(node: NodeFacts, expected: str) -> _Remark:
    if _numbers(node.python)[:2] != _numbers(expected)[:2]:
        return _Remark(
            Status.FAIL,
            f"Python {node.python}, and {expected} on the head: Ray refuses that",
            f"Install Python {expected} on {node.name} and start Ray there again.",
        )
    if node.python != expected:
        return _Remark(
            Status.WARN,
            f"Python {node.python}, and {expected} on the head: drivers started there may be refused",
            f"Install Python {expected} on {node.name}.",
        )
    return _Remark(Status.OK, f"Python {node.python}")


def _ray_of(node: NodeFacts, expected: str) -> _Remark:
    if node.ray == expected:
        return _Remark(Status.OK, f"Ray {node.ray}")
    return _Remark(
        Status.FAIL,
        f"Ray {node.ray}, and {expected} on the head",
        f"On {node.name}: pip install 'ray[default]=={expected}', then start Ray there again.",
    )


def _clock_of(node: NodeFacts, head: NodeFacts | None) -> _Remark:
    if node.clock_offset_s is None:
        return _Remark(Status.SKIP, "clock not measured")
    if head is None or head.clock_offset_s is None:
        offset, doubt, against = node.clock_offset_s, node.round_trip_s / 2, "this machine's"
    else:
        offset = node.clock_offset_s - head.clock_offset_s
        doubt, against = (node.round_trip_s + head.round_trip_s) / 2, "the head's"
    if node is head:
        return _Remark(Status.OK, "clock is the one that counts")
    # Only what cannot be the time that the question took.
    certain = abs(offset) - doubt
    text = f"clock {offset:+.3f} s from {against} (±{doubt:.3f} s)"
    if certain <= _SKEW_WARN_S:
        return _Remark(Status.OK, text)
    return _Remark(
        Status.FAIL if certain > _SKEW_FAIL_S else Status.WARN,
        f"{text}: times in events and expiry will not fit together",
        f"On {node.name}: timedatectl set-ntp true",
    )


def _home_of(node: NodeFacts) -> _Remark:
    if node.home_writable:
        return _Remark(Status.OK, f"home {node.home} is writable")
    return _Remark(
        Status.WARN,
        f"home {node.home} is not writable: what runs there cannot keep files",
        f"On {node.name}: start Ray as a user who owns their home folder.",
    )


def _resize(cluster: ClusterFacts) -> Finding:
    found = cluster.resize
    if found is None:
        return _not_looked_at("resize", cluster)
    if found.error:
        return Finding(
            "resize",
            Status.FAIL,
            f"a node's resources cannot be changed: {found.error}",
            f"Install Ray 2.55 or newer on every node and restart the cluster. Until then: {_ONLY_RESERVE}",
        )
    if found.grown_to != 1.0 or found.back_to != 0.0:
        return Finding(
            "resize",
            Status.FAIL,
            f"grid:doctor on the head was to become 1 and then 0, but became {found.grown_to} and {found.back_to}",
            "Something else resizes nodes; find it before lending. " + _ONLY_RESERVE,
        )
    return Finding("resize", Status.OK, "grid:doctor on the head became 1 and then 0 again, as the replies say")


def _group(cluster: ClusterFacts) -> Finding:
    check, found = "reservations", cluster.group
    if found is None:
        return _not_looked_at(check, cluster)
    if not found.node:
        return Finding(
            check,
            Status.SKIP,
            "no node has 0.01 CPU or 1 byte of memory free for a trial",
            "Try again when something is free.",
        )
    tried = f"a placement group of {found.bundle} for {found.node} by label"
    if found.error:
        return Finding(
            check,
            Status.FAIL,
            f"{tried} failed: {found.error}",
            "See gcs_server.out in /tmp/ray/session_latest/logs on the head; GPUs cannot be lent until this works.",
        )
    if found.landed_on != found.node:
        return Finding(
            check,
            Status.FAIL,
            f"{tried} landed on {found.landed_on}",
            "Restart the cluster with one Ray version everywhere: label selectors are ignored.",
        )
    return Finding(check, Status.OK, f"{tried} was made there and removed")


def _authentication(cluster: ClusterFacts) -> Finding:
    check = "authentication"
    if cluster.token_auth is None:
        return _not_looked_at(check, cluster)
    if cluster.token_auth:
        return Finding(check, Status.OK, "Ray asks for a token (RAY_AUTH_MODE=token)")
    host = cluster.address.rpartition(":")[0]
    who = "every user of this machine" if _is_loopback(host) else f"anyone who reaches the Ray ports of {host}"
    return Finding(
        check,
        Status.WARN,
        f"off: {who} can run code on all nodes",
        "On the head: ray get-auth-token --generate. Copy ~/.ray/auth_token to the other nodes, set "
        "RAY_AUTH_MODE=token everywhere (for grid too), and restart the cluster.",
    )


def _autoscaler(cluster: ClusterFacts) -> Finding:
    found = cluster.autoscaler
    if found is None:
        return _not_looked_at("autoscaler", cluster)
    types = sorted({kind for kind in found.node_types if not _MIRRORED_TYPE.fullmatch(kind)})
    if found.reports_state:
        types = sorted({*types, *found.instance_types})
    if not types and not found.has_config:
        return Finding("autoscaler", Status.OK, "no Ray autoscaler adds or removes nodes")
    named = f" ({', '.join(types)})" if types else ""
    return Finding(
        "autoscaler",
        Status.FAIL,
        f"a Ray autoscaler is active{named}: a node that lent its capacity by transfer looks idle and may be removed",
        _ONLY_RESERVE,
    )


def _kuberay(cluster: ClusterFacts) -> Finding:
    signs = [label for label in _KUBERAY_LABELS if label in cluster.head_labels]
    env = cluster.head_env
    if env is None and not signs:
        return _not_looked_at("kuberay", cluster)
    env = env or {}
    if "KUBERNETES_SERVICE_HOST" in env and "RAY_CLUSTER_NAME" in env:
        signs.append(f"RAY_CLUSTER_NAME={env['RAY_CLUSTER_NAME']}")
    if "RAY_USAGE_STATS_KUBERAY_IN_USE" in env:
        signs.append("RAY_USAGE_STATS_KUBERAY_IN_USE")
    if not signs:
        return Finding("kuberay", Status.OK, "the head is not run by KubeRay")
    return Finding(
        "kuberay",
        Status.FAIL,
        f"KubeRay runs this cluster ({', '.join(signs)}): its in-place pod resizing uses the same call as transfers, "
        "so each would undo the other",
        _ONLY_RESERVE,
    )


def _view_lag(cluster: ClusterFacts) -> Finding:
    found = cluster.resize
    if found is None:
        return _not_looked_at("view lag", cluster)
    periods = _periods(cluster.nodes or ())
    if found.unseen:
        return Finding(
            "view lag",
            Status.WARN,
            f"the cluster's view did not show a resize in time; {periods}",
            "Look for a head without CPU time to spare: grants wait until the view shows what was taken.",
        )
    if not found.lags_s:
        return Finding("view lag", Status.SKIP, "nothing was resized, so nothing was measured")
    median = sorted(found.lags_s)[len(found.lags_s) // 2]
    figure = (
        f"a resize shows in the cluster's view after {median * 1000:.0f} ms (median of {len(found.lags_s)}); {periods}"
    )
    if median <= _LAG_WARN_S:
        return Finding("view lag", Status.OK, figure)
    return Finding(
        "view lag",
        Status.WARN,
        f"{figure}; every grant waits that long",
        f"Start every node with {REPORT_PERIOD}=10, and see that the head has CPU time to spare.",
    )


def _periods(nodes: Sequence[NodeFacts]) -> str:
    answered = [node for node in nodes if node.answered]
    stock = [node.name for node in answered if not node.report_period_ms]
    if not stock and answered:
        periods = ", ".join(sorted({node.report_period_ms for node in answered}))
        return f"nodes report every {periods} ms"
    who = "nodes report" if len(stock) == len(answered) else f"{', '.join(stock)} report"
    return f"{who} every 100 ms; grants are faster with {REPORT_PERIOD}=10 there"


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host in ("localhost", "::1", "[::1]")


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers: 3.0.0.dev0 is (3, 0, 0)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
