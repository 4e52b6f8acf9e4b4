"""Checks of the nodes: whether each answers and matches the head, and what else acts on the cluster."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from distributed_grid.decide.diagnosis.checks import ONLY_RESERVE, not_looked_at, numbers
from distributed_grid.model.checkup_facts import VISIBLE_DEVICES, ClusterFacts, MachineFacts, NodeFacts
from distributed_grid.model.findings import Code, Finding, Severity, fail, ok, skip, warn

_SKEW_WARN_S: Final = 1.0
_SKEW_FAIL_S: Final = 10.0
_WORST_FIRST: Final = (Severity.FAIL, Severity.WARN, Severity.SKIP, Severity.OK)


def fit_the_head(cluster: ClusterFacts, machine: MachineFacts) -> tuple[Finding, ...]:
    """One finding for each node. If the head does not answer, the nodes are compared with this machine."""
    if cluster.nodes is None:
        return (not_looked_at(Code.NODES, cluster),)
    return tuple(_node(node, cluster, machine) for node in cluster.nodes)


def _node(node: NodeFacts, cluster: ClusterFacts, machine: MachineFacts) -> Finding:
    head = cluster.head
    if not node.answered:
        return Finding(
            Code.NODES,
            node.name,
            f"{node.name} is in the cluster, but did not run a test task within {cluster.patience_s:.0f} s",
            f"On {node.name}: see raylet.out in /tmp/ray/session_latest/logs; it needs the Python and Ray of the head.",
        )
    remarks = sorted(
        (
            _python(node, (head or machine).python),
            _ray(node, (head or machine).ray or node.ray),
            _clock(node, head),
            _home(node),
        ),
        key=lambda remark: _WORST_FIRST.index(remark.severity),
    )
    return Finding(
        Code.NODES,
        node.name,
        "; ".join(remark.detail for remark in remarks),
        " ".join(remark.what_to_do for remark in remarks if remark.what_to_do),
        remarks[0].severity,
        node=node.name,
    )


def _python(node: NodeFacts, expected: str) -> Finding:
    differs = f"Python {node.python}, and {expected} on the head"
    if numbers(node.python)[:2] != numbers(expected)[:2]:
        return fail(
            Code.NODES,
            f"{differs}: Ray refuses that",
            f"Install Python {expected} on {node.name} and start Ray there again.",
        )
    if node.python != expected:
        return warn(
            Code.NODES,
            f"{differs}: drivers started there may be refused",
            f"Install Python {expected} on {node.name}.",
        )
    return ok(Code.NODES, f"Python {node.python}")


def _ray(node: NodeFacts, expected: str) -> Finding:
    if node.ray != expected:
        return fail(
            Code.NODES,
            f"Ray {node.ray}, and {expected} on the head",
            f"On {node.name}: pip install 'ray[default]=={expected}', then start Ray there again.",
        )
    return ok(Code.NODES, f"Ray {node.ray}")


def _clock(node: NodeFacts, head: NodeFacts | None) -> Finding:
    if node.clock_offset_s is None:
        return skip(Code.NODES, "clock not measured")
    if node is head:
        return ok(Code.NODES, "clock is the reference")
    if head is None or head.clock_offset_s is None:
        offset, doubt, against = node.clock_offset_s, node.round_trip_s / 2, "this machine's"
    else:
        offset = node.clock_offset_s - head.clock_offset_s
        doubt, against = (node.round_trip_s + head.round_trip_s) / 2, "the head's"
    text = f"clock {offset:+.3f} s from {against} (±{doubt:.3f} s)"
    # Count only what the round trip cannot explain.
    certain = abs(offset) - doubt
    if certain <= _SKEW_WARN_S:
        return ok(Code.NODES, text)
    say = fail if certain > _SKEW_FAIL_S else warn
    return say(
        Code.NODES,
        f"{text}: times of events and expiry will not agree",
        f"On {node.name}: timedatectl set-ntp true",
    )


def _home(node: NodeFacts) -> Finding:
    if not node.home_writable:
        return warn(
            Code.NODES,
            f"home {node.home} is not writable: what runs there cannot keep files",
            f"On {node.name}: start Ray as a user who owns their home folder.",
        )
    return ok(Code.NODES, f"home {node.home} is writable")


@dataclass(frozen=True, slots=True)
class VisibleGpus:
    """The GPU devices of a machine that one of its nodes hands out: those in `visible`, or the first ones."""

    node: str
    machine: str
    count: int
    visible: str | None = None

    @property
    def devices(self) -> tuple[str, ...]:
        named = tuple(map(str, range(self.count))) if self.visible is None else tuple(self.visible.split(","))
        return named[: self.count]


def shared_devices(owners: Iterable[VisibleGpus]) -> list[str]:
    """A sentence for each GPU device that several nodes of one machine hand out."""
    nodes_of: dict[tuple[str, str], list[str]] = {}
    for owner in owners:
        for device in owner.devices:
            nodes_of.setdefault((owner.machine, device), []).append(owner.node)
    return [
        f"{', '.join(nodes[:-1])} and {nodes[-1]} hand out the same GPU, device {device} of one machine: "
        "two programs can get it, and then share its memory"
        for (_, device), nodes in nodes_of.items()
        if len(nodes) > 1
    ]


def gpus(cluster: ClusterFacts) -> Finding:
    if cluster.nodes is None:
        return not_looked_at(Code.GPUS, cluster)
    found = [node for node in cluster.nodes if node.gpus and node.answered]
    real = [node for node in found if node.gpu_devices]
    visible = [VisibleGpus(node.name, node.machine, node.gpus, (node.env or {}).get(VISIBLE_DEVICES)) for node in real]
    if shared := shared_devices(visible):
        return warn(
            Code.GPUS,
            "; ".join(shared),
            f"Start each of these nodes with its own {VISIBLE_DEVICES}, or let one of them have no GPU (gpu_count: 0).",
        )
    if without := [node.name for node in found if node not in real]:
        return ok(Code.GPUS, f"the GPUs of {', '.join(without)} have no devices behind them, as on a test cluster")
    return ok(Code.GPUS, "every GPU is handed out by one node" if found else "no node has GPUs")


# The node type that a monitor without a provider gives to the nodes that it only mirrors.
_MIRRORED_TYPE: Final = re.compile(r"node_[0-9a-f]{56}")
_KUBERAY_LABELS: Final = (
    "ray.io/cluster",
    "ray.io/group",
    "ray.io/identifier",
    "ray.io/is-ray-node",
    "ray.io/node-type",
)


def authentication(cluster: ClusterFacts) -> Finding:
    check, head = Code.AUTHENTICATION, cluster.head
    if head is None or head.token_auth is None:
        return not_looked_at(check, cluster)
    if head.token_auth:
        return ok(check, "Ray requires a token (RAY_AUTH_MODE=token)")
    host = cluster.address.rpartition(":")[0]
    who = "every user of this machine" if _is_loopback(host) else f"anyone who reaches the Ray ports of {host}"
    return warn(
        check,
        f"off: {who} can run code on all nodes",
        "On the head: ray get-auth-token --generate. Copy ~/.ray/auth_token to the other nodes, set "
        "RAY_AUTH_MODE=token everywhere (for grid too), and restart the cluster.",
    )


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host.lower() in ("localhost", "::1", "[::1]")


def autoscaler(cluster: ClusterFacts) -> Finding:
    found = cluster.autoscaler
    if found is None:
        return not_looked_at(Code.AUTOSCALER, cluster)
    types = {kind for kind in found.node_types if not _MIRRORED_TYPE.fullmatch(kind)}
    if found.reports_state:
        types |= {*found.instance_types}
    if not types and not found.has_config:
        return ok(Code.AUTOSCALER, "no Ray autoscaler adds or removes nodes")
    named = f" ({', '.join(sorted(types))})" if types else ""
    return fail(
        Code.AUTOSCALER,
        f"a Ray autoscaler is active{named}: a node that lent its capacity by transfer looks idle and may be removed",
        ONLY_RESERVE,
    )


def kuberay(cluster: ClusterFacts) -> Finding:
    signs = [label for label in _KUBERAY_LABELS if label in cluster.head_labels]
    env = cluster.head.env if cluster.head else None
    if env is None and not signs:
        return not_looked_at(Code.KUBERAY, cluster)
    env = env or {}
    if "KUBERNETES_SERVICE_HOST" in env and "RAY_CLUSTER_NAME" in env:
        signs.append(f"RAY_CLUSTER_NAME={env['RAY_CLUSTER_NAME']}")
    if "RAY_USAGE_STATS_KUBERAY_IN_USE" in env:
        signs.append("RAY_USAGE_STATS_KUBERAY_IN_USE")
    if not signs:
        return ok(Code.KUBERAY, "the head is not run by KubeRay")
    return fail(
        Code.KUBERAY,
        f"KubeRay runs this cluster ({', '.join(signs)}): its in-place pod resizing uses the same call as transfers, "
        "so each would undo the other",
        ONLY_RESERVE,
    )
