"""Ray's libraries in a lease: notes how far the lease supports each one, and keeps a run from deploying with Ray Serve.

Serve has one controller, which serves the whole cluster and outlives programs. A deployment would run outside of the
lease, stay after the run, and conflict with other programs. Calls to existing applications do no harm.
"""

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from .captured import Captured
from .reporting import Refusal, Reports

_WHOLE = "it plans for the whole cluster, not for the lease"
_CLUSTER = "with --isolation cluster, the lease is its whole cluster"
_OF_AN_ACTOR = "its workers are started by an actor of its own"
_NOT_INSIDE = f"{_OF_AN_ACTOR}, in placement groups outside the lease; {_CLUSTER}"
_INSIDE = f"{_OF_AN_ACTOR}, and are in the lease if they fit; {_CLUSTER}"

NOTED: Final = {
    "ray.data": ("Ray Data", f"{_WHOLE}; its tasks are in the lease; {_CLUSTER}"),
    "ray.tune": ("Ray Tune", f"{_WHOLE}; trials are in the lease, and wait there for room; {_CLUSTER}"),
    "ray.train": ("Ray Train", _NOT_INSIDE),
    "ray.rllib": ("RLlib", _NOT_INSIDE),
    "ray.serve": ("Ray Serve", f"it may call existing applications, but not start or change any; {_CLUSTER}"),
    "ray.job_submission": ("Ray jobs", "a job that is submitted is another program, which runs outside the lease"),
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


_CONTROLLER = "SERVE_CONTROLLER_ACTOR"
_WHY = "Ray Serve has one controller for the whole cluster, which outlives the run"
_CHANGING: dict[str, dict[str, tuple[str, ...]]] = {
    "ray.serve._private.client": {
        "ServeControllerClient": (
            *("deploy_applications", "deploy_apps", "delete_apps", "delete_all_apps"),
            *("shutdown", "shutdown_async", "update_global_logging_config"),
        )
    },
    "ray.dashboard.modules.serve.sdk": {"ServeSubmissionClient": ("deploy_applications", "delete_applications")},
}
"""By module and class: the methods that change the cluster's deployments."""


def check_serve_actor(captured: Captured, options: Mapping[str, Any]) -> None:
    """Refuse the actor with which Serve starts, by its name."""
    if options.get("name") == _CONTROLLER:
        _refuse(captured, "Ray Serve")


def guard_serve(captured: Captured) -> None:
    """Guard the modules that are already imported now, and the others on import."""
    for name in _CHANGING:
        if name in sys.modules:
            _guard_module(captured, sys.modules[name])
    sys.meta_path.insert(0, _WhenServeIsImported(captured))


def _refuse(captured: Captured, what: str) -> None:
    captured.reports.refused(what, _WHY)
    raise Refusal(
        f"grid: {what} cannot be used in a lease of a shared cluster: {_WHY}, and is not in the lease. "
        "Run the program in a private Ray cluster: grid run --isolation cluster."
    )


def _guard_module(captured: Captured, module: ModuleType) -> None:
    for class_name, methods in _CHANGING[module.__name__].items():
        made = getattr(module, class_name, None)
        for name in methods:
            if callable(method := getattr(made, name, None)):
                setattr(made, name, _guarded(captured, method))


def _guarded(captured: Captured, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def refused(*args: Any, **given: Any) -> Any:
        if captured.is_on():
            _refuse(captured, "Ray Serve")
        return method(*args, **given)

    return refused


class _WhenServeIsImported(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads Serve unchanged, then guards it."""

    def __init__(self, captured: Captured) -> None:
        self._captured = captured
        self._inner: dict[str, Any] = {}

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname not in _CHANGING:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return None
        self._inner[fullname] = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec: Any) -> Any:
        return self._inner[spec.name].create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        inner = self._inner[module.__name__]
        if module.__spec__ is not None:
            module.__spec__.loader = inner
        module.__loader__ = inner
        inner.exec_module(module)
        self._captured.guarded("Ray Serve", lambda: _guard_module(self._captured, module), None)
