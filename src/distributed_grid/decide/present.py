"""The present, with what was granted a moment ago counted."""

from dataclasses import replace

from distributed_grid.decide.lending import Offer, best_lender, has_it_itself, obstacle, why_not
from distributed_grid.decide.loans import Loans
from distributed_grid.decide.quotas import why_kept_by_others, why_over_limit
from distributed_grid.model.nodes import NodeName, NodeTable
from distributed_grid.model.plans import Grant, Refusal, RefusalCode, Refused


class Present:
    """Who could lend now. Looks at the nodes once; what it grants it counts itself."""

    def __init__(self, nodes: NodeTable, loans: Loans) -> None:
        self._table, self._nodes = nodes, dict(nodes)
        self._lenders = {node.name: node for node in nodes.lenders}
        self.loans, self._own_loans = loans, False

    def lender(self, offer: Offer, known: NodeName | None = None) -> NodeName | None:
        """Who would lend if nobody else waited; rather the one that it was told."""
        if self.others_keep(offer) is not None:
            return None
        told = self._lenders.get(known or "")
        if told is not None and obstacle(told, offer, self.loans) is None:
            return told.name
        return best_lender(offer, self._lenders.values(), self.loans)

    def has_it_itself(self, offer: Offer) -> bool:
        return self.others_keep(offer) is None and has_it_itself(offer, self._nodes[offer.ask.target], self.loans)

    def others_keep(self, offer: Offer) -> str | None:
        return why_kept_by_others(offer.ask, offer.need, self._table, self.loans, offer.rules.teams)

    def add(self, grant: Grant) -> None:
        if not self._own_loans:
            self.loans, self._own_loans = self.loans.without(()), True
        self.loans.promise(grant)
        node = self._nodes[grant.source]
        node = self._nodes[node.name] = replace(node, free=node.free - grant.resources)
        if node.name in self._lenders:
            self._lenders[node.name] = node

    @property
    def nodes(self) -> NodeTable:
        return NodeTable(self._nodes.values())

    def refused(self, offer: Offer, ahead: int) -> Refused:
        """For every node why it does not lend this now. Who could is kept for others."""
        limit = why_over_limit(offer.ask, offer.need, self._table, self.loans, offer.rules.teams)
        refusals = (why_not(node, offer, self.loans) or _kept(node.name, ahead) for node in self._nodes.values())
        return Refused(offer.ask, tuple(refusals), limit)


def _kept(node: NodeName, ahead: int) -> Refusal:
    who = "1 request" if ahead == 1 else f"{ahead} requests" if ahead else "those"
    return Refusal(node, RefusalCode.OTHERS_AHEAD, f"what is free there is kept for {who} ahead of it")
