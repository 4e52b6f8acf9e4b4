"""A snapshot of capacity: nodes and what leases hold of them at one moment, in which a plan can be tried and undone."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from distributed_grid.decide.capacity.delivery import Offer
from distributed_grid.decide.capacity.feasibility import obstacle, why_not
from distributed_grid.decide.capacity.lending import best_lender, has_it_itself, several_lenders
from distributed_grid.decide.capacity.quotas import why_over_limit, why_withheld_by_others
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.plans import Grant, Part, Refusal, Refused, TeamLimit
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.resources import ResourceVector

_NOTHING = ResourceVector()


class Snapshot(NodeTable):
    """The nodes, with grants that were added and leases that were given back since.

    The table and the sums that it was made from stay as they are.
    """

    def __init__(self, nodes: NodeTable, usage: Usage, leases: Iterable[Lease] = ()) -> None:
        self._observed = nodes
        self._nodes = dict(nodes.items())
        self._lenders = {node.name: node for node in nodes.lenders}
        self.usage, self._owns_usage = usage, False
        self.leases = tuple(leases)
        """All leases; needed only where leases are given back."""
        self._usage_before = usage
        self._back = Usage()
        """The sums over all that was given back."""
        self._undo: list[Callable[[], None]] = []
        self._tries = 0

    @property
    def lenders(self) -> tuple[Node, ...]:
        return tuple(self._lenders.values())

    @property
    def in_use(self) -> tuple[Node, ...]:
        return self._observed.in_use

    def shareable(self, kind: str) -> int:
        return self._observed.shareable(kind)

    # -- trying -----------------------------------------------------------------------------------------------

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Undo at the end all that was changed inside."""
        self._tries += 1
        done = len(self._undo)
        try:
            yield
        finally:
            while len(self._undo) > done:
                self._undo.pop()()
            self._tries -= 1

    def add(self, grant: Grant) -> None:
        """Count a grant as a lease that holds its capacity."""
        usage = self._own_usage()
        usage.promise(grant)
        self._put(self._nodes[grant.source].reserving(grant.resources))
        self._remember(lambda: usage.promise(grant, -1))

    def give_back(self, leases: Collection[Lease]) -> None:
        """Count leases, or parts of them (`returns.part_of`), as returned."""
        usage = self._own_usage()
        names = {name for lease in leases for name in (lease.source, lease.target) if name in self._nodes}
        moved_before = {name: self._moved_back(name) for name in names}
        for lease in leases:
            usage.count(lease, -1)
            self._back.count(lease)
            if lease.holds_capacity and not lease.delivery.moves_totals and lease.source in names:
                self._put(self._nodes[lease.source].freeing(lease.resources))
        for name in names:
            node, moved = self._nodes[name], self._moved_back(name) - moved_before[name]
            if moved:
                self._put(replace(node, total=node.total + moved, free=node.free + moved))

        def undo() -> None:
            for lease in leases:
                usage.count(lease)
                self._back.count(lease, -1)

        self._remember(undo)

    def withdraw(self, names: Iterable[NodeName]) -> None:
        """Count these nodes as having nothing free, so that they are not chosen as lenders."""
        for name in names:
            if name in self._nodes:
                self._put(replace(self._nodes[name], free=_NOTHING))

    def _own_usage(self) -> Usage:
        if not self._owns_usage:
            self.usage, self._owns_usage = self.usage.without(()), True
        return self.usage

    def _put(self, node: Node) -> None:
        before = self._nodes[node.name]
        self._set(node)
        self._remember(lambda: self._set(before))

    def _set(self, node: Node) -> None:
        self._nodes[node.name] = node
        if node.name in self._lenders:
            self._lenders[node.name] = node

    def _remember(self, undo: Callable[[], None]) -> None:
        if self._tries:
            self._undo.append(undo)

    def _moved_back(self, name: NodeName) -> ResourceVector:
        """By how much a node's total has changed, after all that was given back.

        A transfer that winds down may already be partly back. So the node's total moves to what the remaining leases
        want it to be, and no further than the returns could take it.
        """
        node, held, steps = self._observed[name], self._usage_before, {}
        out, into = self._back.moved_from(name), self._back.moved_to(name)
        held_out, held_in = held.moved_from(name), held.moved_to(name)
        for kind in {**out, **into}:
            wanted = node.base[kind] - (held_out[kind] - out[kind]) + (held_in[kind] - into[kind])
            steps[kind] = min(max(wanted - node.total[kind], -into[kind]), out[kind])
        return ResourceVector(steps)

    # -- questions --------------------------------------------------------------------------------------------

    def lender(self, offer: Offer, known: NodeName | None = None, *, lasting: bool = False) -> NodeName | None:
        """The node that would lend if no other request waited; preferably `known`, the request's previous source.

        `lasting`: only a node that can lend it at any later time, too. As leases end, a lender has more to lend; only
        what was moved to it leaves again.
        """
        if self.withheld_by_others(offer) is not None:
            return None
        lenders = self._lenders
        if lasting:
            moved_in = self.usage.with_moved_in(offer.need)
            lenders = {name: node for name, node in lenders.items() if name not in moved_in}
        previous = lenders.get(known or "")
        if previous is not None and obstacle(previous, offer, self.usage) is None:
            return previous.name
        return best_lender(offer, lenders.values(), self.usage)

    def several_lenders(self, offer: Offer) -> tuple[Part, ...] | None:
        """The nodes that would lend this together if no other request waited."""
        return None if self.withheld_by_others(offer) is not None else several_lenders(offer, self, self.usage)

    def has_it_itself(self, offer: Offer) -> bool:
        return self.withheld_by_others(offer) is None and has_it_itself(
            offer, self._nodes[offer.ask.target], self.usage
        )

    def withheld_by_others(self, offer: Offer) -> TeamLimit | None:
        """Why the request would take what other teams withhold; None if it would not."""
        return why_withheld_by_others(offer.ask, offer.need, self, self.usage, offer.rules.teams)

    def refused(self, offer: Offer, ahead: int) -> Refused:
        """For every node, why it does not lend this now. What could be lent is held for requests ahead."""
        limit = why_over_limit(offer.ask, offer.need, self, self.usage, offer.rules.teams)
        refusals = (why_not(node, offer, self.usage) or _held(node.name, ahead) for node in self._nodes.values())
        return Refused(offer.ask, tuple(refusals), limit)


def _held(node: NodeName, ahead: int) -> Refusal:
    requests = "1 request" if ahead == 1 else f"{ahead or 'the'} requests"
    return Refusal(
        node, RefusalCode.OTHERS_AHEAD, RefusalCode.OTHERS_AHEAD.message({"ahead": f"{requests} ahead of it"})
    )
