"""A node that rests: it gets back what it lent, gives back what it borrowed, and shares nothing until told."""

from distributed_grid.errors import TargetNotFound
from distributed_grid.model.endings import EndCause, Ending
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.requests import grace_period
from distributed_grid.orchestration.parts import Parts
from distributed_grid.orchestration.reclaiming import ask_back
from distributed_grid.orchestration.returning import change_grace


async def cool_down(p: Parts, name: NodeName, *, grace_s: object = None, who: str = "grid") -> list[Lease]:
    """Take the node out of sharing; returns the leases that are on their way home because of it."""
    grace = None if grace_s is None else grace_period(grace_s, p.longest_grace_s)
    await _check(p, name)
    if name not in p.sharing.cooling:
        p.sharing.cooling.add(name)
        p.journal.note("cooling", f"{name} gives everything back and shares nothing until told", node=name, who=who)
    await p.commit_sharing()  # before anything is taken: after a crash the upkeep takes the rest
    asked = []
    for lease in p.ledger:
        if name in (lease.source, lease.target):
            if grace is not None:
                lease = change_grace(p, lease, grace, who=who)
            asked.append(ask_back(p, lease, f"{name} is cooling down", Ending(EndCause.COOLDOWN, who)))
    await p.try_commit()
    p.something_changed()
    return asked


async def end_cooldown(p: Parts, name: NodeName, *, who: str = "grid") -> None:
    """Let the node share again."""
    await _check(p, name)
    if name in p.sharing.cooling:
        p.sharing.cooling.discard(name)
        p.journal.note("warm_again", f"{name} lends and borrows again", node=name, who=who)
    await p.commit_sharing()
    p.something_changed()


async def _check(p: Parts, name: NodeName) -> None:
    nodes = await p.look()
    if name not in nodes and name not in p.sharing.cooling:
        raise TargetNotFound(
            "Target node not found in cluster",
            because=[f"no node is named {name!r}"],
            try_next=f"Nodes: {', '.join(nodes) or 'none'}",
        )
