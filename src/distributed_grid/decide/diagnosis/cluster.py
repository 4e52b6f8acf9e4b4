"""Whether there is a Ray cluster that answers, with all its nodes."""

from distributed_grid.decide.diagnosis.advice import HOW_TO_REACH, START_ONE
from distributed_grid.decide.diagnosis.finding import Finding, fail, not_looked_at, ok, skip, warn
from distributed_grid.decide.versions import is_new_enough
from distributed_grid.model.checkup_facts import ClusterFacts, MachineFacts


def is_reached(cluster: ClusterFacts | None, machine: MachineFacts) -> Finding:
    check = "ray cluster"
    if cluster is None:
        return skip(check, "no --address, no controller, no embedded cluster, no RAY_ADDRESS", START_ONE)
    where = f"{cluster.address} (from {cluster.address_from})"
    if not is_new_enough(machine.ray):
        return skip(check, f"{where} cannot be looked at without a suitable Ray here")
    if cluster.unreached:
        return fail(check, f"{where}: {cluster.unreached.why}", HOW_TO_REACH[cluster.unreached.trouble])
    if check in cluster.errors:
        return not_looked_at(check, cluster)
    if cluster.stuck_at:
        return fail(
            check,
            f"{where} answers, but looking at it did not end in time; it hung at: {cluster.stuck_at}",
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
