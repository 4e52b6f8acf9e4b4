"""Whether a placement group that a program makes for itself can be a part of the lease; pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .labels import needs_of, unmet
from .strategies import Place

Amounts = Mapping[str, float]
MEMORY = ("memory", "object_store_memory")
_STEPS = 10_000
"""Ray counts in ten-thousandths."""


def is_pin(resource: str) -> bool:
    """A resource that says where rather than how much."""
    return resource.startswith(("node:", "accelerator_type:"))


@dataclass(frozen=True, slots=True)
class Plan:
    """What the program asks for."""

    bundles: Sequence[Amounts]
    strategy: str = "PACK"
    selectors: Sequence[Mapping[str, str]] = ()
    topology: bool = False
    """It asks for a certain network around its nodes."""
    detached: bool = False
    name: str = ""


def why_not(plan: Plan, lease: Amounts, taken: Iterable[Amounts], place: Place) -> str | None:
    """Why it cannot be a part of the lease; None if it can.

    `taken` are the program's other groups that are part of the lease: Ray would keep them apart, too.
    """
    if plan.detached and plan.name:
        return "it is detached and has a name, so other programs may look for it"
    if plan.topology:
        return "it asks for a topology of several nodes"
    if plan.strategy == "STRICT_SPREAD" and len(plan.bundles) > 1:
        return f"its {len(plan.bundles)} bundles must be on different nodes, and the lease is on one"
    for selector in plan.selectors:
        missing = unmet(needs_of(selector), place.labels)
        if missing:
            return f"a bundle needs a node with {missing[0]}"
    elsewhere = sorted({name for bundle in plan.bundles for name in bundle if is_pin(name)} - place.resources)
    if elsewhere:
        return f"a bundle must be where {elsewhere[0]} is"
    return _too_much(plan, lease, list(taken))


def _too_much(plan: Plan, lease: Amounts, taken: Sequence[Amounts]) -> str | None:
    wanted, used = added(plan.bundles), added(taken)
    for name, amount in wanted.items():
        if name in MEMORY and "memory" not in lease:
            continue  # where the lease has no memory, none is counted
        has, in_use = _steps(lease.get(name, 0)), _steps(used.get(name, 0))
        if _steps(amount) > has - in_use:
            others = f", {in_use / _STEPS:g} of them in other groups" if in_use else ""
            return f"it asks for {amount:g} {name}, and the lease has {has / _STEPS:g}{others}"
    return None


def added(bundles: Iterable[Amounts]) -> dict[str, float]:
    """What they hold together; what only says where is left out."""
    total: dict[str, float] = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            if not is_pin(name):
                total[name] = total.get(name, 0.0) + amount
    return total


def _steps(amount: float) -> int:
    return round(amount * _STEPS)
