"""What a check says, and the ways to say it."""

from dataclasses import dataclass
from enum import StrEnum

from distributed_grid.model.checkup_facts import ClusterFacts


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
    """What fails always says what to do."""
    return Finding(check, Status.FAIL, detail, what_to_do)


def skip(check: str, detail: str, what_to_do: str = "") -> Finding:
    return Finding(check, Status.SKIP, detail, what_to_do)


def not_looked_at(check: str, cluster: ClusterFacts) -> Finding:
    """A part of the cluster of which there are no facts."""
    if check in cluster.errors:
        return fail(
            check,
            f"it could not be checked: {cluster.errors[check]}",
            "Try again; if it stays, look into /tmp/ray/session_latest/logs on the head.",
        )
    return skip(check, "it was not reached: something before it did not end, or did not answer")
