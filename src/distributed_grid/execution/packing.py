"""What travels to other nodes by value, because grid is not installed there; and where the user's own modules are.

Code that sends something of these modules imports them from here.
"""

import site
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

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
"""What is pickled by value is known to the whole process: two that change it at once would undo each other's."""


def packed_whole(thing: Any, *also: Any) -> bytes:
    """A function or class (with what belongs to it) itself, where it is from a module of the user's own."""
    module = own_module(thing)
    what = (thing, *also) if also else thing
    if module is None:
        return bytes(cloudpickle.dumps(what))
    with _by_value(module):
        return bytes(cloudpickle.dumps(what))


@contextmanager
def _by_value(module: ModuleType) -> Iterator[None]:
    """Only for so long; unless the user has said so of this module, which stays so."""
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
    """The folders of this process's `sys.path` that are the user's own: those that come before Python's own, and those
    that come after them. A process that looks there as well finds the same modules, where it has these folders."""
    folders = list(dict.fromkeys(Path(entry).absolute() for entry in sys.path))
    paths = sysconfig.get_paths()
    python = Path(paths["stdlib"])
    number = folders.index(python) if python in folders else 0
    installed = {*map(paths.get, ("stdlib", "platstdlib", "purelib", "platlib")), *site.getsitepackages()}

    def own(some: list[Path]) -> list[str]:
        return [str(one) for one in some if one.is_dir() and not any(map(one.is_relative_to, filter(None, installed)))]

    return own(folders[:number]), own(folders[number:])


def own_module(thing: Any) -> ModuleType | None:
    """The module that other nodes may not have: neither installed, nor Python's, nor the main program."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if module is None or file is None or module.__name__ == "__main__":
        return None
    installed = any(Path(file).is_relative_to(path) for path in set(sysconfig.get_paths().values()))
    return None if installed else module
