"""Code that travels to other nodes: grid's own by value, because grid is not installed there; the user's by reference
where its modules can be imported, and by value elsewhere.

Code that sends parts of grid's modules imports them from here.
"""

import site
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import ray
from ray import cloudpickle

from distributed_grid.errors import said_by
from distributed_grid.execution import (
    on_node,
    on_node_function,
    on_node_imports,
    on_node_kept,
    on_node_processes,
    on_node_raylet,
    on_node_runner,
)

__all__ = [
    "on_node",
    "on_node_function",
    "on_node_imports",
    "on_node_processes",
    "on_node_raylet",
    "on_node_runner",
]


for _module in (
    on_node,
    on_node_function,
    on_node_imports,
    on_node_kept,
    on_node_processes,
    on_node_raylet,
    on_node_runner,
):
    cloudpickle.register_pickle_by_value(_module)


_registering = threading.RLock()
"""The registry of what is pickled by value is global to the process: concurrent changes would undo each other."""


def packed(thing: object, *also: object, named: object = None) -> bytes:
    """A function or class, with what belongs to it, for `on_node_imports.unpacked`: by reference, and a copy by value.

    The copy is for a node that cannot import its module. `named`: what stands for it, such as "module:Class".
    """
    by_name = bytes(cloudpickle.dumps(_together(thing if named is None else named, also)))
    return bytes(cloudpickle.dumps((by_name, *_spare_copy(thing, also))))


def _together(thing: object, also: tuple[object, ...]) -> object:
    return (thing, *also) if also else thing


def _spare_copy(thing: object, also: tuple[object, ...]) -> tuple[bytes, str]:
    """The copy by value, or why there can be none; neither for what any node can load."""
    module = own_module(thing)
    if module is None:
        return b"", ""
    try:
        return packed_whole(thing, *also), ""
    except Exception as error:  # noqa: BLE001 (pickling a module can raise anything)
        what = f"its {'class' if isinstance(thing, type) else 'function'} {getattr(thing, '__name__', thing)}"
        why = f"{module.__name__} is not on this node, and {what} cannot be sent: {said_by(error)}"
        return b"", f"{why}. Install it there, or let Ray ship it: ray.init(runtime_env={{'working_dir': ...}})"


def packed_whole(thing: object, *also: object) -> bytes:
    """A function or class, with what belongs to it, pickled by value if it comes from one of the user's own modules."""
    module = own_module(thing)
    if module is None:
        return bytes(cloudpickle.dumps(_together(thing, also)))
    with _by_value(module):
        return bytes(cloudpickle.dumps(_together(thing, also)))


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


def folders_to_search() -> tuple[list[str], list[str]]:
    """Folders before and after the node's own. What Ray brings to nodes comes first, as for everything else there."""
    before, after = own_folders()
    brought = ray.get_runtime_context().runtime_env if ray.is_initialized() else {}
    return ([], before + after) if brought.get("working_dir") or brought.get("py_modules") else (before, after)


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
