"""Ray's placement-group functions, where the lease stands in for groups that the program creates."""

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from .captured import Captured
from .own_groups import Amounts, Plan, why_never
from .replacing import Function
from .standins import LONG_S, StandIn, StandIns

# Not `from ray.util import placement_group`: that is the function of the same name.
ray_groups = importlib.import_module("ray.util.placement_group")


def replacements(captured: Captured, own: StandIns, layer: Callable[[Function], Function]) -> dict[Function, Function]:
    """The replacements of Ray's own functions; `layer` returns the layer of each that is replaced."""
    create, remove = layer(ray_groups.placement_group), layer(ray_groups.remove_placement_group)
    find, table = layer(ray_groups.get_placement_group), layer(ray_groups.placement_group_table)
    current = ray_groups.get_current_placement_group

    @functools.wraps(create)
    def placement_group(*args: Any, **given: Any) -> Any:
        made = None
        if captured.ready():
            made = captured.guarded("groups", lambda: _stood_in_for(captured, own, _asked(create, args, given)), None)
        return create(*args, **given) if made is None else made

    @functools.wraps(remove)
    def remove_placement_group(placement_group: Any) -> None:
        if isinstance(placement_group, StandIn):
            captured.guarded("groups", lambda: own.remove(placement_group), None)
        elif captured.ready() and getattr(placement_group, "id", None) == captured.lease.group_id:
            captured.reports.note("the program tried to remove the lease's own group", "it ends with the lease")
        else:
            remove(placement_group)

    @functools.wraps(find)
    def get_placement_group(placement_group_name: str) -> Any:
        known = own.named(captured.lease, placement_group_name) if captured.ready() else None
        return known or find(placement_group_name)

    @functools.wraps(table)
    def placement_group_table(placement_group: Any = None) -> Any:
        shown = table(placement_group)
        if isinstance(placement_group, StandIn):
            return captured.guarded("groups", lambda: own.described(placement_group, shown), shown)
        return shown

    @functools.wraps(current)
    def get_current_placement_group() -> Any:
        """The lease's one handle, which caches its bundles: Ray's own would ask for them at every submission."""
        return captured.lease.handle if captured.ready() and captured.is_within() else current()

    return {
        create: placement_group,
        remove: remove_placement_group,
        find: get_placement_group,
        table: placement_group_table,
        current: get_current_placement_group,
    }


def _asked(create: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments by name; None if they are invalid, in which case Ray raises the error."""
    try:
        requested = dict(inspect.signature(create).bind(*args, **given).arguments)
        ray_groups.validate_placement_group(**{name: value for name, value in requested.items() if name != "name"})
    except (TypeError, ValueError):
        return None
    return requested


def _stood_in_for(captured: Captured, own: StandIns, requested: dict[str, Any] | None) -> StandIn | None:
    """A part of the lease in its place; None if the group is created outside, which is then reported."""
    if requested is None:
        return None
    plan = Plan(
        bundles=tuple(dict(bundle) for bundle in requested["bundles"]),
        strategy=requested.get("strategy") or "PACK",
        selectors=tuple(requested.get("bundle_label_selector") or ()),
        topology=bool(requested.get("topology_strategy")),
        detached=requested.get("lifetime") == "detached",
        name=requested.get("name") or "",
    )
    what = _named(plan)
    captured.lease.look_again()
    never = why_never(plan, captured.lease.places)
    if never is not None:
        captured.let_out(what, never.why, never.advice)
        return None
    made = own.add(captured.lease, plan)
    waits = "" if own.is_in(made) else " once other groups are removed"
    captured.reports.rewritten(what, f"it is a part of the lease{waits}")
    own.tell_if_it_waits_long(
        lambda plan, why: captured.reports.at_once(f"{_named(plan)} has waited for room for {LONG_S:.0f} s", why)
    )
    if plan.detached or plan.name:
        captured.reports.note(what, "it ends with the lease; its name is known only where it was made")
    return made


def _named(plan: Plan) -> str:
    return f"placement group {plan.name or '+'.join(_shown(bundle) for bundle in plan.bundles)}"


def _shown(bundle: Amounts) -> str:
    return ",".join(f"{name}={amount:g}" for name, amount in bundle.items())
