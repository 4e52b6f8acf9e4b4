"""The finding for a part that was not looked at, and the advice that several checks share."""

from typing import Final

from distributed_grid.model.checkup_facts import ClusterFacts, Trouble
from distributed_grid.model.findings import Code, Finding, fail, skip


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
