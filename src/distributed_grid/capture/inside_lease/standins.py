"""Handles of placement groups that a program made for itself, and that are a part of the lease."""

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from ray._private import worker as ray_worker
from ray.util.placement_group import PlacementGroup

from .own_groups import Amounts, Plan, added
from .strategies import Place


class StandIn(PlacementGroup):  # type: ignore[misc]
    """Looks like the group that was asked for; whatever uses it runs in the lease's own.

    It has the lease's id, so Ray checks against the program's bundles and schedules in the lease. Two of them are
    different groups, though they have one id.
    """

    def __init__(self, group_id: Any, bundles: Sequence[Amounts], key: str) -> None:
        super().__init__(group_id, [{name: float(amount) for name, amount in bundle.items()} for bundle in bundles])
        self.key = key

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, StandIn) else bool(super().__eq__(other))

    __hash__ = PlacementGroup.__hash__

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        from .travelling import revived

        return revived(self)


class StandIns:
    """The program's groups that are part of the lease, until it removes them."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._plans: dict[str, Plan] = {}
        self._actors: dict[str, list[Any]] = {}

    def add(self, group_id: Any, plan: Plan) -> StandIn:
        key = uuid.uuid4().hex
        self._plans[key] = plan
        return StandIn(group_id, plan.bundles, key)

    def taken(self) -> list[Amounts]:
        return [added(plan.bundles) for plan in self._plans.values()]

    def named(self, group_id: Any, name: str) -> StandIn | None:
        found = [(key, plan) for key, plan in self._plans.items() if plan.name == name]
        return StandIn(group_id, found[0][1].bundles, found[0][0]) if found else None

    def holds(self, group: StandIn, actor: Any) -> None:
        """The actor was put into the group."""
        if group.key in self._plans:
            self._actors.setdefault(group.key, []).append(actor._actor_id)

    def remove(self, group: StandIn) -> None:
        """Its part of the lease is free for others; its actors end, as they would with Ray's own group."""
        self._plans.pop(group.key, None)
        for actor_id in self._actors.pop(group.key, ()):
            ray_worker.global_worker.core_worker.kill_actor(actor_id, True)

    def described(self, group: StandIn, lease: dict[str, Any], place: Place) -> dict[str, Any]:
        """What Ray's table of groups would show; `lease` is what it shows of the lease's group."""
        plan = self._plans.get(group.key)
        return {
            **lease,
            "name": plan.name if plan else "",
            "strategy": plan.strategy if plan else "PACK",
            "state": lease.get("state", "CREATED") if plan else "REMOVED",
            "bundles": dict(enumerate(group.bundle_cache)),
            "bundles_to_node_id": dict.fromkeys(range(group.bundle_count), place.node_id if plan else ""),
        }
