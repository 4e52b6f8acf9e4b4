"""Moving capacity: shrink before growing, and grow only by what nodes really gave up.

Markers such as `grid:lent:cpu` show how far a node is from its base; `ray status` shows them too. They are not the
ledger, but after a lost ledger they show what to undo. So a marker rises together with the change that it describes and
falls only after the outcome is known: a marker that is briefly too high does no harm.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from distributed_grid.decide.capacity.totals import Growth, desired_totals, moved, plan_growth
from distributed_grid.execution.port import RayletGone, Raylets, RayletSilent, RayMap
from distributed_grid.faults import Point, fault_point
from distributed_grid.model.audit import Marks
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeId, NodeName
from distributed_grid.model.resources import CPU, GPU, MEMORY, ResourceVector, amount_of, is_internal, scale

GRIDS: Final = "grid:"
LENT: Final = "grid:lent:"
BORROWED: Final = "grid:borrowed:"

STAMP: Final = "grid:stamp"
"""A number that a shrink leaves on its node, so that the new state is not mistaken for an older one."""

# Ray may drop the last digit in transit.
_LAST_DIGIT: Final = 1.5e-4


def markers(total: ResourceVector, base: ResourceVector, kinds: Iterable[str]) -> dict[str, float]:
    """The desired value of each marker of these kinds; zero if the marker should be absent."""
    found = {STAMP: 0.0}
    for kind in kinds:
        found[f"{LENT}{kind}"] = float(amount_of(kind, max(0, base[kind] - total[kind])))
        found[f"{BORROWED}{kind}"] = float(amount_of(kind, max(0, total[kind] - base[kind])))
    return found


def is_marked(totals: RayMap) -> bool:
    """True if these totals contain anything that grid wrote."""
    return any(name.startswith((LENT, BORROWED, STAMP)) for name in totals)


def marked_kinds(totals: RayMap) -> set[str]:
    """The kinds that a node's markers name: left by a lease, even one that the ledger no longer has.

    Changes to a node's totals by another tool or a person are not grid's to undo.
    """
    prefixes = (LENT, BORROWED)
    return {name.removeprefix(p) for name in totals for p in prefixes if name.startswith(p)} - {GPU}


def marks_of(totals: RayMap) -> Marks:
    """The amounts and names that a node's markers state."""

    def amounts(prefix: str) -> ResourceVector:
        found = {name.removeprefix(prefix): amount for name, amount in totals.items() if name.startswith(prefix)}
        return ResourceVector({kind: round(amount * scale(kind)) for kind, amount in found.items()})

    others = [name for name in totals if name.startswith(GRIDS) and not name.startswith((LENT, BORROWED))]
    return Marks(amounts(LENT), amounts(BORROWED), tuple(sorted(others)))


def same(one: float, other: float) -> bool:
    return abs(one - other) < _LAST_DIGIT


def rising(wanted: RayMap, has: RayMap) -> dict[str, float]:
    """The markers whose wanted value is above their present one."""
    return {name: amount for name, amount in wanted.items() if amount > has.get(name, 0.0)}


def differ(wanted: RayMap, has: RayMap) -> bool:
    return not all(same(amount, has.get(name, 0.0)) for name, amount in wanted.items())


# The control service's view of a node lags by up to 0.2 s. For this long, a node's own reply is newer.
_VIEW_LAG_S: Final = 1.0
_VIEW_PATIENCE_S: Final = 3.0
_FRESH_S: Final = 0.02
_PRESS_S: Final = 0.06
# A node that did not answer is left alone for a while, so that not every round waits for it.
_SILENCE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Convergence:
    """Where every node ended up, and what each lease still lacks."""

    totals: Mapping[NodeName, ResourceVector]
    growth: Growth
    unsettled: frozenset[NodeName] = field(default=frozenset())
    """Nodes that should have grown but did not answer; the next round tries again."""

    def delivered(self, lease: Lease) -> bool:
        ends = {*lease.sources, lease.target}
        is_taken = all(part.id not in self.growth.untaken for part in lease.parts)
        return is_taken and ends <= set(self.totals) and not ends & self.unsettled

    def returned(self, lease: Lease) -> bool:
        is_back = all(part.id not in self.growth.outstanding for part in lease.parts)
        return is_back and self.unsettled.isdisjoint(lease.sources)

    def outstanding(self, lease: Lease) -> int:
        """How many of its units its target has not given back yet."""
        return sum(self.growth.outstanding.get(part.id, 0) for part in lease.parts)


class Capacity:
    """The only code that changes nodes' totals. Not for concurrent use: its owner runs one round at a time."""

    def __init__(
        self,
        raylets: Raylets,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._raylets = raylets
        self._clock = clock
        self._sleep = sleep
        self._replies: dict[NodeId, tuple[float, dict[str, float]]] = {}
        self._grown_at: dict[NodeId, float] = {}
        self._silent_until: dict[NodeId, float] = {}
        self._last_stamp = 0.0
        self._untidy: dict[NodeId, RayMap] = {}

    def look_ahead(self) -> None:
        """Read the view now that the next round, a moment later, will decide on."""
        self._raylets.view(max_age_s=_FRESH_S)

    def converge(
        self,
        ids: Mapping[NodeName, NodeId],
        bases: Mapping[NodeName, ResourceVector],
        leases: Iterable[Lease],
        pressed: frozenset[NodeName] = frozenset(),
    ) -> Convergence:
        """Bring every node as close to its desired total as possible; insist on the nodes that are `pressed`.

        Between the shrinks and the growths the cluster advertises too little, never too much. A round can be repeated
        at any time; repeating it repairs a crash, a lost reply and a wiped store.
        """
        self._untidy.clear()
        leases = tuple(leases)
        # The decision that led here has just read the view. Nodes' own replies are newer than any view.
        view = self._raylets.view(max_age_s=_FRESH_S)
        lent = _kinds_by_node(leases)
        now: dict[NodeName, RayMap] = {}
        for name, node_id in ids.items():
            if node_id in view and (totals := self._current(node_id, view[node_id].total, name in lent)) is not None:
                now[name] = totals
        ours = {name: lent.get(name, set()) | marked_kinds(now[name]) for name in now}
        before = {name: ResourceVector.from_ray(totals) for name, totals in now.items()}
        reached = dict(before)
        bases = {name: _only(bases[name], ours[name], reached[name]) for name in now}
        wanted = desired_totals(bases, leases)
        gone: set[NodeName] = set()
        for name in sorted(now):
            free = ResourceVector.from_ray(view[ids[name]].free)
            # If nothing is idle, a shrink takes nothing and can do harm: on a node that Ray has oversubscribed (a
            # parent came back from ray.get), a shrink request makes the total *grow*.
            more_than_wanted = {k for k in ours[name] if wanted[name][k] < reached[name][k]}
            less = {k for k in more_than_wanted if free[k] > 0 or name in pressed}
            if less and not self._is_silent(ids[name]):
                ask = _full_ray_map(wanted[name], less)
                ask |= rising(markers(wanted[name], bases[name], less), now[name]) | self._stamp(ids[name])
                answer = self._shrink(ids[name], ask, wanted[name], less, insist=name in pressed)
                fault_point(Point.CAPACITY_SHRUNK)
                if answer is None:
                    gone.add(name)
                else:
                    reached[name] = answer
        growth = plan_growth(bases, leases, before, reached)
        more = {
            name: kinds
            for name in sorted(now.keys() - gone)
            if (kinds := {k for k in ours[name] if growth.allowed[name][k] > reached[name][k]})
        }
        speaking = {name for name in now.keys() - gone if not self._is_silent(ids[name])}
        if more and not self._view_shows({ids[name]: (reached[name], ours[name]) for name in speaking}):
            return Convergence(reached, growth, frozenset(more) | frozenset(gone))
        unsettled = gone | {name for name in more if self._is_silent(ids[name])}
        for name, kinds in more.items():
            if name in unsettled:
                continue
            fault_point(Point.CAPACITY_SHOWN)
            to = growth.allowed[name]
            self._grown_at[ids[name]] = self._clock()
            answer = self._resize(ids[name], _full_ray_map(to, kinds) | markers(to, bases[name], kinds))
            fault_point(Point.CAPACITY_GROWN)
            if answer is None or self._is_silent(ids[name]) or not answer.covers(_only_kinds(to, kinds)):
                unsettled.add(name)
            if answer is not None:
                reached[name] = answer
        for name in sorted(speaking - unsettled):
            self._compare_markers(ids[name], markers(reached[name], bases[name], ours[name]))
        return Convergence(reached, growth, frozenset(unsettled))

    @property
    def is_tidy(self) -> bool:
        """True if all markers are exact."""
        return not self._untidy

    def tidy(self) -> None:
        """Lower the markers that the last round left too high. Not part of the round, because a caller waits for that.

        Optional: the next round sees these markers again. A stamp stays until the view shows it.
        """
        totals = self._raylets.totals()
        for node_id in [node_id for node_id in self._untidy if self._stamp_is_seen(node_id, totals)]:
            self._resize(node_id, self._untidy.pop(node_id))
            fault_point(Point.MARKERS_LOWERED)

    def take_over(self, node_id: NodeId, base: ResourceVector, kinds: set[str]) -> bool:
        """Mark another tool's change as grid's own, so that the next round undoes it. False: the node is gone."""
        if (now := self._resize(node_id, {})) is None:
            return False
        marks = rising(markers(now, base, kinds), self._replies[node_id][1])
        return not marks or self._resize(node_id, marks) is not None

    def _current(self, node_id: NodeId, seen: RayMap, has_leases: bool) -> RayMap | None:
        """A node's totals: its own reply if that is recent or matches the cluster's view; otherwise ask the node.

        The view alone is never trusted for a node with leases or markers: it may show a total from before a crash.
        """
        known = self._replies.get(node_id)
        if known and self._is_silent(node_id):
            return known[1]
        if known and (self._clock() - known[0] < _VIEW_LAG_S or _shows(seen, known[1])):
            return known[1]
        if not has_leases and not is_marked(seen) and not known:
            return seen
        self._replies.setdefault(node_id, (-math.inf, dict(seen)))  # the best estimate if the node does not answer
        return self._replies[node_id][1] if self._resize(node_id, {}) is not None else None

    def _shrink(
        self, node_id: NodeId, ask: RayMap, to: ResourceVector, kinds: set[str], *, insist: bool
    ) -> ResourceVector | None:
        """Take what is idle. With `insist`, retry briefly without a pause: CPUs may be idle for only a millisecond."""
        answer = self._resize(node_id, ask)
        deadline = self._clock() + _PRESS_S
        while insist and answer is not None and self._clock() < deadline:
            if all(answer[kind] <= to[kind] for kind in kinds):
                break
            before, answer = answer, self._resize(node_id, ask)
            if answer is not None and not before.covers(answer):
                break  # oversubscribed: further requests would only raise the total
        return answer

    def _stamp(self, node_id: NodeId) -> dict[str, float]:
        """A stamp for a shrink of a node that grew a moment ago and whose growth the view may not show yet.

        Without it, the view still shows the lower total from before the growth, as if it already showed the shrink, and
        a late report could then show the growth after all. The stamp tells the states before and after apart.
        """
        if self._clock() - self._grown_at.get(node_id, -math.inf) >= _VIEW_LAG_S:
            return {}
        return {STAMP: self._last_stamp + 1}

    def _resize(self, node_id: NodeId, ask: RayMap) -> ResourceVector | None:
        """Ask a node to change, and return the totals that it reports; None if it is gone."""
        # Forget the last reply until the node answers: a reply can be lost after the change was made.
        _, before = self._replies.pop(node_id, (0.0, {}))
        try:
            answer = self._raylets.resize(node_id, ask)
        except RayletGone:
            return None
        except RayletSilent:
            # The node may apply the change later, or never. The larger amounts count, so that no capacity exists twice.
            self._silent_until[node_id] = self._clock() + _SILENCE_S
            answer = {name: max(before.get(name, 0.0), ask.get(name, 0.0)) for name in {*before, *ask}}
        self._replies[node_id] = (self._clock(), dict(answer))
        self._last_stamp = max(self._last_stamp, answer.get(STAMP, 0.0))
        return ResourceVector.from_ray(answer)

    def _is_silent(self, node_id: NodeId) -> bool:
        """True if the node recently did not answer; its known totals are then the most that it may have."""
        return self._clock() < self._silent_until.get(node_id, -math.inf)

    def _compare_markers(self, node_id: NodeId, wanted: RayMap) -> None:
        """Markers that are too high can wait. None should be too low, but Ray may have oversubscribed the node."""
        has = self._replies.get(node_id, (0.0, wanted))[1]
        if differ(wanted, has):
            self._untidy[node_id] = wanted
            if too_low := rising(wanted, has):
                self._resize(node_id, too_low)

    def _view_shows(self, reached: Mapping[NodeId, tuple[ResourceVector, set[str]]]) -> bool:
        """Wait until the view shows what nodes gave up: an observer must never add up more than there is."""
        started = self._clock()
        recent = {
            node_id: totals
            for node_id, totals in reached.items()
            if node_id in self._replies and started - self._replies[node_id][0] < _VIEW_PATIENCE_S
        }
        while not self._shown(recent):
            if self._clock() - started > _VIEW_PATIENCE_S:
                return False
            self._sleep(0.0005)
        return True

    def _shown(self, reached: Mapping[NodeId, tuple[ResourceVector, set[str]]]) -> bool:
        totals = self._raylets.totals() if reached else {}
        return all(self._stamp_is_seen(node_id, totals) for node_id in reached) and all(
            shown[kind] <= vector[kind]
            for node_id, (vector, kinds) in reached.items()
            if (shown := ResourceVector.from_ray(totals.get(node_id, {}))) is not None
            for kind in kinds
        )

    def _stamp_is_seen(self, node_id: NodeId, totals: Mapping[NodeId, RayMap]) -> bool:
        """True if the view is at least as new as the node's last stamped shrink."""
        stamp = self._replies[node_id][1].get(STAMP) if node_id in self._replies else None
        return stamp is None or node_id not in totals or same(stamp, totals[node_id].get(STAMP, 0.0))


def _shows(seen: RayMap, reply: RayMap) -> bool:
    """True if the view matches the node's reply, apart from the last digit."""
    return seen.keys() == reply.keys() and all(same(seen[k], reply[k]) for k in reply)


def _kinds_by_node(leases: Iterable[Lease]) -> dict[NodeName, set[str]]:
    """The kinds that leases move from or to each node."""
    kinds: dict[NodeName, set[str]] = defaultdict(set)
    for lease in moved(leases):
        kinds[lease.source].add(lease.kind)
        kinds[lease.target].add(lease.kind)
    return kinds


def _full_ray_map(vector: ResourceVector, kinds: set[str]) -> dict[str, float]:
    """Like `to_ray`, with a zero for kinds that drop to nothing."""
    zeros = {name: 0.0 for kind in kinds for name in ResourceVector({kind: 1}).to_ray()}
    return zeros | _only_kinds(vector, kinds).to_ray()


def _only_kinds(vector: ResourceVector, kinds: set[str]) -> ResourceVector:
    return ResourceVector({k: vector[k] for k in kinds})


def _only(base: ResourceVector, kinds: set[str], reached: ResourceVector) -> ResourceVector:
    """The base for grid's kinds; for all other kinds, the present total."""
    every = {k for k in (*base, *reached) if not is_internal(k)} | {CPU, MEMORY}
    return ResourceVector({k: base[k] if k in kinds else reached[k] for k in every})
