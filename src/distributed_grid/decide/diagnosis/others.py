"""Who else can act on the cluster: strangers, an autoscaler, KubeRay."""

import re
from typing import Final

from distributed_grid.decide.diagnosis.advice import ONLY_RESERVE
from distributed_grid.decide.diagnosis.finding import Finding, fail, not_looked_at, ok, warn
from distributed_grid.model.checkup_facts import ClusterFacts

# What a monitor without a provider calls the nodes that it only mirrors.
_MIRRORED_TYPE: Final = re.compile(r"node_[0-9a-f]{56}")
_KUBERAY_LABELS: Final = (
    "ray.io/cluster",
    "ray.io/group",
    "ray.io/identifier",
    "ray.io/is-ray-node",
    "ray.io/node-type",
)


def authentication(cluster: ClusterFacts) -> Finding:
    check, head = "authentication", cluster.head
    if head is None or head.token_auth is None:
        return not_looked_at(check, cluster)
    if head.token_auth:
        return ok(check, "Ray asks for a token (RAY_AUTH_MODE=token)")
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
        return not_looked_at("autoscaler", cluster)
    types = {kind for kind in found.node_types if not _MIRRORED_TYPE.fullmatch(kind)}
    if found.reports_state:
        types |= {*found.instance_types}
    if not types and not found.has_config:
        return ok("autoscaler", "no Ray autoscaler adds or removes nodes")
    named = f" ({', '.join(sorted(types))})" if types else ""
    return fail(
        "autoscaler",
        f"a Ray autoscaler is active{named}: a node that lent its capacity by transfer looks idle and may be removed",
        ONLY_RESERVE,
    )


def kuberay(cluster: ClusterFacts) -> Finding:
    signs = [label for label in _KUBERAY_LABELS if label in cluster.head_labels]
    env = cluster.head.env if cluster.head else None
    if env is None and not signs:
        return not_looked_at("kuberay", cluster)
    env = env or {}
    if "KUBERNETES_SERVICE_HOST" in env and "RAY_CLUSTER_NAME" in env:
        signs.append(f"RAY_CLUSTER_NAME={env['RAY_CLUSTER_NAME']}")
    if "RAY_USAGE_STATS_KUBERAY_IN_USE" in env:
        signs.append("RAY_USAGE_STATS_KUBERAY_IN_USE")
    if not signs:
        return ok("kuberay", "the head is not run by KubeRay")
    return fail(
        "kuberay",
        f"KubeRay runs this cluster ({', '.join(signs)}): its in-place pod resizing uses the same call as transfers, "
        "so each would undo the other",
        ONLY_RESERVE,
    )
