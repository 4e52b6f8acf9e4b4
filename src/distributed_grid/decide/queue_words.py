"""Why a request waits, for the person who waits."""

from datetime import datetime
from typing import Final

from distributed_grid.decide.idle_room import could_when_idle, room_when_idle
from distributed_grid.decide.lending import Offer, never
from distributed_grid.decide.loans import Loans
from distributed_grid.decide.places import Place
from distributed_grid.decide.preemption import Preemption
from distributed_grid.decide.quotas import why_above_its_most
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.plans import RefusalCode
from distributed_grid.model.resources import amount_of, describe

_FOR_NOW: Final = (None, RefusalCode.NODE_DOWN, RefusalCode.STALE, RefusalCode.COOLING_DOWN)
"""What keeps a node from lending may be over one day."""


def why_it_waits(offer: Offer, place: Place, comes_back: int, ahead: int, now: datetime) -> str:
    """ "waits for 4 CPUs: 2 come back to gpu1 at 12:30 UTC; 1 request is ahead of it"."""
    ask, when = offer.ask, moment(place.begin, now)
    if comes_back:
        what = f"{amount_of(ask.kind, comes_back)} come back to {place.source} at {when}"
    else:
        what = f"{place.source} has room at {when}"
    return f"waits for {describe(ask.kind, ask.units)}: {what}" + (f"; {are_ahead(ahead)}" if ahead else "")


def why_others_yield(offer: Offer, place: Place, preemption: Preemption, ahead: int, now: datetime) -> str:
    """ "waits for 6 CPUs: 1 boost on gpu1 yields what is guaranteed to team red, and is back by 12:30 UTC"."""
    ask, count = offer.ask, len(preemption.victims)
    boosts, yields, are = ("1 boost", "yields", "is") if count == 1 else (f"{count} boosts", "yield", "are")
    to = f"what is guaranteed to team {ask.team}" if preemption.takes_own else f"to {ask.priority} priority"
    after = f" at {moment(preemption.at, now)}, after the minimum hold," if preemption.at > now else ","
    said = f"{boosts} on {preemption.source} {yields} {to}{after} and {are} back by {moment(place.begin, now)}"
    return f"waits for {describe(ask.kind, ask.units)}: {said}" + (f"; {are_ahead(ahead)}" if ahead else "")


def why_its_team_never_may(offer: Offer) -> str:
    """More than its team may have at all."""
    team = offer.rules.teams.of(offer.ask.team)
    most = ", ".join(describe(kind, team.most(kind) or 0) for kind in offer.need if team.most(kind) is not None)
    return f"its team {team.name} may have at most {most}"


def why_team_waits(offer: Offer, loans: Loans, turn: datetime, expected: Place | None, now: datetime) -> str:
    """Its team's own limit, until its turn; and where it is met then, or later."""
    said = why_above_its_most(offer.ask, offer.need, loans, offer.rules.teams)
    if said is None:
        said = f"team {offer.ask.team} is at its limit with what it has and its requests ahead of this one"
    if expected is None:
        return f"its team's limit: {said}"
    told = f"its team's limit: {said}; by its leases' ends it may have it at {moment(turn, now)}"
    later = f", and {expected.source} has room at {moment(expected.begin, now)}" if expected.begin > turn else ""
    return told + later


def why_nobody_knows(offer: Offer, nodes: NodeTable, kept_node: NodeName | None) -> str:
    """No end of a lease makes it possible."""
    ask = offer.ask
    what = describe(ask.kind, ask.units)
    own = nodes[ask.target]
    others = [node for node in nodes.lenders if node is not own and never(node, offer) is None]
    able = [*others, own] if never(own, offer) is None else others
    if not able:
        return f"no node lends to {ask.target} now"
    idle = [node.name for node in able if could_when_idle(node, offer)]
    if not idle:
        away = [node for node in nodes.values() if never(node, offer) and _could_ever(node, offer)]
        if away and all(node.alive for node in away):
            return f"only {_any_of([n.name for n in away])} could lend {offer.need.describe()}, and does not lend now"
        room, name = max((room_when_idle(node, ask.kind, offer), node.name) for node in able)
        most = describe(ask.kind, max(0, room))
        which = "no connected node" if away else "no node"
        return f"{which} can ever lend {offer.need.describe()}: the most is {most}, by {name}"
    said = f"waits for {what}: they come when {_any_of(idle)} needs less for its own work, and nobody knows when"
    return said + (f"; {kept_node} is kept for it" if kept_node else "")


def can_ever_be_lent(offer: Offer, nodes: NodeTable) -> bool:
    """Whether a node could lend it one day: once it is idle, back in the cluster, or done with cooling down."""
    return any(_could_ever(node, offer) for node in nodes.values())


def _could_ever(node: Node, offer: Offer) -> bool:
    is_own = node.name == offer.ask.target
    if never(node, offer) not in _FOR_NOW or not (node.limits.can_share or is_own):
        return False
    if not node.alive:
        return True  # how much it has is known when it is back
    if is_own:
        return all(units <= node.base[kind] for kind, units in offer.need.items())
    return could_when_idle(node, offer)


def too_far_back(ahead: int) -> str:
    return f"{are_ahead(ahead)}: too many to say when its turn will be"


def are_ahead(ahead: int) -> str:
    return "1 request is ahead of it" if ahead == 1 else f"{ahead} requests are ahead of it"


def moment(at: datetime, now: datetime) -> str:
    """ "12:30 UTC", with the date where it is another day."""
    return at.strftime("%H:%M UTC" if at.date() == now.date() else "%Y-%m-%d %H:%M UTC")


def _any_of(names: list[NodeName]) -> str:
    return names[0] if len(names) == 1 else f"one of {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"
