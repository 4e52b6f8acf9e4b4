"""The result of one check of `grid doctor`, and the advice that several checks share."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from distributed_grid.model.checkup_facts import ClusterFacts, Trouble


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


def ok(check: str, detail: str) -> Finding:
    return Finding(check, Status.OK, detail)


def warn(check: str, detail: str, what_to_do: str = "") -> Finding:
    return Finding(check, Status.WARN, detail, what_to_do)


def fail(check: str, detail: str, what_to_do: str) -> Finding:
    """A failed check always says what to do."""
    return Finding(check, Status.FAIL, detail, what_to_do)


def skip(check: str, detail: str, what_to_do: str = "") -> Finding:
    return Finding(check, Status.SKIP, detail, what_to_do)


def not_looked_at(check: str, cluster: ClusterFacts) -> Finding:
    """The result for a part of the cluster without facts."""
    if check in cluster.errors:
        return fail(
            check,
            f"it could not be checked: {cluster.errors[check]}",
            "Try again; if it stays, look into /tmp/ray/session_latest/logs on the head.",
        )
    return skip(check, "it was not reached: something before it did not end, or did not answer")


START_ONE: Final = "Start one: grid cluster start   (or put grid into a running one: grid start --address HOST:PORT)"

ONLY_RESERVE: Final = (
    "Set resource_sharing.delivery: reserve in the configuration and ask for no --delivery transfer; "
    "reservations work here."
)

HOW_TO_REACH: Final = {
    Trouble.ADDRESS: "Give HOST:PORT of the head's control service (ray start --port, 6379 if not said), or auto.",
    Trouble.NOBODY: "If it was stopped: grid cluster start. Else see where it is with `ray status` on the head.",
    Trouble.SILENT: "See whether the head has CPU time and memory to spare, and its gcs_server.out in "
    "/tmp/ray/session_latest/logs.",
    Trouble.NOT_RAY: "Give the port of the head's control service (ray start --port, 6379 if not said).",
    Trouble.TOKEN: "Set RAY_AUTH_MODE=token, and put the head's ~/.ray/auth_token into the same place here.",
    Trouble.VERSIONS: "Run grid with the very Python and Ray that the cluster was started with.",
    Trouble.ELSEWHERE: "Run it on a machine of that cluster; grid itself is started on the head.",
    Trouble.OTHER: "Run it on a machine of that cluster, with the Python and Ray that it runs.",
}
