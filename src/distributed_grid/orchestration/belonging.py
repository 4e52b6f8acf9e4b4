"""Whose boosts this home holds: those of this cluster are applied, those of others only if that is asked for."""

from dataclasses import dataclass, field

from distributed_grid.decide.takeover import is_over, plan_takeover
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeTable
from distributed_grid.orchestration.parts import Parts
from distributed_grid.store.boost_file import Loaded
from distributed_grid.store.set_aside import Kept, SetAside


@dataclass
class Belongings:
    """What the ledger got, and what is to be done and told once the ledger is on disk."""

    notes: list[str] = field(default_factory=list)
    """For whoever started grid: what was taken over, or came back."""
    problems: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """What is wrong with files of other clusters."""
    _settled: list[tuple[Kept, tuple[Lease, ...]]] = field(default_factory=list)

    def take(
        self,
        p: Parts,
        loaded: Loaded,
        nodes: NodeTable,
        *,
        adopt: bool,
        ended: frozenset[str] = frozenset(),
    ) -> None:
        """Fill the ledger with what belongs here. What does not is kept for its own cluster.

        `ended`: boosts that have ended since the file was written, while it could not be read.
        """
        aside = SetAside(p.file.path)
        if loaded.cluster is None or loaded.cluster.same_cluster(p.identity):
            for lease in loaded.leases:
                known = p.ledger.get(lease.id)
                if lease.id not in ended and not (known is not None and known.is_winding_down):
                    p.ledger.put(lease)
        elif loaded.leases:
            aside.keep(loaded.leases, loaded.cluster)
        for problem in loaded.problems:
            p.journal.note("store_problem", problem)
        kept, self.unreadable = aside.all()
        for problem in self.unreadable:
            p.journal.note("store_problem", problem)
        for each in kept:
            if each.cluster.same_cluster(p.identity):
                self._return(p, each)
            elif adopt:
                self._adopt(p, each, nodes)
            else:
                self._leave_alone(p, each)

    def settle(self, p: Parts) -> None:
        """What is in the ledger is no longer kept aside. Only once the ledger is on disk; safe to repeat."""
        for kept, left in self._settled:
            SetAside(p.file.path).leave(kept, left)

    def _return(self, p: Parts, kept: Kept) -> None:
        back = [p.ledger.put(lease) for lease in kept.leases if p.ledger.get(lease.id) is None]
        self._settled.append((kept, ()))
        if back:
            self.notes.append(f"{_boosts(len(back))} of this cluster came back from {kept.path.name}")
            p.journal.note("came_back", self.notes[-1])

    def _adopt(self, p: Parts, kept: Kept, nodes: NodeTable) -> None:
        plan = plan_takeover(kept.leases, p.ledger, nodes, now=p.now())
        for lease in plan.taken:
            p.ledger.put(lease)
        self._settled.append((kept, tuple(lease for lease, _ in plan.left)))
        if plan.taken:
            self.notes.append(f"took over {_boosts(len(plan.taken))} of the {_name(kept)}")
            p.journal.note("adopted", self.notes[-1])
        for lease, reason in plan.left:
            told = (
                f"{lease.describe()}, of the {_name(kept)}, is not taken over and stays in {kept.path.name}: {reason}"
            )
            self._not_ours(p, told)

    def _leave_alone(self, p: Parts, kept: Kept) -> None:
        live = [lease for lease in kept.leases if not is_over(lease, p.now()) and p.ledger.get(lease.id) is None]
        if live:
            told = (
                f"The {_name(kept)} has {_boosts(len(live))} in this GRID_HOME, not applied to this one, "
                f"{p.identity.name!r}. Kept in {kept.path.name} until that cluster is started here again. "
                "To take over what can be: stop grid, and start it with --adopt"
            )
            self._not_ours(p, told)

    def _not_ours(self, p: Parts, told: str) -> None:
        self.problems.append(told)
        p.journal.note("other_cluster", told)


def _boosts(count: int) -> str:
    return "1 boost" if count == 1 else f"{count} boosts"


def _name(kept: Kept) -> str:
    return f"cluster {kept.cluster.name!r} (nodes {', '.join(sorted(kept.cluster.nodes))})"
