"""Every node for itself: whether it answers, and fits the head."""

from typing import Final

from distributed_grid.decide.diagnosis.finding import Finding, Status, fail, not_looked_at, ok, skip, warn
from distributed_grid.decide.versions import numbers
from distributed_grid.model.checkup_facts import ClusterFacts, MachineFacts, NodeFacts

_SKEW_WARN_S: Final = 1.0
_SKEW_FAIL_S: Final = 10.0
_WORST_FIRST: Final = (Status.FAIL, Status.WARN, Status.SKIP, Status.OK)


def fit_the_head(cluster: ClusterFacts, machine: MachineFacts) -> tuple[Finding, ...]:
    """One finding for each node. Where the head is silent, the others are compared with this machine."""
    if cluster.nodes is None:
        return (not_looked_at("nodes", cluster),)
    return tuple(_node(node, cluster, machine) for node in cluster.nodes)


def _node(node: NodeFacts, cluster: ClusterFacts, machine: MachineFacts) -> Finding:
    check, head = f"node {node.name}", cluster.head
    if not node.answered:
        return fail(
            check,
            f"{node.name} is in the cluster, but ran nothing for us within {cluster.patience_s:.0f} s",
            f"On {node.name}: see raylet.out in /tmp/ray/session_latest/logs; is its Python and Ray that of the head?",
        )
    remarks = sorted(
        (
            _python(check, node, (head or machine).python),
            _ray(check, node, (head or machine).ray or node.ray),
            _clock(check, node, head),
            _home(check, node),
        ),
        key=lambda remark: _WORST_FIRST.index(remark.status),
    )
    return Finding(
        check,
        remarks[0].status,
        "; ".join(remark.detail for remark in remarks),
        " ".join(remark.what_to_do for remark in remarks if remark.what_to_do),
    )


def _python(check: str, node: NodeFacts, expected: str) -> Finding:
    differs = f"Python {node.python}, and {expected} on the head"
    if numbers(node.python)[:2] != numbers(expected)[:2]:
        return fail(
            check,
            f"{differs}: Ray refuses that",
            f"Install Python {expected} on {node.name} and start Ray there again.",
        )
    if node.python != expected:
        return warn(
            check,
            f"{differs}: drivers started there may be refused",
            f"Install Python {expected} on {node.name}.",
        )
    return ok(check, f"Python {node.python}")


def _ray(check: str, node: NodeFacts, expected: str) -> Finding:
    if node.ray != expected:
        return fail(
            check,
            f"Ray {node.ray}, and {expected} on the head",
            f"On {node.name}: pip install 'ray[default]=={expected}', then start Ray there again.",
        )
    return ok(check, f"Ray {node.ray}")


def _clock(check: str, node: NodeFacts, head: NodeFacts | None) -> Finding:
    if node.clock_offset_s is None:
        return skip(check, "clock not measured")
    if node is head:
        return ok(check, "clock is the one that counts")
    if head is None or head.clock_offset_s is None:
        offset, doubt, against = node.clock_offset_s, node.round_trip_s / 2, "this machine's"
    else:
        offset = node.clock_offset_s - head.clock_offset_s
        doubt, against = (node.round_trip_s + head.round_trip_s) / 2, "the head's"
    text = f"clock {offset:+.3f} s from {against} (±{doubt:.3f} s)"
    # Only what cannot be the time that the question took.
    certain = abs(offset) - doubt
    if certain <= _SKEW_WARN_S:
        return ok(check, text)
    say = fail if certain > _SKEW_FAIL_S else warn
    return say(
        check,
        f"{text}: times in events and expiry will not fit together",
        f"On {node.name}: timedatectl set-ntp true",
    )


def _home(check: str, node: NodeFacts) -> Finding:
    if not node.home_writable:
        return warn(
            check,
            f"home {node.home} is not writable: what runs there cannot keep files",
            f"On {node.name}: start Ray as a user who owns their home folder.",
        )
    return ok(check, f"home {node.home} is writable")
