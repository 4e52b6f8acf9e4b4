"""Whether a placement group that a program creates can be a part of the lease; pure."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


Taken = Mapping[int, Amounts]
"""What the program's other groups have of each bundle of the lease, by its index."""


def why_never(plan: Plan, places: Sequence[Place]) -> Never | None:
    """None if the group fits into the empty lease."""
    wrong = _wrong_place(plan, places)
    if wrong is not None:
        return wrong
    lacking = _lacking(plan, places, {})
    if lacking is not None:
        name, amount, has = lacking
        option = _OPTIONS.get(name)
        return Never(
            f"it asks for {amount:g} {name}, and the lease has {has:g}",
            f"Ask for a larger lease (--{option} {_shown(name, amount)})" if option else "",
        )
    return None if fit(plan, places, {}) is not None else _why_not_in_bundles(plan, places)


def _why_not_in_bundles(plan: Plan, places: Sequence[Place]) -> Never:
    """Why a group does not fit although all bundles of the lease together have enough."""
    if plan.strategy == "STRICT_PACK":
        return Never("all its bundles must be on one node, and no node of the lease has so much", _ON_ONE)
    for index, bundle in enumerate(plan.bundles):
        if not any(_fits(bundle, place.amounts) for place in places if _suits(plan, index, place)):
            asks = ", ".join(f"{amount:g} {name}" for name, amount in added([bundle]).items())
            return Never(f"a bundle asks for {asks}, and no node of the lease has so much", _ON_ONE)
    return Never(
        f"its {len(plan.bundles)} bundles cannot be laid out ({plan.strategy}) on the {len(places)} nodes of the lease",
        "Ask for more on each node (--nodes with --cpus, --gpus or --memory)",
    )


_ON_ONE = "Ask for a lease on one node (--nodes 1), or for more on each (--nodes with --cpus, --gpus or --memory)"


def why_it_waits(plan: Plan, places: Sequence[Place], taken: Taken) -> str | None:
    """Why the group waits, and what would help; None if there is room."""
    remove = "remove those that have done their work (remove_placement_group)"
    lacking = _lacking(plan, places, taken)
    if lacking is None:
        if fit(plan, places, taken) is not None:
            return None
        return f"other groups of the same process hold parts of the nodes that it needs; {remove}"
    name, amount, has = lacking
    held, option = added(taken.values()).get(name, 0.0), _OPTIONS.get(name)
    larger = f", or ask for a larger lease (--{option} {_shown(name, amount + held)})" if option else ""
    return (
        f"it needs {amount:g} {name}, the lease has {has:g}, and other groups of the same process hold {held:g} "
        f"until they are removed; {remove}{larger}"
    )


def _wrong_place(plan: Plan, places: Sequence[Place]) -> Never | None:
    if plan.detached and plan.name:
        return Never("it is detached and has a name, so other programs may look for it")
    if plan.topology:
        return Never("it asks for a topology of several nodes")
    nodes, count = len({place.node_id for place in places}), len(plan.bundles)
    if plan.strategy == "STRICT_SPREAD" and count > nodes:
        is_on = "one" if nodes == 1 else str(nodes)
        return Never(
            f"its {count} bundles must be on different nodes, and the lease is on {is_on}",
            f"Ask for a lease on several nodes (--nodes {count})",
        )
    for index in range(count):
        if not any(_suits(plan, index, place) for place in places):
            return Never(_why_not_suited(plan, index, places[0]))
    return None


def _suits(plan: Plan, index: int, place: Place) -> bool:
    """Whether a bundle of the group may be on this node, by its labels and by resources that name a place."""
    selected = not plan.selectors or not unmet(needs_of(plan.selectors[index]), place.labels)
    return selected and all(name in place.resources for name in plan.bundles[index] if is_pin(name))


def _why_not_suited(plan: Plan, index: int, place: Place) -> str:
    missing = unmet(needs_of(plan.selectors[index]), place.labels) if plan.selectors else ()
    if missing:
        return f"a bundle needs a node with {missing[0]}"
    pin = next(name for name in sorted(plan.bundles[index]) if is_pin(name) and name not in place.resources)
    return f"a bundle must be where {pin} is"


def _lacking(plan: Plan, places: Sequence[Place], taken: Taken) -> tuple[str, float, float] | None:
    """The first resource that is short in all bundles together: its name, how much the group asks for, and how much the
    lease has."""
    lease, used = added(place.amounts for place in places), added(taken.get(place.index, {}) for place in places)
    for name, amount in added(plan.bundles).items():
        if name in MEMORY and "memory" not in lease:
            continue  # a lease without memory does not count memory
        has = lease.get(name, 0.0)
        if _steps(amount) > _steps(has) - _steps(used.get(name, 0)):
            return name, amount, has
    return None


# -- the layout ------------------------------------------------------------------------------------------------


def fit(plan: Plan, places: Sequence[Place], taken: Taken) -> tuple[int, ...] | None:
    """For each bundle of the group the index of the lease's bundle that it becomes a part of, by the group's strategy;
    None if there is no room beside the groups that have theirs."""
    if plan.strategy == "STRICT_PACK":
        nodes = dict.fromkeys(place.node_id for place in places)
        on_each = ([place for place in places if place.node_id == node] for node in nodes)
        return next(filter(None, (_Layout(plan, on_one, taken).found() for on_one in on_each)), None)
    return _Layout(plan, places, taken).found()


class _Layout:
    """The search for a layout: the largest bundles first; each on the node that its group's strategy prefers."""

    def __init__(self, plan: Plan, places: Sequence[Place], taken: Taken) -> None:
        self._plan, self._places = plan, places
        self._needs = [added([bundle]) for bundle in plan.bundles]
        self._free = {place.index: _left(place.amounts, taken.get(place.index, {})) for place in places}
        self._on = dict.fromkeys((place.node_id for place in places), 0)
        total = added(place.amounts for place in places)
        part = [max((amount / (total.get(name) or 1) for name, amount in n.items()), default=0) for n in self._needs]
        self._order = sorted(range(len(part)), key=lambda index: -part[index])
        self._found: dict[int, int] = {}
        is_equal = all(bundle == plan.bundles[0] for bundle in plan.bundles) and not plan.selectors
        self._tries = 0 if is_equal else _MOST_TRIES  # of equal bundles, none that has a place makes way for another

    def found(self) -> tuple[int, ...] | None:
        chosen: list[Iterator[Place]] = []
        while len(self._found) < len(self._order):
            if len(chosen) == len(self._found):
                chosen.append(iter(self._candidates(self._order[len(chosen)])))
            place = next(chosen[-1], None)
            self._tries -= 1
            if place is not None:
                self._put(self._order[len(chosen) - 1], place)
                continue
            chosen.pop()
            if not chosen or self._tries < 0:
                return None
            self._take_back(self._order[len(chosen) - 1])
        return tuple(self._found[index] for index in range(len(self._needs)))

    def _candidates(self, index: int) -> list[Place]:
        spread = "SPREAD" in self._plan.strategy
        able = [
            place
            for place in self._places
            if _suits(self._plan, index, place)
            and not (self._plan.strategy == "STRICT_SPREAD" and self._on[place.node_id])
            and _fits(self._needs[index], self._free[place.index])
        ]

        def preference(place: Place) -> tuple[float, float, int]:
            on_it = self._on[place.node_id]
            return (on_it if spread else -min(on_it, 1), -self._count(index, place), place.index)

        return sorted(able, key=preference)

    def _count(self, index: int, place: Place) -> float:
        """How many such bundles still fit there."""
        free = self._free[place.index]
        counts = (free.get(name, 0) / amount for name, amount in self._needs[index].items() if amount)
        return min(counts, default=0.0)

    def _put(self, index: int, place: Place) -> None:
        self._found[index] = place.index
        self._on[place.node_id] += 1
        self._free[place.index] = _left(self._free[place.index], self._needs[index])

    def _take_back(self, index: int) -> None:
        place = next(place for place in self._places if place.index == self._found[index])
        del self._found[index]
        self._on[place.node_id] -= 1
        free, needs = self._free[place.index], self._needs[index]
        self._free[place.index] = {name: has + needs.get(name, 0.0) for name, has in free.items()}


_MOST_TRIES = 2_000
"""A layout of many different bundles may take too long to find; the group then waits, as if there were no room."""


def _left(amounts: Amounts, used: Amounts) -> dict[str, float]:
    return {name: has - used.get(name, 0.0) for name, has in amounts.items()}


def _fits(needs: Amounts, free: Amounts) -> bool:
    """A bundle of the lease without memory does not count memory."""
    return all(
        _steps(amount) <= _steps(free.get(name, 0)) or (name in MEMORY and "memory" not in free)
        for name, amount in needs.items()
        if not is_pin(name)
    )


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
