"""Sends this package to Ray's workers inside what is pickled anyway, so that nothing need be installed there.

A stand-in for a group would otherwise arrive as the handle of the lease's own group, and a task that removes it would
end the lease. With `GRID_CAPTURE_WORKERS=1`, every function and actor class carries the package.
"""

import functools
import importlib.util
import marshal
import os
import sys
import zlib
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from types import ModuleType
from typing import Any

_NAME = "_grid_capture"
_SAID = (
    *("GRID_PLACEMENT_GROUP", "GRID_LEASE_NODE", "GRID_LEASE_RESOURCES", "GRID_LEASE_MOST"),
    *("GRID_CAPTURE_WORKERS", "GRID_ALLOW_ESCAPES"),
    *("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR", "GRID_RUN_REPORT", "GRID_BOOST"),
)
_FOLDER = "GRID_CAPTURE_FOLDER"
"""The hook's folder on the program's machine; workers there start other programs with it."""


def _arrive(name: str, magic: bytes, parcel: bytes, said: dict[str, str], what: str, cargo: tuple[Any, ...]) -> Any:
    """Unpacks the package, unless it is already loaded, and then the cargo.

    Travels by value, so it may use only what it imports itself.
    """
    import importlib
    import importlib.abc
    import importlib.util
    import pickle
    import sys

    import ray

    def unpack() -> None:
        import marshal
        import zlib
        from typing import Any

        codes = marshal.loads(zlib.decompress(parcel))

        class Unpacked(importlib.abc.MetaPathFinder, importlib.abc.Loader):
            def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
                if fullname not in codes:
                    return None
                return importlib.util.spec_from_loader(fullname, self, is_package=fullname == name)

            def exec_module(self, module: Any) -> None:
                exec(codes[module.__name__], module.__dict__)

        sys.meta_path.append(Unpacked())
        importlib.import_module(name).luggage = (name, magic, parcel, said)  # type: ignore[attr-defined]
        importlib.import_module(name + ".hook").install(said, in_worker=True)

    if name not in sys.modules and magic == importlib.util.MAGIC_NUMBER:
        try:
            unpack()
        except Exception as error:  # noqa: BLE001 - the program continues without the hook
            print(f"grid: hook failed: in a worker: {error!r}", file=sys.stderr)  # noqa: T201
    if what == "pickled":
        return pickle.loads(cargo[0])
    group_id, bundles, key, gate, layout = ray.PlacementGroupID(cargo[0]), *cargo[1:]
    if name in sys.modules:
        return importlib.import_module(name + ".standins").StandIn(group_id, bundles, key, gate, layout=layout)
    return importlib.import_module("ray.util.placement_group").PlacementGroup(group_id)


_arrive.__module__ = "__main__"  # or pickle would refer to a module that workers lack


def revived(
    group_id: bytes, bundles: Any, key: str, gate: str, layout: tuple[int, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """How a stand-in is pickled; `gate` names the actor at which others wait for it."""
    return _arrive, (*_luggage(), "group", (group_id, bundles, key, gate, layout))


def tell_programs(said: Mapping[str, str], environ: MutableMapping[str, str]) -> None:
    """Programs that a worker starts belong to the run, too; they find the hook if it is on this machine."""
    environ.update({name: value for name, value in said.items() if name != _FOLDER})
    folder = said.get(_FOLDER, "")
    path = environ.get("PYTHONPATH", "")
    if os.path.isdir(folder) and folder not in path.split(os.pathsep):  # noqa: PTH112
        environ["PYTHONPATH"] = os.pathsep.join(part for part in (folder, path) if part)


class _Carrier:
    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _arrive, (*_luggage(), "pickled", (self._pickled,))


def with_luggage(pickled: bytes) -> bytes:
    """The same object when unpickled, and this package with it."""
    from ray import cloudpickle

    return bytes(cloudpickle.dumps(_Carrier(pickled)))


@functools.cache
def _luggage() -> tuple[str, bytes, bytes, dict[str, str]]:
    """This package and the lease's environment; a worker passes on what it received."""
    package = sys.modules[__name__.rpartition(".")[0]]
    if hasattr(package, "luggage"):
        return package.luggage  # type: ignore[no-any-return]
    said = {name: os.environ[name] for name in _SAID if name in os.environ}
    said[_FOLDER] = str(Path(package.__path__[0]).parent)
    return _NAME, importlib.util.MAGIC_NUMBER, zlib.compress(marshal.dumps(_codes(package))), said


def _codes(package: ModuleType) -> dict[str, Any]:
    """The compiled modules, without docstrings."""
    folder = Path(package.__path__[0])
    found = {}
    for path in folder.glob("*.py"):
        name = _NAME if path.stem == "__init__" else f"{_NAME}.{path.stem}"
        found[name] = compile(path.read_text(), f"<{name}>", "exec", optimize=2)
    return found
