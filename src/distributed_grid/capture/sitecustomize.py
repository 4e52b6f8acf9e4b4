"""Puts a Ray driver's tasks and actors into a lease's placement group, without touching the program.

Python imports a module of this name at start-up when its folder is on PYTHONPATH; `grid run` and `grid boost shell`
put it there. It stands alone (nothing of grid need be installed where the program runs) and does nothing until the
program imports ray; then it loads the folder `inside_lease`, which does the work.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

_PACKAGE = "_grid_capture"
"""The name under which that folder is loaded: no program has a module of that name."""


class _WhenRayIsImported(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets ray load as it is, then hooks it; and hears of the libraries of Ray that are imported later."""

    def __init__(self) -> None:
        self._libraries: Any = None

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname == "ray":
            return self._spec_of_ray()
        if self._libraries is not None and fullname in self._libraries.NOTED:
            self._libraries.imported(fullname)
        return None

    def _spec_of_ray(self) -> Any:
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec("ray")
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return None
        self._inner = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec: Any) -> Any:
        return self._inner.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._inner
        self._inner.exec_module(module)
        try:
            self._libraries = _install()
        except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on
            _tell_of(error)


def _install() -> Any:
    """What watches the libraries."""
    inside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inside_lease")
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, os.path.join(inside, "__init__.py"), submodule_search_locations=[inside]
    )
    assert spec is not None and spec.loader is not None
    sys.modules[_PACKAGE] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    return importlib.import_module(_PACKAGE + ".hook").install(os.environ)


def _tell_of(error: Exception) -> None:
    """The hook could not be put in, so nothing of the program is in the lease: the one thing to be told without it."""
    why = f"hook failed: {error!r}"
    path = os.environ.get("GRID_RUN_REPORT")
    if path:
        import json

        with open(path, "a") as reports:
            reports.write(json.dumps({"event": "escaped", "what": "the whole program", "why": why}) + "\n")
    else:
        print(f"grid: NOT in the lease: the whole program: {why}", file=sys.stderr)


def _run_the_next_sitecustomize() -> None:
    """This file hides another of the same name, which the machine may need."""
    here = os.path.dirname(os.path.abspath(__file__))
    paths = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get("GRID_PLACEMENT_GROUP"):
    sys.meta_path.insert(0, _WhenRayIsImported())
_run_the_next_sitecustomize()
