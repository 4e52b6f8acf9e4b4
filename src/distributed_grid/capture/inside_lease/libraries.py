"""Notes how far a lease in a placement group supports a Ray library, when a program imports one."""

import sys
from typing import Final

from .reporting import Reports

_WHOLE = "it takes the whole cluster for its own when it decides how much to do at once"
_CLUSTER = "--isolation cluster gives it a cluster that is the lease"
_OF_AN_ACTOR = "its workers are started by an actor of its own"
_NOT_INSIDE = f"{_OF_AN_ACTOR}, in placement groups outside of the lease; {_CLUSTER}"
_INSIDE = f"{_OF_AN_ACTOR}, and are in the lease if they fit; {_CLUSTER}"

NOTED: Final = {
    "ray.data": ("Ray Data", f"{_WHOLE}; its tasks are in the lease; {_CLUSTER}"),
    "ray.tune": ("Ray Tune", f"{_WHOLE}; trials are in the lease, and wait there for room; {_CLUSTER}"),
    "ray.train": ("Ray Train", _NOT_INSIDE),
    "ray.rllib": ("RLlib", _NOT_INSIDE),
    "ray.serve": ("Ray Serve", f"it may call applications that are there, but start and change none; {_CLUSTER}"),
    "ray.job_submission": ("Ray jobs", "a job that is submitted is another program, which runs outside of the lease"),
}


class Libraries:
    """Sees every import. It only adds a note; work that really escapes is reported when it does."""

    NOTED = NOTED

    def __init__(self, reports: Reports, *, workers: bool) -> None:
        self._reports = reports
        self._workers = workers

    def imported(self, name: str) -> None:
        """Called from within the import system. Imports of one library by another are not the program's choice."""
        if not _importer().startswith("ray."):
            library, why = NOTED[name]
            self._reports.note(f"{library} is imported", _INSIDE if why == _NOT_INSIDE and self._workers else why)


def _importer() -> str:
    """The module that contains the import statement."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name not in (__name__, "sitecustomize") and not name.startswith("importlib"):
            return name
        frame = frame.f_back
    return ""
