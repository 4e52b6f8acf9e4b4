"""How members are made where they run. Travels to other nodes by value, so it imports only what Python ships."""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

ON_PEERS = "on_peers"
"""The method of a role's class that receives its peers. Only grid calls it, so it is not a method of the role."""

_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)


def load_class(cls: Any) -> Any:
    """The class itself, or the class that "module:Class" names on this node."""
    if not isinstance(cls, str):
        return cls
    module, _, path = cls.partition(":")
    found: Any = import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def make_instance(cls: Any, config: Any) -> Any:
    """`cls(config)`; without a config, and if the constructor takes no positional argument, `cls()`."""
    return cls(config) if config is not None or _takes_one(cls) else cls()


def methods_of(cls: object) -> tuple[str, ...]:
    """The callable names: the public methods, including inherited ones."""
    names = (name for name in dir(cls) if not name.startswith("_") and name != ON_PEERS)
    return tuple(name for name in names if _is_method(inspect.getattr_static(cls, name)))


def has_async_methods(cls: object) -> bool:
    """Whether its calls run in an event loop. `on_peers` counts, too."""
    found = [getattr(cls, name, None) for name in (*methods_of(cls), ON_PEERS)]
    return any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in found)


def is_generator(function: object) -> bool:
    """Whether a call gives many values, one after the other."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def wants_peers(cls: object) -> bool:
    return callable(getattr(cls, ON_PEERS, None))


def _takes_one(cls: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):  # made in C, without a signature
        return False
    return any(parameter.kind in _POSITIONAL for parameter in parameters)


def _is_method(found: object) -> bool:
    """Any kind of function, but not a nested class or a property."""
    if isinstance(found, (staticmethod, classmethod)):
        return True
    return callable(found) and not inspect.isclass(found)
