"""`grid:lent:cpu` and its like: how far a node is from its base, as people see it in `ray status`.

They are not the ledger, but they tell a grid that has lost its ledger what is its own to undo. So a marker rises
together with the change that it tells of, and falls only after one whose outcome is known: too high for a moment
harms nobody, and a loan without a marker would be nobody's.
"""

from collections.abc import Iterable
from typing import Final

from distributed_grid.execution.port import RayMap
from distributed_grid.model.audit import Marks
from distributed_grid.model.resources import GPU, ResourceVector, amount_of, scale

GRIDS: Final = "grid:"
LENT: Final = "grid:lent:"
BORROWED: Final = "grid:borrowed:"

STAMP: Final = "grid:stamp"
"""A number that a shrink leaves on its node where it might be mistaken for an older state of it."""

# Ray may cut off the last digit on the way.
_LAST_DIGIT: Final = 1.5e-4


def markers(total: ResourceVector, base: ResourceVector, kinds: Iterable[str]) -> dict[str, float]:
    """What the markers of these kinds should be; zero for those that should not be there."""
    found = {STAMP: 0.0}
    for kind in kinds:
        found[f"{LENT}{kind}"] = float(amount_of(kind, max(0, base[kind] - total[kind])))
        found[f"{BORROWED}{kind}"] = float(amount_of(kind, max(0, total[kind] - base[kind])))
    return found


def is_marked(totals: RayMap) -> bool:
    """True if there is anything here that was written by grid."""
    return any(name.startswith((LENT, BORROWED, STAMP)) for name in totals)


def marked_kinds(totals: RayMap) -> set[str]:
    """The kinds that markers show on a node: left by a loan, even one that nobody remembers.

    Whatever else changed a node's totals (another tool, a person) is not ours to undo.
    """
    prefixes = (LENT, BORROWED)
    return {name.removeprefix(p) for name in totals for p in prefixes if name.startswith(p)} - {GPU}


def marks_of(totals: RayMap) -> Marks:
    """What the markers on a node say."""

    def amounts(prefix: str) -> ResourceVector:
        found = {name.removeprefix(prefix): amount for name, amount in totals.items() if name.startswith(prefix)}
        return ResourceVector({kind: round(amount * scale(kind)) for kind, amount in found.items()})

    others = [name for name in totals if name.startswith(GRIDS) and not name.startswith((LENT, BORROWED))]
    return Marks(amounts(LENT), amounts(BORROWED), tuple(sorted(others)))


def same(one: float, other: float) -> bool:
    return abs(one - other) < _LAST_DIGIT


def rising(wanted: RayMap, has: RayMap) -> dict[str, float]:
    """The markers that are to be higher than they are."""
    return {name: amount for name, amount in wanted.items() if amount > has.get(name, 0.0)}


def differ(wanted: RayMap, has: RayMap) -> bool:
    return not all(same(amount, has.get(name, 0.0)) for name, amount in wanted.items())
