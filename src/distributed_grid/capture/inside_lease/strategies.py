"""Where a task or an actor with placement options runs: inside the lease or outside of it.

Pure: Ray's options, which `options.py` reads, and the known facts about the lease come in as plain data. Placement
that the lease meets is rewritten: any node, a soft affinity, a node that the lease is on. A hard condition that no node
of the lease meets stays as it is and is reported.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Need:
    """One condition on one label, as Ray's scheduler reads it."""

    key: str
    among: frozenset[str] | None
    """None: any value."""
    negated: bool = False

    def met_by(self, labels: Mapping[str, str]) -> bool:
        """As in Ray, a missing label has no value and so matches no list."""
        value = labels.get(self.key)
        found = value is not None and (self.among is None or value in self.among)
        return found != self.negated

    def __str__(self) -> str:
        if self.among is None:
            return f"no {self.key}" if self.negated else f"any {self.key}"
        values = ", ".join(sorted(self.among))
        return f"{self.key}{'!=' if self.negated else '='}{values}"


def needs_of(selector: Mapping[str, str]) -> tuple[Need, ...]:
    """Ray's `label_selector`: "a", "!a", "in(a, b)" or "!in(a, b)" for each key."""
    return tuple(_need(key, condition.strip()) for key, condition in selector.items())


def _need(key: str, condition: str) -> Need:
    negated = condition.startswith("!")
    values = condition.removeprefix("!").strip()
    if values.endswith(")") and "(" in values:
        listed = values[values.index("(") + 1 : -1].split(",")
        return Need(key, frozenset(value.strip() for value in listed), negated)
    return Need(key, frozenset({values}), negated)


def unmet(needs: Iterable[Need], labels: Mapping[str, str]) -> tuple[Need, ...]:
    return tuple(need for need in needs if not need.met_by(labels))


ANYWHERE = ("DEFAULT", "SPREAD")
"""Ray's strategies that name no place."""


@dataclass(frozen=True, slots=True)
class Place:
    """The known facts about one bundle of the lease, and about the node that it is on."""

    node_id: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: frozenset[str] = frozenset()
    """The names of all the node's resources; some name the node itself, or its kind of GPU."""
    amounts: Mapping[str, float] = field(default_factory=dict)
    """What the bundle has."""
    index: int = 0
    """The bundle's index in the lease's group."""

    @property
    def without_memory(self) -> bool:
        """There is no memory to count memory against."""
        return bool(self.amounts) and "memory" not in self.amounts


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
    """The lease's own id, for the lease's group and for a group that the lease stands in for."""


@dataclass(frozen=True, slots=True)
class NoGroup:
    """Explicitly in no group, or in one that its children do not inherit."""


Strategy = str | OnNode | Labelled | InGroup | NoGroup | None


@dataclass(frozen=True, slots=True)
class Requested:
    """All that a task's or actor's options say about its placement."""

    strategy: Strategy = None
    selectors: tuple[tuple[Need, ...], ...] = ()
    """The label selector, then its fallbacks: meeting one of them is enough."""
    pins: tuple[str, ...] = ()
    """Resources that name a place rather than an amount: "node:10.0.0.1", "accelerator_type:A100"."""
    memory: bool = False
    """It states how much memory it will use."""


@dataclass(frozen=True, slots=True)
class AsItIs:
    """No change: Ray itself puts it into the lease, or refuses it."""


@dataclass(frozen=True, slots=True)
class Inside:
    """It goes into the lease, though it asked for another place."""

    wanted: str
    why: str
    bundles: tuple[int, ...] = ()
    """The only bundles of the lease that meet its conditions; empty: all of them do."""


@dataclass(frozen=True, slots=True)
class Outside:
    """It runs where it asked to, outside the lease."""

    wanted: str
    why: str


Outcome = AsItIs | Inside | Outside


def settle(requested: Requested, places: Sequence[Place], lease_group: str) -> Outcome:
    """Inside if every condition can be met or waived on a node of the lease; otherwise outside, because of the first
    that cannot."""
    if isinstance(requested.strategy, InGroup) and requested.strategy.group_id != lease_group:
        return Outside(f"in placement group {requested.strategy.group_id[:8]}", "that group is not the lease's")
    if isinstance(requested.strategy, str) and requested.strategy not in ANYWHERE:
        return AsItIs()  # invalid options: Ray raises the error
    outcomes = [(place.index, _at(requested, place, places)) for place in places]
    inside = [(index, outcome) for index, outcome in outcomes if not isinstance(outcome, Outside)]
    if not inside:
        return outcomes[0][1]
    best = inside[0][1]
    if len(inside) == len(outcomes) or not isinstance(best, Inside):
        return best
    return replace(best, bundles=tuple(index for index, _ in inside))


def _at(requested: Requested, place: Place, places: Sequence[Place]) -> Outcome:
    """The outcome if it ran in this bundle."""
    met = [
        found
        for found in (
            _strategy(requested.strategy, place, places),
            _selectors(requested.selectors, place, places),
            _pins(requested.pins, place, places),
            _memory(requested.memory, place),
        )
        if found is not None
    ]
    outside = [found for found in met if isinstance(found, Outside)]
    if outside:
        return outside[0]
    if not met:
        return AsItIs()
    return Inside(", ".join(found.wanted for found in met), met[0].why)


def _strategy(strategy: Strategy, place: Place, places: Sequence[Place]) -> Inside | Outside | None:
    match strategy:
        case str():
            is_one = len({each.node_id for each in places}) == 1
            return Inside(
                strategy,
                "the lease is on one node, which satisfies this strategy"
                if is_one
                else "it runs on any node of the lease that has room",
            )
        case NoGroup():
            return Inside("no placement group", "the lease is where it may run")
        case OnNode(node_id, soft):
            wanted = f"{'rather ' if soft else ''}on node {node_id[:8]}"
            if node_id == place.node_id:
                return Inside(wanted, "the lease is on that node")
            if soft and all(node_id != each.node_id for each in places):
                return Inside(wanted, "that affinity was soft, and the lease is on another node")
            return Outside(wanted, f"the lease is on {_named(places)}")
        case Labelled(hard):
            missing = unmet(hard, place.labels)
            if missing:
                return Outside(f"on a node with {_listed(missing)}", f"the lease is on {_named(places)}")
            return Inside(f"on a node with {_listed(hard)}" if hard else "soft labels", "the lease's node matches")
    return None


def _selectors(
    selectors: tuple[tuple[Need, ...], ...], place: Place, places: Sequence[Place]
) -> Inside | Outside | None:
    if not selectors:
        return None
    wanted = f"on a node with {_listed(selectors[0])}"
    if any(not unmet(selector, place.labels) for selector in selectors):
        return Inside(wanted, "the lease's node matches")
    return Outside(wanted, f"the lease is on {_named(places)}")


def _pins(pins: tuple[str, ...], place: Place, places: Sequence[Place]) -> Inside | Outside | None:
    if not pins:
        return None
    if all(pin in place.resources for pin in pins):
        return Inside(f"where {pins[0]} is", "the lease's node has it")
    return Outside(f"where {pins[0]} is", f"the lease is on {_named(places)}")


def _memory(memory: bool, place: Place) -> Inside | None:
    """Ray would refuse a stated amount in a group without memory, though most tasks use memory without stating it."""
    if memory and place.without_memory:
        return Inside("with memory", "the lease has none of its own to count it against, so it is not counted")
    return None


def _listed(needs: tuple[Need, ...]) -> str:
    return " and ".join(str(need) for need in needs)


def _named(places: Sequence[Place]) -> str:
    nodes = list(dict.fromkeys(place.labels.get("grid/name") or place.node_id[:8] for place in places if place.node_id))
    return f"node{'s' * (len(nodes) > 1)} {', '.join(nodes)}" if nodes else "an unknown node"
