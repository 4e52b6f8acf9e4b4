"""Keeps a run from deploying with Ray Serve, whose one controller serves the whole cluster and outlives programs.

A deployment would run outside of the lease, stay after the run, and conflict with other programs. Calls to existing
applications do no harm.
"""

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from .captured import Captured
from .reporting import Refusal

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


def check_actor(captured: Captured, options: Mapping[str, Any]) -> None:
    """Refuse the actor with which Serve starts, by its name."""
    if options.get("name") == _CONTROLLER:
        _refuse(captured, "Ray Serve")


def guard(captured: Captured) -> None:
    """Guard the modules that are already imported now, and the others on import."""
    for name in _CHANGING:
        if name in sys.modules:
            _guard_module(captured, sys.modules[name])
    sys.meta_path.insert(0, _WhenServeIsImported(captured))


def _refuse(captured: Captured, what: str) -> None:
    captured.reports.refused(what, _WHY)
    raise Refusal(
        f"grid: {what} cannot be used in a lease of a shared cluster: {_WHY}, and is not in the lease. "
        "Give the program a Ray of its own: grid run --isolation cluster."
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
