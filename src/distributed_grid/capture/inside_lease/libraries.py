"""Says of Ray's own libraries, when a program imports one, how far a lease in a placement group carries them."""

import sys
from typing import Final

from .reporting import Reports

_SIZED = "it takes the whole cluster for its own when it decides how much to do at once"
_WORKERS = "its workers are started by an actor of its own, in placement groups that are not in the lease"
_CLUSTER = "use --isolation cluster, where all of it is inside"

NOTED: Final = {
    "ray.data": f"Ray Data: {_SIZED}; what it starts from the program is in the lease; {_CLUSTER}",
    "ray.tune": f"Ray Tune: {_SIZED}; trials that fit are in the lease; {_CLUSTER}",
    "ray.train": f"Ray Train: {_WORKERS}; {_CLUSTER}",
    "ray.rllib": f"RLlib: {_WORKERS}; {_CLUSTER}",
    "ray.serve": f"Ray Serve: {_WORKERS}, and outlive the program; {_CLUSTER}",
    "ray.job_submission": "Ray jobs: a job that is submitted is another program, which runs outside of the lease",
}


class Libraries:
    """Hears of every import. Only a note: that work really escapes is reported when it does."""

    NOTED = NOTED

    def __init__(self, reports: Reports) -> None:
        self._reports = reports

    def imported(self, name: str) -> None:
        """Called from within the import system. What one library imports of another is not the program's choice."""
        if not _importer().startswith("ray."):
            what, _, why = NOTED[name].partition(": ")
            self._reports.note(f"{what} is imported", why)


def _importer() -> str:
    """The module in which the import statement is."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name not in (__name__, "sitecustomize") and not name.startswith("importlib"):
            return name
        frame = frame.f_back
    return ""
