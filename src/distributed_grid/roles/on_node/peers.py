"""A member's view of the run: itself, the members of all roles, and the siblings in its process. And the handle of a
member in the documented API.

Travels to other nodes by value, so it imports only what Python ships, and Ray where Ray is there anyway.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any


def wire_name(role: str, method: str) -> str:
    """The name of a role's method on the actor that hosts it. Methods of several roles cannot clash there."""
    return f"{role}.{method}"


class Identity:
    """The identity of a member."""

    __slots__ = ("node", "rank", "role", "run", "world_size")

    def __init__(self, role: str, rank: int, world_size: int, node: str, run: str) -> None:
        self.role, self.rank, self.world_size, self.node, self.run = role, rank, world_size, node, run

    def __repr__(self) -> str:
        return f"<{self.role} {self.rank} of {self.world_size} on {self.node}, run {self.run}>"


class Directory:
    """The actors of a run by name. A restarted actor keeps its name, and is looked up again."""

    __slots__ = ("_found", "_lives", "_namespace", "_old")

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._found: dict[str, Any] = {}
        self._old: dict[str, Any] = {}
        self._lives: dict[str, int] = {}

    def update(self, lives: Mapping[str, int]) -> None:
        """`lives`: by name, the current life of each actor."""
        changed = [name for name in self._found if lives.get(name) != self._lives.get(name)]
        self._lives = dict(lives)
        for name in changed:
            self._old[name] = self._found.pop(name)

    def actor(self, name: str) -> Any:
        found = self._found.get(name)
        if found is None:
            import ray

            try:
                found = self._found[name] = ray.get_actor(name, namespace=self._namespace)
            except ValueError:  # it is yet to restart, or is gone: a call by its old handle reports that
                if name not in self._old:
                    raise
                return self._old[name]
        return found


class Peer:
    """Another member: `peer.step.remote(x)` returns a reference.

    A peer is the same with Ray and without. Its only other public names are `role` and `rank`. It stays valid when the
    member restarts.
    """

    __slots__ = ("rank", "role")

    def __init__(self, role: str, rank: int) -> None:
        self.role, self.rank = role, rank

    def _method(self, name: str) -> Any:
        """An object with `remote`. Raises an AttributeError if the role has no such method."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._method(name)
        except AttributeError:
            raise AttributeError(f"{self.role} has no method {name!r}") from None

    def __repr__(self) -> str:
        return f"<{self.role} {self.rank}>"


class ActorPeer(Peer):
    """A member hosted by a Ray actor: references are ObjectRefs."""

    __slots__ = ("_directory", "_name")

    def __init__(self, role: str, rank: int, name: str, directory: Directory) -> None:
        super().__init__(role, rank)
        self._name, self._directory = name, directory

    def _method(self, name: str) -> Any:
        return getattr(self._directory.actor(self._name), wire_name(self.role, name))


class Peers(Mapping[str, Sequence[Any]]):
    """Passed to `on_peers` of a role's class, and again whenever a member joins, leaves or restarts.

    `peers["trajectory_pool"]` are the members of a role in rank order: `peers["trajectory_pool"][0].put.remote(x)`
    returns a reference, for `await` or for `peers.fetch`. `peers.sibling("trainer")` is the instance in the same
    process.
    """

    __slots__ = ("_fetch", "_members", "_siblings", "me")

    def __init__(
        self,
        me: Identity,
        members: Mapping[str, Sequence[Any]],
        siblings: Mapping[str, Any],
        fetch: Callable[[Any, float | None], Any] | None = None,
    ) -> None:
        self.me = me
        self._members = {role: tuple(found) for role, found in members.items()}
        self._siblings = dict(siblings)
        self._fetch = fetch or _ray_get

    def __getitem__(self, role: str) -> Sequence[Any]:
        if role not in self._members:
            raise KeyError(f"there is no role {role!r}; there are {', '.join(self._members)}")
        return self._members[role]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def sibling(self, role: str) -> Any:
        """The instance itself: calls are plain calls, and async methods are awaited directly."""
        if role not in self._siblings:
            there = f"in it are {', '.join(self._siblings)}" if self._siblings else "it has no other members"
            raise KeyError(f"no {role!r} shares the process of {self.me.role} {self.me.rank}; {there}")
        return self._siblings[role]

    def fetch(self, refs: Any, timeout_s: float | None = None) -> Any:
        """The value of a reference, or the list of values of several; raises what the method raised."""
        return self._fetch(refs, timeout_s)


def _ray_get(refs: Any, timeout_s: float | None) -> Any:
    import ray

    return ray.get(refs, timeout=timeout_s)


class RayActorWrapper:
    """The documented API's member: the methods of one role's class on one actor, as Ray methods.

    `wrapper.step.remote(x)` returns an ObjectRef.

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
