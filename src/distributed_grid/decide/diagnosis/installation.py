"""Checks of the installation: versions of Python and Ray, and a Ray cluster that answers with all its nodes."""

import re
from typing import Final

from distributed_grid.decide.diagnosis.finding import HOW_TO_REACH, OLDEST_RAY, START_ONE, not_looked_at
from distributed_grid.model.checkup_facts import ClusterFacts, MachineFacts
from distributed_grid.model.findings import Code, Finding, fail, ok, skip, warn


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


def is_reached(cluster: ClusterFacts | None, machine: MachineFacts) -> Finding:
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
    wrong = [*(f"{name} is configured but not there" for name in cluster.missing), *cluster.naming_problems]
    if wrong:
        return warn(
            check,
            f"{answers}; " + "; ".join(wrong),
            f"Start Ray on the missing nodes: ray start --address {cluster.address} --labels grid/name=NAME",
        )
    return ok(check, answers)
