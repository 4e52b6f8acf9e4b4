"""Snapshots from what nodes show and what their probes answer; a node whose probe is silent is stale."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.monitoring.pressure import pressure_of
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import Node, NodeId, NodeName, NodeTable
from distributed_grid.model.snapshots import NodeSnapshot, Reading

Answers = Mapping[NodeId, Reading | str]
"""Each probe's answer, or why there is none."""


def take_snapshots(
    nodes: NodeTable,
    leases: Iterable[Lease],
    answers: Answers,
    before: Mapping[NodeName, NodeSnapshot],
    *,
    now: datetime,
    start_grace: timedelta,
    one_machine: bool = False,
) -> dict[NodeName, NodeSnapshot]:
    """One snapshot per live node. A node that is gone has none: it disappears, it does not become idle.

    `start_grace`: how long a node may be there without its first reading before it counts as stale. `one_machine`: all
    nodes are known to run on the same machine.
    """
    usage = Usage.of(tuple(leases))
    hosts = Counter(node.machine for node in nodes.alive)
    return {
        node.name: _snapshot(
            node,
            usage,
            answers,
            before.get(node.name),
            shares=one_machine or hosts[node.machine] > 1,
            now=now,
            grace=start_grace,
        )
        for node in nodes.alive
    }


def _snapshot(
    node: Node,
    usage: Usage,
    answers: Answers,
    before: NodeSnapshot | None,
    *,
    shares: bool,
    now: datetime,
    grace: timedelta,
) -> NodeSnapshot:
    if before is not None and before.node_id != node.node_id:
        before = None  # the same name, another raylet: the old measurements do not apply
    seen_since = before.seen_since if before is not None and before.seen_since is not None else now
    taken = NodeSnapshot(
        name=node.name,
        node_id=node.node_id,
        taken_at=now,
        base=node.base,
        total=node.total,
        free=node.free.at_least_zero(),
        lent=usage.lent_by(node.name),
        borrowed=usage.borrowed_by(node.name),
        shares_its_host=shares,
        seen_since=min(seen_since, now),
    )
    answer = answers.get(node.node_id, "its probe has not been read")
    if isinstance(answer, Reading):
        pressure = pressure_of(answer, node.total, shares_its_host=shares)
        return replace(taken, measured=answer, measured_at=now, pressure=pressure)
    if before is not None and before.measured is not None:
        old = replace(taken, measured=before.measured, measured_at=before.measured_at, pressure=before.pressure)
        return replace(old, stale=True, stale_because=answer)
    never = now - taken.seen_since > grace if taken.seen_since else False
    return replace(taken, stale=never, stale_because=answer if never else "")
