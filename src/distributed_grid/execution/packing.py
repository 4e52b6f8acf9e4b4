"""Pickling what is the user's own, so that nodes can read it which do not have its module."""

import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from ray import cloudpickle

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


def own_module(thing: Any) -> ModuleType | None:
    """The module that other nodes may not have: neither installed, nor Python's, nor the main program."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if module is None or file is None or module.__name__ == "__main__":
        return None
    installed = any(Path(file).is_relative_to(path) for path in set(sysconfig.get_paths().values()))
    return None if installed else module
