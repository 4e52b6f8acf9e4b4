"""What a lender keeps for its own work: by each way of keeping, and by each policy."""

import pytest
from builders import amounts, cpu, node

from distributed_grid.decide.capacity.feasibility import NodeFacts, headroom_of
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.model.nodes import Node
from distributed_grid.model.plans import NO_HEADROOM, Headroom, Rules
from distributed_grid.model.resources import CPU, GPU, MEMORY, amount_of, scale


@pytest.mark.parametrize(
    ("kind", "free", "lent", "headroom", "keeps"),
    [
        (CPU, 8, 0, NO_HEADROOM, 0),
        (CPU, 8, 0, Headroom(of_base=0.2), 2),  # of the 10 it has
        (CPU, 1, 0, Headroom(of_base=0.2), 2),  # more than what is free: it lends nothing
        (CPU, 8, 0, Headroom(of_idle=0.5), 4),
        (CPU, 4, 4, Headroom(of_idle=0.5), 4),  # what is lent would be idle, too: halves of halves are not lent
        (CPU, 0, 8, Headroom(of_idle=0.5), 4),
        (CPU, 8, 0, Headroom(of_base=0.2, of_idle=0.5), 4),  # the larger
        (CPU, 8, 0, Headroom(foreseen={("gpu1", CPU): 0.6}), 4),  # will use 6 of 10, uses 2 now
        (CPU, 2, 0, Headroom(foreseen={("gpu1", CPU): 0.6}), 0),  # uses more than that already
        (CPU, 4, 4, Headroom(foreseen={("gpu1", CPU): 0.6}), 4),  # what it has lent is not its own use
        (CPU, 8, 0, Headroom(foreseen={("gpu2", CPU): 0.6}), 0),  # that is another node
        (CPU, 8, 0, Headroom(foreseen={("gpu1", MEMORY): 0.6}), 0),  # and that another kind
        (CPU, 8, 0, Headroom(of_base=0.5, foreseen={("gpu1", CPU): 0.6}), 5),  # the larger
        (MEMORY, 10, 0, Headroom(of_base=0.25), 5),
        (GPU, 4, 0, Headroom(of_base=0.2), 0),  # 0.8 of a GPU is none
        (GPU, 4, 0, Headroom(of_base=0.5), 2),
        (GPU, 3, 0, Headroom(of_idle=0.5), 1),
        (GPU, 1, 0, Headroom(of_idle=0.5), 0),  # of a single one no half is kept
    ],
)
def test_a_lender_keeps_the_largest_of_what_the_policy_names(
    kind: str, free: float, lent: float, headroom: Headroom, keeps: float
) -> None:
    lender = node("gpu1", cpus=10, memory=20, gpus=4)
    units = scale(kind)
    assert amount_of(kind, headroom_of(lender, kind, int(free * units), int(lent * units), headroom)) == keeps


def test_what_a_node_borrows_is_not_its_base() -> None:
    borrower: Node = node("gpu1", cpus=10, borrowed=cpu(10))
    assert headroom_of(borrower, CPU, 200_000, 0, Headroom(of_base=0.2)) == 20_000


def test_a_kind_that_the_node_has_not_is_not_kept() -> None:
    assert headroom_of(node("gpu1", base=amounts(cpu=4)), GPU, 0, 0, Headroom(of_base=0.9, of_idle=0.9)) == 0


@pytest.mark.parametrize(
    ("headroom", "said"),
    [
        (Headroom("balanced", 0.2), "policy balanced keeps 1.6 CPUs free for the node's own work"),
        (Headroom(of_base=0.2), "the policy keeps 1.6 CPUs free for the node's own work"),
    ],
)
def test_it_is_said_who_keeps_it(headroom: Headroom, said: str) -> None:
    assert NodeFacts(node("gpu1", cpus=8), Usage(), Rules(headroom=headroom), CPU).headroom == said
