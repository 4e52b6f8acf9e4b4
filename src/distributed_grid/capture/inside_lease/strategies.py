"""Where a task or an actor goes that says itself where it wants to be: into the lease, or outside of it.

Pure: what Ray's options say comes in as plain data, which `options.py` reads, and so does what is known of the lease.
A wish is rewritten where the lease can be said to meet it: a wish for any node, a soft wish, a wish for the very node
that the lease is on. A hard wish for something else cannot be met inside; it is left as it is, and reported.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .labels import Need, unmet

ANYWHERE = ("DEFAULT", "SPREAD")
"""The strategies of Ray that name no place."""


@dataclass(frozen=True, slots=True)
class Place:
    """The node that the lease is on, as far as it is known."""

    node_id: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: frozenset[str] = frozenset()
    """The names of all that the node has; some of them stand for the node itself, or for its kind of GPU."""
    without_memory: bool = False
    """The lease has no memory of its own, so there is nothing to count memory against."""


@dataclass(frozen=True, slots=True)
class OnNode:
    node_id: str
    soft: bool


@dataclass(frozen=True, slots=True)
class Labelled:
    hard: tuple[Need, ...]


@dataclass(frozen=True, slots=True)
class InGroup:
    group_id: str
    """Of the lease's own group, where it is the lease's or one that the lease stands for."""


@dataclass(frozen=True, slots=True)
class NoGroup:
    """Explicitly in no group, or in none that its children inherit."""


Strategy = str | OnNode | Labelled | InGroup | NoGroup | None


@dataclass(frozen=True, slots=True)
class Wish:
    """All that one task's or actor's options say about where it goes."""

    strategy: Strategy = None
    selectors: tuple[tuple[Need, ...], ...] = ()
    """The label selector, then what it may fall back on: any one will do."""
    pins: tuple[str, ...] = ()
    """Resources that say where rather than how much: "node:10.0.0.1", "accelerator_type:A100"."""
    memory: bool = False
    """It says how much memory it will use."""


@dataclass(frozen=True, slots=True)
class AsItIs:
    """Nothing to do: Ray itself puts it into the lease, or refuses it."""


@dataclass(frozen=True, slots=True)
class Inside:
    """It goes into the lease, though it asked for something else."""

    asked: str
    why: str


@dataclass(frozen=True, slots=True)
class Outside:
    """It runs where it asked to, which is not in the lease."""

    asked: str
    why: str


Outcome = AsItIs | Inside | Outside


def settle(wish: Wish, place: Place, lease_group: str) -> Outcome:
    """Into the lease if every wish can be met or waived there; otherwise outside, for the first that cannot."""
    if isinstance(wish.strategy, InGroup) and wish.strategy.group_id != lease_group:
        return Outside(f"in placement group {wish.strategy.group_id[:8]}", "that group is not the lease's")
    if isinstance(wish.strategy, str) and wish.strategy not in ANYWHERE:
        return AsItIs()  # nothing that Ray knows: Ray says so
    met = [
        found
        for found in (
            _strategy(wish.strategy, place),
            _selectors(wish.selectors, place),
            _pins(wish.pins, place),
            _memory(wish.memory, place),
        )
        if found is not None
    ]
    outside = [found for found in met if isinstance(found, Outside)]
    if outside:
        return outside[0]
    if not met:
        return AsItIs()
    return Inside(", ".join(found.asked for found in met), met[0].why)


def _strategy(strategy: Strategy, place: Place) -> Inside | Outside | None:
    match strategy:
        case str():
            return Inside(strategy, "the lease is on one node, and is where it may run")
        case NoGroup():
            return Inside("no placement group", "the lease is where it may run")
        case OnNode(node_id, soft):
            asked = f"{'rather ' if soft else ''}on node {node_id[:8]}"
            if node_id == place.node_id:
                return Inside(asked, "the lease is on that node")
            if soft:
                return Inside(asked, "that was a soft wish, and the lease is on another node")
            return Outside(asked, f"the lease is on {_named(place)}")
        case Labelled(hard):
            missing = unmet(hard, place.labels)
            if missing:
                return Outside(f"on a node with {_listed(missing)}", f"the lease is on {_named(place)}")
            return Inside(f"on a node with {_listed(hard)}" if hard else "soft labels", "the lease's node will do")
    return None


def _selectors(selectors: tuple[tuple[Need, ...], ...], place: Place) -> Inside | Outside | None:
    if not selectors:
        return None
    asked = f"on a node with {_listed(selectors[0])}"
    if any(not unmet(selector, place.labels) for selector in selectors):
        return Inside(asked, "the lease's node will do")
    return Outside(asked, f"the lease is on {_named(place)}")


def _pins(pins: tuple[str, ...], place: Place) -> Inside | Outside | None:
    if not pins:
        return None
    if all(pin in place.resources for pin in pins):
        return Inside(f"where {pins[0]} is", "the lease's node has it")
    return Outside(f"where {pins[0]} is", f"the lease is on {_named(place)}")


def _memory(memory: bool, place: Place) -> Inside | None:
    """Ray would refuse it in a group without memory; yet most tasks say nothing about memory, and use some."""
    if memory and place.without_memory:
        return Inside("with memory", "the lease has none of its own to count it against, so it is not counted")
    return None


def _listed(needs: tuple[Need, ...]) -> str:
    return " and ".join(str(need) for need in needs)


def _named(place: Place) -> str:
    return f"node {place.labels.get('grid/name') or place.node_id[:8]}" if place.node_id else "a node not known here"
