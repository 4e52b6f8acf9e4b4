"""Reads from Ray's options where a task or an actor asks to run, and writes where it runs."""

from collections.abc import Mapping
from typing import Any

from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import (
    DoesNotExist,
    Exists,
    In,
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    NotIn,
    PlacementGroupSchedulingStrategy,
)

from .own_groups import MEMORY, is_pin
from .standins import StandIn
from .strategies import (
    InGroup,
    Inside,
    Labelled,
    Need,
    NoGroup,
    OnNode,
    Outcome,
    Outside,
    Requested,
    Strategy,
    needs_of,
)

Options = Mapping[str, Any]

_GROUP_OPTIONS = ("placement_group", "placement_group_bundle_index", "placement_group_capture_child_tasks")
_LABEL_OPTIONS = ("label_selector", "fallback_strategy")


def says_nothing(options: Options) -> bool:
    """True for most work: Ray itself puts it into the lease."""
    return (
        options.get("scheduling_strategy") is None
        and not any(options.get(name) for name in (*_LABEL_OPTIONS, *MEMORY, "accelerator_type", "resources"))
        and all(name not in options for name in _GROUP_OPTIONS)
    )


def requested_by(options: Options) -> Requested:
    fallbacks = [other.get("label_selector") for other in options.get("fallback_strategy") or ()]
    selector = options.get("label_selector")
    selectors = tuple(needs_of(one or {}) for one in ([selector] if selector else []) + fallbacks)
    accelerator = options.get("accelerator_type")
    pins = [name for name in options.get("resources") or {} if is_pin(name)]
    return Requested(
        strategy=_strategy(options),
        selectors=selectors if selector else (),
        pins=(*pins, f"accelerator_type:{accelerator}") if accelerator else tuple(pins),
        memory=any(options.get(name) for name in MEMORY),
    )


def amounts(options: Options) -> dict[str, float]:
    """The amounts that a task or actor asks for, without resources that only name a place."""
    named = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    requested = {name: options.get(option) for name, option in named.items()} | dict(options.get("resources") or {})
    return {name: float(amount) for name, amount in requested.items() if amount and not is_pin(name)}


def _strategy(options: Options) -> Strategy:
    requested = options.get("scheduling_strategy")
    match requested:
        case NodeAffinitySchedulingStrategy():
            return OnNode(requested.node_id, requested.soft)
        case NodeLabelSchedulingStrategy():
            return Labelled(tuple(_need(expression) for expression in requested.hard))
        case None | PlacementGroupSchedulingStrategy():
            group, _, captures = _group(options)
            if isinstance(group, PlacementGroup) and not group.is_empty:
                return InGroup(group.id.hex())
            return NoGroup() if group != "default" or captures is False else None
    return requested if isinstance(requested, str) else None


def _need(expression: Any) -> Need:
    match expression.operator:
        case In(values=values):
            return Need(expression.key, frozenset(values))
        case NotIn(values=values):
            return Need(expression.key, frozenset(values), negated=True)
        case Exists():
            return Need(expression.key, None)
        case DoesNotExist():
            return Need(expression.key, None, negated=True)
    raise TypeError(f"unsupported label condition: {expression.operator!r}")


def _group(options: Options) -> tuple[Any, int, bool | None]:
    """The group, the bundle's index, and whether children inherit the group; "default" if unspecified."""
    requested = options.get("scheduling_strategy")
    if isinstance(requested, PlacementGroupSchedulingStrategy):
        return (
            requested.placement_group,
            requested.placement_group_bundle_index,
            requested.placement_group_capture_child_tasks,
        )
    return (
        options.get("placement_group", "default"),
        options.get("placement_group_bundle_index", -1),
        options.get("placement_group_capture_child_tasks"),
    )


def written(
    options: Options, outcome: Outcome, lease: PlacementGroup, *, memory: bool = True, bundle: int = -1
) -> dict[str, Any]:
    """The options that carry out the outcome, with `lease` as the group. Without `memory`, none is asked for there.

    `bundle`: the index of the lease's bundle, for work that names none of its group; -1: any.
    """
    group, index, _ = _group(options)
    in_lease_group = isinstance(group, PlacementGroup) and group.id == lease.id
    plain = {name: value for name, value in options.items() if name not in _GROUP_OPTIONS}
    if isinstance(outcome, Inside):
        said_where = (*_LABEL_OPTIONS, "accelerator_type", *(() if memory else MEMORY))
        plain = {name: value for name, value in plain.items() if name not in said_where}
        if plain.get("resources"):
            plain["resources"] = {name: n for name, n in plain["resources"].items() if not is_pin(name)}
    elif isinstance(outcome, Outside):
        # Without a strategy, Ray would put the work into the lease, where it could never start.
        elsewhere = isinstance(group, PlacementGroup) and not in_lease_group
        captured = options.get("scheduling_strategy") is None or in_lease_group
        return {**plain, "scheduling_strategy": "DEFAULT"} if captured and not elsewhere else dict(options)
    elif not in_lease_group and not (group == "default" and index >= 0):
        return dict(options)
    handle, index = _in_lease(group, index, lease) if in_lease_group else (lease, -1)
    found = bundle if index == -1 and handle is lease else index
    return {**plain, "scheduling_strategy": PlacementGroupSchedulingStrategy(handle, found, True)}


def _in_lease(handle: PlacementGroup, index: int, lease: PlacementGroup) -> tuple[PlacementGroup, int]:
    """The handle and the index with which Ray puts work into the lease's bundle.

    Work in any of the program's groups sees the lease's own handle as its current group, so that handle stands in for
    any number of bundles. Another handle of the lease's group is from a program that knows the lease: its bundles are
    the lease's.
    """
    if isinstance(handle, StandIn):
        return handle.at(index)
    if handle is not lease and lease.bundle_count > 1 and -1 <= index < lease.bundle_count:
        return handle, index
    return handle, min(index, -1)
