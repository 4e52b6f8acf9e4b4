"""Whether a placement group that a program creates can be a part of the lease; pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .strategies import Place, needs_of, unmet

Amounts = Mapping[str, float]
MEMORY = ("memory", "object_store_memory")
_STEPS = 10_000
"""Ray counts in ten-thousandths."""
_OPTIONS = {"CPU": "cpus", "GPU": "gpus", "memory": "memory"}


def is_pin(resource: str) -> bool:
    """Whether the resource names a place rather than an amount."""
    return resource.startswith(("node:", "accelerator_type:"))


@dataclass(frozen=True, slots=True)
class Plan:
    """The group that the program asks for."""

    bundles: Sequence[Amounts]
    strategy: str = "PACK"
    selectors: Sequence[Mapping[str, str]] = ()
    topology: bool = False
    """It asks for a specific network topology."""
    detached: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True)
class Never:
    """Why a group can never be a part of the lease, and what would help; empty if only leaving the lease would."""

    why: str
    advice: str = ""


def why_never(plan: Plan, lease: Amounts, place: Place) -> Never | None:
    """None if the group fits into the empty lease."""
    why = _wrong_place(plan, place)
    if why is not None:
        return Never(why)
    lacking = _lacking(plan, lease, {})
    if lacking is None:
        return None
    name, amount = lacking
    option = _OPTIONS.get(name)
    return Never(
        f"it asks for {amount:g} {name}, and the lease has {lease.get(name, 0):g}",
        f"Ask for a larger lease (--{option} {_shown(name, amount)})" if option else "",
    )


def has_room(plan: Plan, lease: Amounts, taken: Iterable[Amounts]) -> bool:
    """Whether it fits beside the program's groups that already have a part of the lease."""
    return _lacking(plan, lease, added(taken)) is None


def why_it_waits(plan: Plan, lease: Amounts, taken: Iterable[Amounts]) -> str | None:
    """Why the group waits, and what would help; None if there is room."""
    used = added(taken)
    lacking = _lacking(plan, lease, used)
    if lacking is None:
        return None
    name, amount = lacking
    held, option = used.get(name, 0.0), _OPTIONS.get(name)
    larger = f", or ask for a larger lease (--{option} {_shown(name, amount + held)})" if option else ""
    has = f"it needs {amount:g} {name}, the lease has {lease.get(name, 0):g}"
    return (
        f"{has}, and other groups of the same process hold {held:g} until they are removed; "
        f"remove those that have done their work (remove_placement_group){larger}"
    )


def _wrong_place(plan: Plan, place: Place) -> str | None:
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
    return None


def _lacking(plan: Plan, lease: Amounts, used: Amounts) -> tuple[str, float] | None:
    """The first resource that is short, and how much of it the group asks for."""
    for name, amount in added(plan.bundles).items():
        if name in MEMORY and "memory" not in lease:
            continue  # a lease without memory does not count memory
        if _steps(amount) > _steps(lease.get(name, 0)) - _steps(used.get(name, 0)):
            return name, amount
    return None


def _shown(name: str, amount: float) -> str:
    return f"{math.ceil(amount / 2**30 * 10) / 10:g}" if name == "memory" else f"{amount:g}"


def added(bundles: Iterable[Amounts]) -> dict[str, float]:
    """The sum of the bundles, without resources that only name a place."""
    total: dict[str, float] = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            if not is_pin(name):
                total[name] = total.get(name, 0.0) + amount
    return total


def _steps(amount: float) -> int:
    return round(amount * _STEPS)
