"""Why something waits in Ray's queues: for capacity that is in use, or for a node that does not exist."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from distributed_grid.decide.capacity.devices import describe_room, fit_at_once, short_of
from distributed_grid.model.demand import Bundle, Demand, Pending, Shape, WaitReason
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.resources import GPU, ResourceVector, describe, total, unit_label

Since = Mapping[Shape, datetime]

_MOMENT: Final = timedelta(seconds=15)
"""Work that finds room starts within this time, even on a busy machine, unless something else prevents it."""
_STILL_WAITS: Final = (
    ", but Ray has not placed it there: its process is still starting, or a NodeLabelSchedulingStrategy excludes the "
    "node (Ray does not report such strategies; with label_selector, grid knows the allowed nodes)"
)


def explain_demand(pending: Iterable[Pending], nodes: NodeTable, since: Since, *, now: datetime) -> tuple[Demand, ...]:
    """Every pending shape with its reason; the longest waiting first, equal ones by their description."""
    alive = list(nodes.alive)
    found = [_explained(one, alive, since.get(one.shape, now), now) for one in pending]
    return tuple(sorted(found, key=lambda demand: (demand.since, demand.pending.shape.describe())))


def seen_since(pending: Iterable[Pending], before: Since, *, now: datetime) -> dict[Shape, datetime]:
    """Since when each shape has been pending without a break.

    Ray does not report this: it is how long grid has seen the shape.
    """
    return {one.shape: before.get(one.shape, now) for one in pending}


def wanted_from(demand: Iterable[Demand], node: NodeName) -> tuple[Demand, ...]:
    """Work that waits for this node in particular: its labels allow no other, or no other is large enough."""
    return tuple(d for d in demand if only_node(d) == node)


def only_node(demand: Demand) -> NodeName | None:
    """The one node that this demand waits for; None if there are several, or none."""
    if len(demand.wanted_on) == 1:
        return demand.wanted_on[0]
    return demand.could_run_on[0] if len(demand.could_run_on) == 1 else None


def _explained(pending: Pending, alive: list[Node], since: datetime, now: datetime) -> Demand:
    shape = pending.shape
    if shape.in_group is not None:
        return Demand(pending, WaitReason.CAPACITY, "its placement group is in use", (), (), since)
    allowed = {bundle: _allowed(bundle, alive) for bundle in shape.bundles}
    large = {bundle: [n for n in allowed[bundle] if fit_at_once(n.total, bundle.needs)] for bundle in shape.bundles}
    wanted_on = _names(allowed) if any(len(found) < len(alive) for found in allowed.values()) else ()
    why_never = _why_never(shape, allowed, large, len(alive))
    if why_never is not None:
        return Demand(pending, WaitReason.INFEASIBLE, why_never, (), wanted_on, since)
    detail = _what_is_in_the_way(shape, large, is_long=now - since >= _MOMENT)
    return Demand(pending, WaitReason.CAPACITY, detail, _names(large), wanted_on, since)


def _allowed(bundle: Bundle, alive: list[Node]) -> list[Node]:
    return [node for node in alive if bundle.allows_node(node.name, node.labels)] if bundle.is_pinned else alive


_Choice = Mapping[Bundle, list[Node]]


def _names(choice: _Choice) -> tuple[NodeName, ...]:
    return tuple(sorted({node.name for nodes in choice.values() for node in nodes}))


def _why_never(shape: Shape, allowed: _Choice, large: _Choice, alive: int) -> str | None:
    """Why even an idle cluster has no room; None if it has."""
    for bundle in shape.bundles:
        if not allowed[bundle]:
            return f"no node has {bundle.pin.by}" if bundle.pin and not bundle.selectors else "no node has these labels"
        if not large[bundle]:
            is_pinned = len(allowed[bundle]) < alive
            return _too_large_there(bundle, allowed[bundle]) if is_pinned else _too_large([bundle], allowed[bundle])
    every = list({node.name: node for nodes in large.values() for node in nodes}.values())
    if shape.strategy == "STRICT_PACK" and not any(fit_at_once(node.total, *shape.all_needs) for node in every):
        return f"one node must hold all of it: {_too_large(shape.bundles, every)}"
    if shape.strategy == "STRICT_SPREAD" and len(shape.bundles) > len(every):
        return f"it needs {len(shape.bundles)} nodes, and {len(every)} are large enough"
    together = total([node.total for node in every])
    if fit_at_once(together, *shape.all_needs):
        return None
    lacking = [kind for kind in shape.needs if together[kind] < shape.needs[kind]]
    if not lacking:
        return f"all nodes together have {describe(GPU, together[GPU])}, and no room for {_on_devices(shape.bundles)}"
    has = ", ".join(f"{describe(kind, together[kind])} of {describe(kind, shape.needs[kind])}" for kind in lacking)
    return f"all nodes together have {has}"


def _on_devices(bundles: Iterable[Bundle]) -> str:
    """ "3 x 0.6 GPUs, each on one device"."""
    each = Counter(describe(GPU, bundle.needs[GPU]) for bundle in bundles if GPU in bundle.needs)
    amounts = ", ".join(amount if count == 1 else f"{count} x {amount}" for amount, count in each.items())
    return f"{amounts}, each on one device"


def _too_large_there(bundle: Bundle, nodes: list[Node]) -> str:
    """The capacity that the pinned nodes lack; other nodes may have enough."""
    match = f"{bundle.pin.by} matches" if bundle.pin else "its labels match"
    if len(nodes) == 1:
        (node,) = nodes
        short = [describe(kind, node.total[kind]) for kind, units in bundle.needs.items() if node.total[kind] < units]
        return f"{match} only {node.name}, which has {', '.join(short)}"
    names = ", ".join(node.name for node in nodes)
    return f"{match} only nodes that are too small ({names}): {_too_large([bundle], nodes, 'none')}"


def _too_large(bundles: Sequence[Bundle], nodes: list[Node], none: str = "no node") -> str:
    """Which kind is the problem: one that no node has enough of, or none alone but all at once."""
    needs = total([bundle.needs for bundle in bundles])
    gpus = [ResourceVector({GPU: bundle.needs[GPU]}) for bundle in bundles]
    most = {kind: max(node.total[kind] for node in nodes) for kind in needs}
    short = [
        f"{none} has more than {describe(kind, most[kind])}" if most[kind] else f"{none} has {unit_label(kind)}"
        for kind in needs
        if most[kind] < needs[kind]
    ]
    if not short and not any(fit_at_once(node.total, *gpus) for node in nodes):
        return f"{none} has room for {_on_devices(bundles)}"
    return "; ".join(short) or f"{none} has all of it at once"


def _what_is_in_the_way(shape: Shape, large: _Choice, *, is_long: bool) -> str:
    """For the first bundle without room: the node that comes nearest, and what it lacks right now."""
    full = [bundle for bundle in shape.bundles if not any(_has_room(node, bundle) for node in large[bundle])]
    if not full and shape.is_group:
        return "there is room for each of its bundles alone, but not for all"
    if not full:
        (bundle,) = shape.bundles
        roomy = next(node.name for node in large[bundle] if _has_room(node, bundle))
        return f"{roomy} has room by now{_STILL_WAITS if is_long else ''}"
    needs = full[0].needs
    nearest = min(large[full[0]], key=lambda node: (_gap(node, needs), node.name))
    return f"{nearest.name} has {', '.join(_too_little(nearest, kind, needs) for kind in short_of(nearest, needs))}"


def _has_room(node: Node, bundle: Bundle) -> bool:
    return node.free.covers(bundle.needs) and not short_of(node, bundle.needs)


def _gap(node: Node, needs: ResourceVector) -> float:
    """The parts of the need that the node lacks, over all kinds."""
    return sum(units / needs[kind] for kind, units in short_of(node, needs).items())


def _too_little(node: Node, kind: str, needs: ResourceVector) -> str:
    if node.free[kind] < needs[kind]:
        return f"{describe(kind, node.free[kind])} of {describe(kind, needs[kind])} free"
    return f"{describe(kind, node.free[kind])} free, but only {describe_room(node, needs[kind])}"
