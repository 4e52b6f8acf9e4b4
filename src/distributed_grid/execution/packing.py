"""Code that travels to other nodes by value, because grid is not installed there; and the user's own modules.

Code that sends parts of these modules imports them from here.
"""

import site
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from ray import cloudpickle

from distributed_grid.execution import (
    on_node,
    on_node_function,
    on_node_kept,
    on_node_processes,
    on_node_raylet,
    on_node_runner,
)

__all__ = ["on_node", "on_node_function", "on_node_processes", "on_node_raylet", "on_node_runner"]


for _module in (on_node, on_node_function, on_node_kept, on_node_processes, on_node_raylet, on_node_runner):
    cloudpickle.register_pickle_by_value(_module)


_registering = threading.RLock()
"""The registry of what is pickled by value is global to the process: concurrent changes would undo each other."""


def packed_whole(thing: object, *also: object) -> bytes:
    """A function or class, with what belongs to it, pickled by value if it comes from one of the user's own modules."""
    module = own_module(thing)
    what = (thing, *also) if also else thing
    if module is None:
        return bytes(cloudpickle.dumps(what))
    with _by_value(module):
        return bytes(cloudpickle.dumps(what))


@contextmanager
def _by_value(module: ModuleType) -> Iterator[None]:
    """Pickle this module by value inside the block only, unless the user has already registered it."""
    with _registering:
        if module.__name__ in cloudpickle.list_registry_pickle_by_value():
            yield
            return
        cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            cloudpickle.unregister_pickle_by_value(module)


def own_folders() -> tuple[list[str], list[str]]:
    """The user's own folders in this process's `sys.path`: those before Python's own, and those after them.

    A process that also searches these folders finds the same modules, if it has the folders.
    """
    folders = list(dict.fromkeys(Path(entry).absolute() for entry in sys.path))
    paths = sysconfig.get_paths()
    python = Path(paths["stdlib"])
    number = folders.index(python) if python in folders else 0
    installed = {*map(paths.get, ("stdlib", "platstdlib", "purelib", "platlib")), *site.getsitepackages()}

    def own(some: list[Path]) -> list[str]:
        return [str(one) for one in some if one.is_dir() and not any(map(one.is_relative_to, filter(None, installed)))]

    return own(folders[:number]), own(folders[number:])


def own_module(thing: object) -> ModuleType | None:
    """The module of `thing` that other nodes may lack: neither installed, nor Python's, nor the main program."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if module is None or file is None or module.__name__ == "__main__":
        return None
    installed = any(Path(file).is_relative_to(path) for path in set(sysconfig.get_paths().values()))
    return None if installed else module
