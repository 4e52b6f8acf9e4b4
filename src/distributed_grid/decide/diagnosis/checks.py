"""Checks of the installation, of the controller, and of what was tried in the cluster; and what all checks share."""

import re
from collections.abc import Sequence
from typing import Final

from distributed_grid.model.checkup_facts import (
    REPORT_PERIOD,
    ActorState,
    ClusterFacts,
    ControllerFacts,
    MachineFacts,
    NodeFacts,
    Trouble,
)
from distributed_grid.model.findings import Code, Finding, fail, ok, skip, warn


def not_looked_at(check: Code, cluster: ClusterFacts) -> Finding:
    """The result for a part of the cluster without facts."""
    if check in cluster.errors:
        return fail(
            check,
            f"it could not be checked: {cluster.errors[check]}",
            "Retry; if it persists, see /tmp/ray/session_latest/logs on the head.",
        )
    return skip(check, "not checked: an earlier check timed out or got no answer")


START_ONE: Final = "Start one: grid cluster start   (or add grid to a running one: grid start --address HOST:PORT)"

ONLY_RESERVE: Final = (
    "Set resource_sharing.delivery: reserve in the configuration and ask for no --delivery transfer; "
    "reservations work here."
)

OLDEST_RAY: Final = "2.55"
"""The first version that can change a running node's resources."""

HOW_TO_REACH: Final = {
    Trouble.ADDRESS: "Give HOST:PORT of the head's control service (ray start --port; 6379 by default), or auto.",
    Trouble.NOTHING_THERE: "If it was stopped: grid cluster start. Else see `ray status` on the head.",
    Trouble.SILENT: "Check whether the head is short of CPU time or memory, and see its gcs_server.out in "
    "/tmp/ray/session_latest/logs.",
    Trouble.NOT_RAY: "Give the port of the head's control service (ray start --port; 6379 by default).",
    Trouble.TOKEN: "Set RAY_AUTH_MODE=token, and copy the head's ~/.ray/auth_token to the same path here.",
    Trouble.VERSIONS: "Run grid in an environment with the Python and Ray of the cluster. Grid needs Ray "
    f"{OLDEST_RAY} or newer: restart a cluster that has an older one with a newer Ray.",
    Trouble.ELSEWHERE: "Run it on a machine of that cluster; grid itself is started on the head.",
    Trouble.OTHER: "Run it on a machine of that cluster, with the Python and Ray that it runs.",
}


def is_new_enough(ray: str | None) -> bool:
    """Whether grid works with that version of Ray; False if Ray is missing."""
    return ray is not None and numbers(ray) >= numbers(OLDEST_RAY)


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers: 3.0.0.dev0 is (3, 0, 0)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


OLDEST_PYTHON: Final = "3.11"


def python(machine: MachineFacts) -> Finding:
    found = f"Python {machine.python} ({machine.executable})"
    if numbers(machine.python) < numbers(OLDEST_PYTHON):
        return fail(
            Code.PYTHON,
            f"{found}: grid needs {OLDEST_PYTHON} or newer",
            f"Install Python {OLDEST_PYTHON} or newer and distributed-grid into it; "
            "the cluster's nodes need the same version.",
        )
    return ok(Code.PYTHON, found)


def ray(machine: MachineFacts) -> Finding:
    install = f"{machine.executable} -m pip install --upgrade 'ray[default]>={OLDEST_RAY}'"
    if machine.ray is None:
        return fail(Code.RAY, f"Ray cannot be imported: {machine.ray_error or 'it is missing'}", install)
    if not is_new_enough(machine.ray):
        return fail(
            Code.RAY,
            f"Ray {machine.ray} is too old: grid needs {OLDEST_RAY} or newer, "
            "which can change a running node's resources",
            f"{install}   (on every node, then restart the cluster)",
        )
    return ok(Code.RAY, f"Ray {machine.ray}")


def ray_cluster(cluster: ClusterFacts | None, machine: MachineFacts) -> Finding:
    check = Code.RAY_CLUSTER
    if cluster is None:
        return skip(check, "no --address, no controller, no embedded cluster, no RAY_ADDRESS", START_ONE)
    where = f"{cluster.address} (from {cluster.address_from})"
    if not is_new_enough(machine.ray):
        return skip(check, f"{where} cannot be checked without a suitable Ray here")
    if cluster.unreached:
        return fail(check, f"{where}: {cluster.unreached.why}", HOW_TO_REACH[cluster.unreached.trouble])
    if check in cluster.errors:
        return not_looked_at(check, cluster)
    if cluster.stuck_at:
        return fail(
            check,
            f"{where} answers, but the check timed out; it hung at: {cluster.stuck_at}",
            "Look at the head's gcs_server.out and raylet.out in /tmp/ray/session_latest/logs, then try again.",
        )
    count = len(cluster.nodes or ())
    answers = f"{where} answers, with {count} live node{'' if count == 1 else 's'}"
    wrong = [*(f"{name} is configured but not in the cluster" for name in cluster.missing), *cluster.naming_problems]
    if wrong:
        return warn(
            check,
            f"{answers}; " + "; ".join(wrong),
            f"Start Ray on the missing nodes: ray start --address {cluster.address} --labels grid/name=NAME",
        )
    return ok(check, answers)


def controller(found: ControllerFacts, cluster: ClusterFacts | None) -> Finding:
    if found.record_error:
        return fail(
            Code.CONTROLLER,
            f"controller.json cannot be read: {found.record_error}",
            "Remove controller.json, then start again: grid cluster stop && grid cluster start",
        )
    if not found.recorded:
        return _unrecorded(found, cluster)
    at = f"the controller at {found.url}"
    if found.health_error:
        silent = f"{at} does not answer: {found.health_error}"
        if _its_cluster_is_gone(found, cluster):
            return fail(Code.CONTROLLER, f"{silent}; its Ray cluster at {found.ray_address} is gone too", START_ONE)
        return fail(Code.CONTROLLER, silent, f"grid start --address {found.ray_address}   (on the head node)")
    if found.token_error:
        return fail(
            Code.CONTROLLER,
            f"{at} answers, but not to the token of this GRID_HOME: {found.token_error}",
            "Run grid as the user who started it and with the same GRID_HOME, or start it again: grid cluster start",
        )
    return _in_ray(found, cluster, at)


def measured_use(found: ControllerFacts) -> Finding:
    """Use that Ray does not count: busy machines, and GPUs that other programs use."""
    if found.in_use is None:
        return skip(Code.MEASURED_USE, "there is no controller to ask")
    if not found.in_use:
        return ok(Code.MEASURED_USE, "no machine is too busy, and no GPU is in use outside Ray")
    return warn(
        Code.MEASURED_USE,
        "; ".join(found.in_use),
        "End programs that should not run there: a GPU in use is not lent, and a busy machine is slow.",
    )


def _its_cluster_is_gone(found: ControllerFacts, cluster: ClusterFacts | None) -> bool:
    if cluster is None or cluster.unreached is None or cluster.address != found.ray_address:
        return False
    return cluster.unreached.trouble is Trouble.NOTHING_THERE


def _unrecorded(found: ControllerFacts, cluster: ClusterFacts | None) -> Finding:
    if found.actor in (ActorState.THERE, ActorState.SILENT):
        where = f" at {found.actor_url}" if found.actor_url else ""
        return warn(
            Code.CONTROLLER,
            f"grid is in the Ray cluster{where}, but was not started from this GRID_HOME",
            "Set GRID_HOME to the folder that it was started with, on the head node.",
        )
    if cluster is None or cluster.unreached:
        return skip(Code.CONTROLLER, "no controller was started from this GRID_HOME", START_ONE)
    return skip(
        Code.CONTROLLER,
        f"grid is not in the Ray cluster at {cluster.address} yet",
        f"On the head node: grid start --address {cluster.address}",
    )


def _in_ray(found: ControllerFacts, cluster: ClusterFacts | None, at: str) -> Finding:
    """The cluster's report about a controller that answers properly itself."""
    if cluster is None or found.actor is ActorState.UNASKED:
        return warn(Code.CONTROLLER, f"{at} answers; its Ray cluster could not be asked about it")
    if found.problems and found.actor is ActorState.THERE and found.actor_url == found.url:
        return warn(
            Code.CONTROLLER,
            f"{at} answers, and reports: {'; '.join(found.problems)}",
            "Fix the problems that it reports.",
        )
    if found.actor is ActorState.THERE and found.actor_url == found.url:
        return ok(Code.CONTROLLER, f"{at} answers, accepts the token, and is in the Ray cluster")
    if cluster.address != found.ray_address:
        return warn(
            Code.CONTROLLER,
            f"{at} answers, but is in the Ray cluster at {found.ray_address}; this is {cluster.address}",
            "Leave --address out to check the controller's own cluster.",
        )
    said = {
        ActorState.ABSENT: f"the Ray cluster at {cluster.address} has no controller",
        ActorState.SILENT: f"the controller actor in the Ray cluster at {cluster.address} does not answer",
        ActorState.THERE: f"the Ray cluster at {cluster.address} has another one, at {found.actor_url}",
    }[found.actor]
    return fail(
        Code.CONTROLLER,
        f"{at} answers, but {said}",
        f"grid stop, then: grid start --address {cluster.address}   (on the head node)",
    )


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
            f"grid:doctor on the head should go to 1 and back to 0, but went to {found.grown_to} and {found.back_to}",
            f"Something else resizes nodes; find it before lending. {ONLY_RESERVE}",
        )
    return ok(Code.RESIZE, "grid:doctor on the head was set to 1 and back to 0, and Ray confirmed both")


def reservations(cluster: ClusterFacts) -> Finding:
    check, found = Code.RESERVATIONS, cluster.group
    if found is None:
        return not_looked_at(check, cluster)
    if not found.node:
        return skip(
            check, "no node has 0.01 CPU or 1 byte of memory free for a trial", "Try again when something is free."
        )
    tried = f"a placement group of {found.bundle}, pinned to {found.node} by label,"
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
    return ok(check, f"{tried} was created there and removed")


def view_lag(cluster: ClusterFacts) -> Finding:
    check, found = Code.VIEW_LAG, cluster.resize
    if found is None:
        return not_looked_at(check, cluster)
    periods = _periods(cluster.nodes or ())
    if found.unseen:
        return warn(
            check,
            f"the cluster's view did not show a resize in time; {periods}",
            "Check whether the head is short of CPU time: grants wait until the view shows the lender's smaller total.",
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
            f"Start every node with {REPORT_PERIOD}=10, and make sure that the head has CPU time to spare.",
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
