"""Trials in the cluster: a resize, how soon the cluster's view shows it, and a reservation."""

from collections.abc import Sequence
from typing import Final

from distributed_grid.decide.diagnosis.finding import OLDEST_RAY, ONLY_RESERVE, not_looked_at
from distributed_grid.model.checkup_facts import REPORT_PERIOD, ClusterFacts, NodeFacts
from distributed_grid.model.findings import Code, Finding, fail, ok, skip, warn

_LAG_WARN_S: Final = 0.3


def resize(cluster: ClusterFacts) -> Finding:
    found = cluster.resize
    if found is None:
        return not_looked_at(Code.RESIZE, cluster)
    if found.error:
        return fail(
            Code.RESIZE,
            f"a node's resources cannot be changed: {found.error}",
            f"Install Ray {OLDEST_RAY} or newer on every node and restart the cluster. Until then: {ONLY_RESERVE}",
        )
    if found.grown_to != 1.0 or found.back_to != 0.0:
        return fail(
            Code.RESIZE,
            f"grid:doctor on the head should become 1 and then 0, but became {found.grown_to} and {found.back_to}",
            f"Something else resizes nodes; find it before lending. {ONLY_RESERVE}",
        )
    return ok(Code.RESIZE, "grid:doctor on the head became 1 and then 0 again, as the replies say")


def reservations(cluster: ClusterFacts) -> Finding:
    check, found = Code.RESERVATIONS, cluster.group
    if found is None:
        return not_looked_at(check, cluster)
    if not found.node:
        return skip(
            check, "no node has 0.01 CPU or 1 byte of memory free for a trial", "Try again when something is free."
        )
    tried = f"a placement group of {found.bundle} for {found.node} by label"
    if found.error:
        return fail(
            check,
            f"{tried} failed: {found.error}",
            "See gcs_server.out in /tmp/ray/session_latest/logs on the head; GPUs cannot be lent until this works.",
        )
    if found.landed_on != found.node:
        return fail(
            check,
            f"{tried} landed on {found.landed_on}",
            "Restart the cluster with one Ray version everywhere: label selectors are ignored.",
        )
    return ok(check, f"{tried} was made there and removed")


def view_lag(cluster: ClusterFacts) -> Finding:
    check, found = Code.VIEW_LAG, cluster.resize
    if found is None:
        return not_looked_at(check, cluster)
    periods = _periods(cluster.nodes or ())
    if found.unseen:
        return warn(
            check,
            f"the cluster's view did not show a resize in time; {periods}",
            "Look for a head without CPU time to spare: grants wait until the view shows what was taken.",
        )
    if not found.lags_s:
        return skip(check, "nothing was resized, so nothing was measured")
    median = sorted(found.lags_s)[len(found.lags_s) // 2]
    measured = (
        f"a resize shows in the cluster's view after {median * 1000:.0f} ms (median of {len(found.lags_s)}); {periods}"
    )
    if median > _LAG_WARN_S:
        return warn(
            check,
            f"{measured}; every grant waits that long",
            f"Start every node with {REPORT_PERIOD}=10, and see that the head has CPU time to spare.",
        )
    return ok(check, measured)


def _periods(nodes: Sequence[NodeFacts]) -> str:
    """How often the nodes report their resources, and which of them could report more often."""
    said = {node.name: (node.env or {}).get(REPORT_PERIOD) for node in nodes if node.answered}
    stock = [name for name, period in said.items() if not period]
    if said and not stock:
        return f"nodes report every {', '.join(sorted({period for period in said.values() if period}))} ms"
    who = "nodes report" if len(stock) == len(said) else f"{', '.join(stock)} report"
    return f"{who} every 100 ms; grants are faster with {REPORT_PERIOD}=10 there"
