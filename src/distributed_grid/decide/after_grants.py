"""The present, with what was granted a moment ago counted; for saying why no more is."""

from dataclasses import replace

from distributed_grid.decide.lending import Offer, why_not
from distributed_grid.decide.loans import Loans
from distributed_grid.decide.quotas import why_over_limit
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.plans import Grant, Refusal, RefusalCode, Refused


class AfterGrants:
    def __init__(self, nodes: NodeTable, loans: Loans) -> None:
        self._nodes, self.loans = nodes, loans
        self._changed: dict[NodeName, Node] = {}

    def add(self, grant: Grant) -> None:
        if not self._changed:
            self.loans = self.loans.without(())  # ours from now on
        self.loans.promise(grant)
        node = self._changed.get(grant.source, self._nodes[grant.source])
        self._changed[grant.source] = replace(node, free=node.free - grant.resources)

    @property
    def nodes(self) -> NodeTable:
        if not self._changed:
            return self._nodes
        return NodeTable(self._changed.get(name, node) for name, node in self._nodes.items())

    def refused(self, offer: Offer, ahead: int) -> Refused:
        """For every node why it does not lend this now. Who could is kept for others."""
        limit = why_over_limit(offer.ask.team, offer.need, self._nodes, self.loans, offer.rules.teams)
        nodes = (self._changed.get(name, node) for name, node in self._nodes.items())
        refusals = (why_not(node, offer, self.loans) or _kept(node, ahead) for node in nodes)
        return Refused(offer.ask, tuple(refusals), limit)


def _kept(node: Node, ahead: int) -> Refusal:
    who = "1 request" if ahead == 1 else f"{ahead} requests" if ahead else "those"
    return Refusal(node.name, RefusalCode.OTHERS_AHEAD, f"what is free there is kept for {who} ahead of it")
