"""What a lender keeps for its own work, by the policy in force."""

from distributed_grid.model.nodes import Node
from distributed_grid.model.resources import GPU, amount_of, scale
from distributed_grid.model.rules import Reserve


def kept(node: Node, kind: str, free: int, lent: int, reserve: Reserve) -> int:
    """How much of what is free a node keeps, in units. GPUs are kept whole: of a single one, no part is."""
    most = 0.0
    if reserve.of_base:
        most = reserve.of_base * node.base[kind]
    if reserve.of_idle:
        most = max(most, reserve.of_idle * (free + lent))
    if reserve.foreseen and (share := reserve.foreseen.get((node.name, kind))) is not None:
        # What is reserved on it for others is in use, too, but not by its own work.
        own = max(node.base[kind], node.total[kind]) - lent - free
        most = max(most, share * node.base[kind] - own)
    units = max(0, round(most))
    return units - units % scale(GPU) if kind == GPU else units


def why_kept(kind: str, units: int, reserve: Reserve) -> str:
    """ "balanced keeps 1.6 free for its own work"."""
    return f"{reserve.policy or 'the policy'} keeps {amount_of(kind, units)} free for its own work"
