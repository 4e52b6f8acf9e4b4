"""Moving capacity: shrink before growing, and grow only by what was really given up."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from distributed_grid.decide.totals import Growth, desired_totals, moved, plan_growth
from distributed_grid.execution.port import RayletGone, Raylets, RayMap
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeId, NodeName
from distributed_grid.model.resources import CPU, GPU, MEMORY, ResourceVector, amount_of, is_internal, ray_name

LENT: Final = "grid:lent:"
BORROWED: Final = "grid:borrowed:"

# The control service's view of a node lags by up to 0.2 s; what we were told directly is newer for this long.
_VIEW_LAG_S: Final = 1.0
_VIEW_PATIENCE_S: Final = 3.0
_FRESH_S: Final = 0.02
_PRESS_S: Final = 0.06


@dataclass(frozen=True, slots=True)
class Convergence:
    """Where every node ended up, and what is still missing for which lease."""

    totals: Mapping[NodeName, ResourceVector]
    growth: Growth
    unsettled: frozenset[NodeName] = field(default=frozenset())
    """Nodes that should have grown and could not be told so; the next round tries again."""

    def delivered(self, lease: Lease) -> bool:
        ends = {lease.source, lease.target}
        return ends <= set(self.totals) and lease.id not in self.growth.untaken and not ends & self.unsettled

    def returned(self, lease: Lease) -> bool:
        return lease.id not in self.growth.outstanding and lease.source not in self.unsettled


class Capacity:
    """The one place that changes nodes' totals. Not for concurrent use: its owner calls it one round at a time."""

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
        self._told: dict[NodeId, tuple[float, dict[str, float]]] = {}

    def current(self, node_id: NodeId, seen: RayMap) -> dict[str, float]:
        """A node's totals: what it told us itself if that is recent, else what the cluster shows."""
        told = self._told.get(node_id)
        if told and (self._clock() - told[0] < _VIEW_LAG_S or _shows(seen, told[1])):
            return told[1]
        return dict(seen)

    def converge(
        self,
        ids: Mapping[NodeName, NodeId],
        bases: Mapping[NodeName, ResourceVector],
        leases: Iterable[Lease],
        pressed: frozenset[NodeName] = frozenset(),
    ) -> Convergence:
        """Bring every node to its desired total as far as it goes; insist on the nodes that are `pressed`.

        Between the shrinks and the growths the cluster advertises too little, never too much. Safe to repeat at
        any time, which is how a crash, a lost reply and a wiped store are repaired.
        """
        leases = tuple(leases)
        # The decision that led here has just looked; totals that we changed since are in `_told`.
        view = self._raylets.view(max_age_s=_FRESH_S)
        now = {name: self.current(node_id, view[node_id].total) for name, node_id in ids.items() if node_id in view}
        bases = {name: bases[name] for name in now}
        reached = {name: ResourceVector.from_ray(totals) for name, totals in now.items()}
        loans = _Loans.of(leases)
        ours = {name: loans.kinds(name) | _marked_kinds(now[name]) for name in now}
        bases = {name: _only(base, ours[name], reached[name]) for name, base in bases.items()}
        wanted = desired_totals(bases, leases)
        gone: set[NodeName] = set()
        for name in sorted(now):
            free = ResourceVector.from_ray(view[ids[name]].free)
            # Where nothing is idle there is nothing to take, and asking could do harm: on a node that Ray has
            # oversubscribed (a parent came back from ray.get), a shrink request makes the total *grow*.
            more_than_wanted = {k for k in ours[name] if wanted[name][k] < reached[name][k]}
            less = {k for k in more_than_wanted if free[k] > 0 or name in pressed}
            if less:
                ask = _full_ray_map(wanted[name], less) | loans.markers(name, less)
                answer = self._resize(ids[name], ask)
                if name in pressed and answer is not None:
                    answer = self._keep_asking(ids[name], ask, _only_kinds(wanted[name], less), answer)
                if answer is None:
                    gone.add(name)
                else:
                    reached[name] = answer
        growth = plan_growth(bases, leases, reached)
        more = {
            name: kinds
            for name in sorted(now)
            if name not in gone and (kinds := {k for k in ours[name] if growth.allowed[name][k] > reached[name][k]})
        }
        if more and not self._view_shows({ids[name]: (reached[name], ours[name]) for name in now if name not in gone}):
            return Convergence(reached, growth, frozenset(more) | frozenset(gone))
        unsettled = gone
        for name, kinds in more.items():
            answer = self._resize(ids[name], _full_ray_map(growth.allowed[name], kinds) | loans.markers(name, kinds))
            if answer is None or not answer.covers(_only_kinds(growth.allowed[name], kinds)):
                unsettled.add(name)
            if answer is not None:
                reached[name] = answer
        return Convergence(reached, growth, frozenset(unsettled))

    def _keep_asking(
        self, node_id: NodeId, ask: RayMap, wanted: ResourceVector, answer: ResourceVector
    ) -> ResourceVector | None:
        """Ask without a pause for a moment: on a pressed node CPUs may be idle for a millisecond only."""
        deadline = self._clock() + _PRESS_S
        latest: ResourceVector | None = answer
        while latest is not None and self._clock() < deadline:
            if all(latest[kind] <= wanted[kind] for kind in latest if ray_name(kind) in ask):
                break
            before = latest
            latest = self._resize(node_id, ask)
            if latest is not None and not before.covers(latest):
                break  # oversubscribed: asking on would only raise the total
        return latest

    def _resize(self, node_id: NodeId, ask: RayMap) -> ResourceVector | None:
        try:
            answer = self._raylets.resize(node_id, ask)
        except RayletGone:
            return None
        self._told[node_id] = (self._clock(), dict(answer))
        return ResourceVector.from_ray(answer)

    def _view_shows(self, reached: Mapping[NodeId, tuple[ResourceVector, set[str]]]) -> bool:
        """Wait until everybody can see what nodes gave up: an observer must never add up more than there is."""
        started = self._clock()
        recent = {
            node_id: told
            for node_id, told in reached.items()
            if node_id in self._told and started - self._told[node_id][0] < _VIEW_PATIENCE_S
        }
        while not self._shown(recent):
            if self._clock() - started > _VIEW_PATIENCE_S:
                return False
            self._sleep(0.0005)
        return True

    def _shown(self, reached: Mapping[NodeId, tuple[ResourceVector, set[str]]]) -> bool:
        totals = self._raylets.totals() if reached else {}
        return all(
            shown[kind] <= vector[kind]
            for node_id, (vector, kinds) in reached.items()
            if (shown := ResourceVector.from_ray(totals.get(node_id, {}))) is not None
            for kind in kinds
        )


def _shows(seen: RayMap, told: RayMap) -> bool:
    """True if the cluster shows what the node told us, but for the last digit, which Ray may cut off on the way."""
    return seen.keys() == told.keys() and all(abs(seen[k] - told[k]) < 1.5e-4 for k in told)


def _marked_kinds(totals: RayMap) -> set[str]:
    """The kinds that grid's markers show on a node: left by a loan, even one that nobody remembers.

    Whatever else changed a node's totals (another tool, a person) is not ours to undo.
    """
    prefixes = (LENT, BORROWED)
    return {name.removeprefix(p) for name in totals for p in prefixes if name.startswith(p)} - {GPU}


@dataclass(frozen=True, slots=True)
class _Loans:
    """What each node has lent and borrowed by transfer, per kind. A loan that winds down counts as zero."""

    lent: Mapping[tuple[NodeName, str], int]
    borrowed: Mapping[tuple[NodeName, str], int]

    @classmethod
    def of(cls, leases: Iterable[Lease]) -> "_Loans":
        lent: dict[tuple[NodeName, str], int] = defaultdict(int)
        borrowed: dict[tuple[NodeName, str], int] = defaultdict(int)
        for lease in moved(leases):
            units = 0 if lease.is_winding_down else lease.units
            lent[lease.source, lease.kind] += units
            borrowed[lease.target, lease.kind] += units
        return cls(lent, borrowed)

    def kinds(self, name: NodeName) -> set[str]:
        return {kind for node, kind in (*self.lent, *self.borrowed) if node == name}

    def markers(self, name: NodeName, kinds: set[str]) -> dict[str, float]:
        """`grid:lent:cpu` and its like: what people see in `ray status`. They inform; they are not the ledger."""
        return {
            f"{prefix}{kind}": float(amount_of(kind, side.get((name, kind), 0)))
            for prefix, side in ((LENT, self.lent), (BORROWED, self.borrowed))
            for kind in kinds
        }


def _full_ray_map(vector: ResourceVector, kinds: set[str]) -> dict[str, float]:
    """Like `to_ray`, with a zero for the kinds that are to vanish."""
    zeros = {name: 0.0 for kind in kinds for name in ResourceVector({kind: 1}).to_ray()}
    return zeros | _only_kinds(vector, kinds).to_ray()


def _only_kinds(vector: ResourceVector, kinds: set[str]) -> ResourceVector:
    return ResourceVector({k: vector[k] for k in kinds})


def _only(base: ResourceVector, kinds: set[str], reached: ResourceVector) -> ResourceVector:
    """For kinds that are not ours, take what is there as it is."""
    every = {k for k in (*base, *reached) if not is_internal(k)} | {CPU, MEMORY}
    return ResourceVector({k: base[k] if k in kinds else reached[k] for k in every})
