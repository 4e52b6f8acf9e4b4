"""Makes the actors of a workload: one host for each process, with the methods of the roles in it."""

import functools
import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import ray
from ray import cloudpickle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from distributed_grid.execution.actors import once_its_name_is_free
from distributed_grid.execution.groups import asking_for, group_handle
from distributed_grid.execution.packing import folders_to_search, packed
from distributed_grid.execution.role_records import NAMESPACE
from distributed_grid.model.nodes import NodeId
from distributed_grid.model.roles.processes import Held, ProcessSpec
from distributed_grid.model.roles.spec import ConcurrencyOf, RoleSpec, environment_of
from distributed_grid.model.roles.workload import Workload
from distributed_grid.roles.calls.endpoints import Ref
from distributed_grid.roles.on_node import actor, making, peers
from distributed_grid.roles.role_class import class_of, concurrency_of

GREETING: Final = "grid_greet"
_INLINE_BYTES: Final = 100_000

for _module in (actor, making, peers):
    cloudpickle.register_pickle_by_value(_module)


class Hosting:
    """Makes the actors of one workload. Classes and configurations are packed once for each role."""

    def __init__(
        self, workload: Workload, caller: Mapping[str, str] | None = None, env_allow: Sequence[str] = ()
    ) -> None:
        """`env_allow`: names and patterns of the caller's variables that all actors get."""
        self._workload, self._env_allow = workload, tuple(env_allow)
        self._caller = dict(os.environ if caller is None else caller)
        self._classes = {role.name: class_of(role) for role in workload.roles}
        self._kinds = {name: _kinds_of(cls) for name, cls in self._classes.items()}
        self._async = {name: making.has_async_methods(cls) for name, cls in self._classes.items()}
        self._limits = {
            role.name: concurrency_of(self._classes[role.name], role.max_concurrency) for role in workload.roles
        }
        self._folders = folders_to_search()
        self._packed: dict[str, Any] = {}
        self._actors: dict[tuple[str, ...], Any] = {}

    def methods(self, role: str) -> frozenset[str]:
        return frozenset(self._kinds[role])

    def greets(self, role: str) -> bool:
        """Whether its class defines `on_peers`."""
        return making.wants_peers(self._classes[role])

    def ports_on(self, node_id: NodeId, count: int) -> Ref:
        """A reference to the node's address and `count` free ports there."""
        there = NodeAffinitySchedulingStrategy(node_id, soft=False)
        return _addresses().options(num_cpus=0, scheduling_strategy=there, max_retries=1).remote(count)

    def end_stuck(self, node_id: NodeId, pid: int) -> None:
        """End a process that no longer reacts to Ray."""
        there = NodeAffinitySchedulingStrategy(node_id, soft=False)
        _ender().options(num_cpus=0, scheduling_strategy=there, max_retries=0).remote(pid)

    def start(self, spec: ProcessSpec, held: Held, ranks: Mapping[str, str], ports: Ref, port: int) -> Any:
        """The actor's handle, at once. The actor comes up in the background."""
        env = environment_of([self._spec(role) for role in spec.roles], self._caller, self._env_allow)
        made = self.actor_class(spec.roles).options(
            name=spec.name,
            namespace=NAMESPACE,
            max_restarts=0,
            max_task_retries=0,
            runtime_env={"env_vars": env} if env else None,
            scheduling_strategy=_inside(held),
            **asking_for(spec.needs),
        )
        place: actor.Place = {
            "run": spec.run,
            "namespace": NAMESPACE,
            "roles": spec.roles,
            "index": spec.index,
            "node": spec.node,
            "ranks": dict(ranks),
            "port": port,
            "folders": self._folders,
        }
        parts = [self._part(role) for role in spec.roles]
        # In a list, since Ray starts no process before it has the value of an argument.
        return once_its_name_is_free(lambda: made.remote(place, [ports], self._threads(spec.roles), *parts))

    def _spec(self, role: str) -> RoleSpec:
        found = self._workload.role(role)
        assert found is not None
        return found

    def _part(self, role: str) -> Any:
        """Class and configuration packed together, so that what they share stays shared. Large ones travel once."""
        if role not in self._packed:
            spec = self._spec(role)
            part = packed(self._classes[role], spec.config, named=spec.cls)
            self._packed[role] = part if len(part) < _INLINE_BYTES else ray.put(part)
        return self._packed[role]

    def actor_class(self, roles: tuple[str, ...]) -> Any:
        """Ray's class of the actors that host these roles, made once."""
        if roles not in self._actors:
            self._actors[roles] = self._make_actor_class(roles)
        return self._actors[roles]

    def _make_actor_class(self, roles: tuple[str, ...]) -> Any:
        is_async = self._is_async(roles)
        threads = self._threads(roles)
        found: dict[str, Any] = {}
        for name in ("_ready", "_ping", "_meet"):
            own = actor.own_method(name, is_async=is_async)
            found[f"grid{name}"] = ray.method(concurrency_group=actor.HEALTH_GROUP)(own)
        for role in roles:
            if self.greets(role):
                greet = actor.greeting(role, is_async=is_async)
                found[peers.wire_name(role, GREETING)] = ray.method(concurrency_group=self._group(role))(greet)
            for name, kind in self._kinds[role].items():
                in_thread = kind == "function" and role in threads
                made = actor.role_method(role, name, "threaded" if in_thread else kind)
                _like(made, getattr(self._classes[role], name, None))
                found[peers.wire_name(role, name)] = ray.method(concurrency_group=self._group(role))(made)
        groups = {actor.HEALTH_GROUP: 2}
        for role in roles:
            groups[self._group(role)] = max(self.limit(role), groups.get(self._group(role), 1))
        cls = type("+".join(roles), (actor.Host,), found)
        return ray.remote(concurrency_groups=groups)(cls)

    def _is_async(self, roles: tuple[str, ...]) -> bool:
        return any(self._async[role] for role in roles)

    def limit(self, role: str) -> int:
        return self._limits[role]

    def _group(self, role: str) -> str:
        """Ray's concurrency group for its methods."""
        return role if self._spec(role).concurrency_of == ConcurrencyOf.ROLE else actor.SHARED_GROUP

    def _threads(self, roles: tuple[str, ...]) -> dict[str, int]:
        """Roles without asynchronous methods whose calls run in parallel, though a sibling role is asynchronous."""
        if not self._is_async(roles):
            return {}
        return {role: self.limit(role) for role in roles if not self._is_async((role,)) and self.limit(role) > 1}


def _kinds_of(cls: type) -> dict[str, str]:
    """The methods of a class and the kind of each: Ray treats each kind differently."""
    return {name: _kind(getattr(cls, name)) for name in making.methods_of(cls)}


def _kind(function: object) -> str:
    if inspect.isasyncgenfunction(function):
        return "async_generator"
    if inspect.iscoroutinefunction(function):
        return "coroutine"
    return "generator" if inspect.isgeneratorfunction(function) else "function"


def _like(made: object, original: object) -> None:
    """Copy what `ray.method` set on the user's method to the actor's, except for its concurrency group."""
    for key, value in vars(original).items() if original is not None and hasattr(original, "__dict__") else ():
        if key.startswith("__ray_") and key != "__ray_concurrency_group__":
            setattr(made, key, value)


def _inside(held: Held) -> Any:
    if held.group is None:
        return NodeAffinitySchedulingStrategy(held.node_id, soft=False)
    return PlacementGroupSchedulingStrategy(group_handle(held.group), placement_group_bundle_index=0)


@functools.cache
def _ender() -> Any:
    return ray.remote(actor.end_stuck)


@functools.cache
def _addresses() -> Any:
    return ray.remote(actor.local_addresses)
