"""Puts a Ray driver's tasks and actors into a lease's placement group, without changing the program.

Python imports a module of this name at start-up when its folder is on PYTHONPATH; `grid run` and `grid boost shell`
put it there. It imports nothing of grid, which need not be installed where the program runs. It does nothing until
the program imports ray; then it loads the folder `inside_lease`, which does the work.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

_PACKAGE = "_grid_capture"
"""The module name of that folder, which no program uses."""


class _WhenRayIsImported(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads ray unchanged, then hooks it; also notices imports of Ray's libraries."""

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
        except Exception as error:  # noqa: BLE001 - the program continues in any case
            _tell_of(error)


def _install() -> Any:
    """Install the hook. Returns the watcher of Ray's libraries."""
    inside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inside_lease")
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, os.path.join(inside, "__init__.py"), submodule_search_locations=[inside]
    )
    assert spec is not None and spec.loader is not None
    sys.modules[_PACKAGE] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    return importlib.import_module(_PACKAGE + ".hook").install(os.environ)


def _tell_of(error: Exception) -> None:
    """Report that the hook could not be installed, so no work of the program is in the lease."""
    why = f"hook failed: {error!r}"
    path = os.environ.get("GRID_RUN_REPORT")
    if path:
        import json

        with open(path, "a") as reports:
            reports.write(json.dumps({"event": "escaped", "what": "the whole program", "why": why}) + "\n")
    else:
        print(f"grid: NOT in the lease: the whole program: {why}", file=sys.stderr)


def _run_the_next_sitecustomize() -> None:
    """This file shadows another of the same name, which the machine may need."""
    here = os.path.dirname(os.path.abspath(__file__))
    paths = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get("GRID_PLACEMENT_GROUP"):
    sys.meta_path.insert(0, _WhenRayIsImported())
_run_the_next_sitecustomize()
