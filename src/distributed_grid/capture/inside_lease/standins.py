"""Handles of placement groups that a program created, and that are parts of the lease."""

import threading
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ray
from ray._private import worker as ray_worker
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from .lease import Lease
from .own_groups import Amounts, Plan, Taken, added, fit, why_it_waits
from .travelling import revived

_NAMESPACE = "grid-capture"
_MOST_WAITING = 10_000
LONG_S = 30.0
"""A group that has waited this long may wait for ever, for groups that its own program does not remove."""
_GATE_S = 10.0


class StandIn(PlacementGroup):  # type: ignore[misc]
    """Looks like the group that the program asked for; its work runs in the lease's own group.

    It has the lease's id, so Ray checks against the program's bundles and schedules in the lease. Two stand-ins are
    different groups, though they share an id. In the process that made it, `waits` knows whether it has room; elsewhere
    the actor named `gate` does.
    """

    def __init__(
        self,
        group_id: Any,
        bundles: Sequence[Amounts],
        key: str,
        gate: str = "",
        waits: "StandIns | None" = None,
        layout: Sequence[int] = (),
    ) -> None:
        """`layout`: for each of its bundles the index of the lease's bundle that it is a part of; empty if the lease
        has only one, or while the group waits."""
        super().__init__(group_id, [{name: float(amount) for name, amount in bundle.items()} for bundle in bundles])
        self.key, self.gate = key, gate
        self._waits = waits
        self._layout = tuple(layout)

    def at(self, index: int) -> "tuple[StandIn, int]":
        """The handle and the index with which Ray puts work into a bundle of this group, or, for -1, into any."""
        if not -1 <= index < self.bundle_count:
            return self, index  # for Ray to refuse
        layout = self._where()
        chosen = set(layout) if index == -1 else {layout[index]} if layout else set()
        if len(chosen) != 1:
            return self, -1  # any bundle of the lease that has room
        (found,) = chosen
        more = found + 1 - self.bundle_count  # Ray refuses an index that the handle does not have
        return (self if more <= 0 else StandIn(self.id, [*self.bundle_cache, *[{}] * more], self.key)), found

    def _where(self) -> tuple[int, ...]:
        if self._waits is not None:
            return self._waits.layout_of(self)
        if self.gate and not self._layout:
            gate = ray.get_actor(self.gate, _NAMESPACE)
            self._layout = tuple(ray.get(gate.layout.remote(self.key), timeout=_GATE_S))
        return self._layout

    def ready(self) -> Any:
        if self._waits is not None:
            passed = self._waits.passed(self)
        else:
            passed = ray.get_actor(self.gate, _NAMESPACE).passed.remote(self.key, self) if self.gate else None
        return super().ready() if passed is None else passed

    def wait(self, timeout_seconds: float = 30) -> bool:
        if self._waits is not None:
            return self._waits.until_in(self, timeout_seconds)
        return not self.gate or bool(ray.wait([self.ready()], timeout=timeout_seconds)[0])

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, StandIn) else bool(super().__eq__(other))

    __hash__ = PlacementGroup.__hash__

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        gate = self.gate if self._waits is None else self._waits.gate_of(self)
        layout = self._layout if self._waits is None else self._waits.layout_of(self)
        return revived(self.id.binary(), self.bundle_cache, self.key, gate, layout)


class StandIns:
    """The program's groups that are parts of the lease, until it removes them.

    A group that fits into the empty lease, but not beside the current groups, waits until they are removed. As in Ray,
    the first group that fits is next.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # reentrant: a program's destructors remove groups
        self.forget()

    def forget(self) -> None:
        """A new connection begins."""
        with self._changed:
            self._plans: dict[str, Plan] = {}
            self._layouts: dict[str, tuple[int, ...]] = {}
            self._waiting: dict[str, Plan] = {}
            self._actors: dict[str, list[Any]] = {}
            self._lease: Lease | None = None
            self._watcher: threading.Thread | None = None
            self._gate: Any = None
            self._gate_name = f"grid-gate-{uuid.uuid4().hex}"

    def add(self, lease: Lease, plan: Plan) -> StandIn:
        key = uuid.uuid4().hex
        with self._changed:
            self._lease = lease
            self._waiting[key] = plan
            self._let_in()
        return self._handle(lease, key, plan)

    def _handle(self, lease: Lease, key: str, plan: Plan) -> StandIn:
        return StandIn(lease.group_id, plan.bundles, key, waits=self)

    def is_in(self, group: StandIn) -> bool:
        """Whether it has its part of the lease."""
        return self._is_through(group.key)

    def _is_through(self, key: str) -> bool:
        return key not in self._waiting

    def tell_if_it_waits_long(self, tell: Callable[[Plan, str], None]) -> None:
        """Report the first group that waits for long, and why. Once per connection."""
        with self._changed:
            if self._waiting and self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, args=(tell,), daemon=True, name="grid-groups")
                self._watcher.start()

    def _watch(self, tell: Callable[[Plan, str], None]) -> None:
        with self._changed:
            why = None
            while why is None and self._watcher is threading.current_thread():
                key = next(iter(self._waiting), None)  # the longest wait
                if key is None or self._lease is None:
                    self._watcher = None
                elif not self._changed.wait_for(partial(self._is_through, key), LONG_S):
                    plan = self._waiting[key]
                    why = why_it_waits(plan, self._lease.places, self._taken())
        if why is not None:
            tell(plan, why)

    def _taken(self) -> Taken:
        parts: dict[int, list[Amounts]] = {}
        for key, plan in self._plans.items():
            for bundle, index in zip(plan.bundles, self._layouts[key], strict=True):
                parts.setdefault(index, []).append(bundle)
        return {index: added(bundles) for index, bundles in parts.items()}

    def layout_of(self, group: StandIn) -> tuple[int, ...]:
        """For each of its bundles the index of the lease's bundle; empty while it waits, or if the lease has only one
        bundle."""
        with self._changed:
            is_divided = self._lease is not None and self._lease.handle.bundle_count > 1
            return self._layouts.get(group.key, ()) if is_divided else ()

    def until_in(self, group: StandIn, within_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.is_in(group), None if within_s < 0 else within_s)

    def passed(self, group: StandIn) -> Any:
        """A reference that Ray resolves once the group has its part of the lease; None if it already has."""
        with self._changed:
            return self._gate.passed.remote(group.key, group) if self.gate_of(group) else None

    def gate_of(self, group: StandIn) -> str:
        """The name of the actor at which others wait for the group; empty if no wait is needed."""
        with self._changed:
            if self.is_in(group) or self._lease is None:
                return ""
            if self._gate is None:
                self._gate = _new_gate(self._gate_name, self._lease)
            return self._gate_name

    def named(self, lease: Lease, name: str) -> StandIn | None:
        plans = {**self._plans, **self._waiting}
        key = next((key for key, plan in plans.items() if plan.name == name), None)
        return None if key is None else self._handle(lease, key, plans[key])

    def holds(self, group: StandIn, actor: Any) -> None:
        """The actor was put into the group."""
        if group.key in self._plans or group.key in self._waiting:
            self._actors.setdefault(group.key, []).append(actor._actor_id)

    def remove(self, group: StandIn) -> None:
        """Free its part of the lease; its actors end, as they would with Ray's own group."""
        with self._changed:
            self._plans.pop(group.key, None)
            self._layouts.pop(group.key, None)
            self._waiting.pop(group.key, None)
            actors = self._actors.pop(group.key, ())
            for actor_id in actors:
                ray_worker.global_worker.core_worker.kill_actor(actor_id, True)
            self._let_in()

    def _let_in(self) -> None:
        for key, plan in list(self._waiting.items()):
            layout = None if self._lease is None else fit(plan, self._lease.places, self._taken())
            if layout is not None:
                self._plans[key], self._layouts[key] = self._waiting.pop(key), layout
                if self._gate is not None:
                    self._gate.let_pass.remote(key, layout)
        self._changed.notify_all()

    def described(self, group: StandIn, lease: dict[str, Any]) -> dict[str, Any]:
        """The entry for Ray's table of groups; `lease` is the entry of the lease's group."""
        plan = self._plans.get(group.key)
        waiting = self._waiting.get(group.key)
        known = plan or waiting
        nodes = {place.index: place.node_id for place in self._lease.places} if self._lease is not None else {}
        layout = self._layouts.get(group.key, ())
        return {
            **lease,
            "name": known.name if known else "",
            "strategy": known.strategy if known else "PACK",
            "state": lease.get("state", "CREATED") if plan else "PENDING" if waiting else "REMOVED",
            "bundles": dict(enumerate(group.bundle_cache)),
            "bundles_to_node_id": dict.fromkeys(range(group.bundle_count), "")
            | {index: nodes.get(at, "") for index, at in enumerate(layout)},
        }


def _new_gate(name: str, lease: Lease) -> Any:
    """An actor in the lease at which others wait, tasks elsewhere included: its calls return references to wait for."""

    class GridGate:  # defined here, so that Ray sends it by value
        def __init__(self) -> None:
            self._events: dict[str, Any] = {}
            self._layouts: dict[str, Any] = {}

        def _event(self, key: str) -> Any:
            import asyncio

            return self._events.setdefault(key, asyncio.Event())

        async def passed(self, key: str, group: Any) -> Any:
            await self._event(key).wait()
            return group

        async def let_pass(self, key: str, layout: Any) -> None:
            self._layouts[key] = layout
            self._event(key).set()

        async def layout(self, key: str) -> Any:
            return self._layouts.get(key, ())

    return (
        ray.remote(GridGate)
        .options(
            name=name,
            namespace=_NAMESPACE,
            num_cpus=0,
            max_concurrency=_MOST_WAITING,
            scheduling_strategy=PlacementGroupSchedulingStrategy(lease.handle, -1, True),
        )
        .remote()
    )
