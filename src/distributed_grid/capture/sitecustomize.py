"""Puts a Ray driver's tasks and actors into a boost's placement group, without touching the program.

Python imports a module of this name at start-up when its folder is on PYTHONPATH; `grid boost shell` puts it
there. It stands alone (nothing of grid need be installed where the program runs) and does nothing until the
program imports ray.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

_GROUP = "GRID_PLACEMENT_GROUP"
_WORKER_MODULE = "ray._private.worker"


def _capture(module: Any) -> None:
    """Make the driver believe that it runs inside the group, and passes it on: what Ray does for captured tasks."""
    import ray

    group_id = ray.PlacementGroupID(bytes.fromhex(os.environ[_GROUP]))
    worker_class = module.Worker
    own_group = worker_class.placement_group_id
    own_capture = worker_class.should_capture_child_tasks_in_placement_group

    def is_driver(worker: Any) -> bool:
        return bool(worker.mode == module.SCRIPT_MODE)

    def placement_group_id(worker: Any) -> Any:
        return group_id if is_driver(worker) else own_group.fget(worker)

    def should_capture(worker: Any) -> Any:
        return True if is_driver(worker) else own_capture.fget(worker)

    worker_class.placement_group_id = property(placement_group_id)
    worker_class.should_capture_child_tasks_in_placement_group = property(should_capture)


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets Ray's worker module load as it is, then hooks it."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != _WORKER_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return None
        self._inner = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec: Any) -> Any:
        return self._inner.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._inner.exec_module(module)
        module.__loader__ = self._inner
        # The hook needs names that ray only has once it is imported whole.
        _when_ray_is_whole(module)


def _when_ray_is_whole(module: Any) -> None:
    original = module.connect

    def connect(*args: Any, **kwargs: Any) -> Any:
        if not getattr(module.Worker, "_grid_captured", False):
            _capture(module)
            module.Worker._grid_captured = True
        return original(*args, **kwargs)

    module.connect = connect


def _run_the_next_sitecustomize() -> None:
    """This file hides another of the same name, which the machine may need."""
    here = os.path.dirname(os.path.abspath(__file__))
    paths = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get(_GROUP):
    sys.meta_path.insert(0, _AfterImport())
_run_the_next_sitecustomize()
