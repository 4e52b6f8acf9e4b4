"""One member of a role in the documented API.

Other actors receive it, so it travels by value and imports only what Python ships.
"""

from collections.abc import Iterable
from typing import Any

from distributed_grid.roles.on_node.peers import wire_name


class RayActorWrapper:
    """The methods of one role's class on one actor, as Ray methods: `wrapper.step.remote(x)` returns an ObjectRef.

    It has no other public names, so no method can clash with it. If the actor hosts several roles, it has only the
    methods of its own role. `_actor` is the actor's handle.
    """

    def __init__(self, actor: Any, role: str, rank: int, methods: Iterable[str], keep: Any = None) -> None:
        """`keep`: an object that this wrapper keeps alive in the process that owns the run."""
        self._actor = actor
        self._keep = keep
        self._role, self._rank = role, rank
        self._methods = frozenset(methods)

    def __getattr__(self, name: str) -> Any:
        # A name that begins with "_" is never a role's, and `_methods` does not exist yet during unpickling.
        if name.startswith("_") or name not in self._methods:
            raise AttributeError(f"{type(self).__name__} has no {name!r}{self._methods_listed(name)}")
        return getattr(self._actor, wire_name(self._role, name))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_keep": None}

    def _methods_listed(self, name: str) -> str:
        if name.startswith("_"):
            return ""
        return f"; {self._role} has {', '.join(sorted(self._methods)) or 'no methods'}"

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._methods})

    def __repr__(self) -> str:
        return f"<{self._role} {self._rank}>"
