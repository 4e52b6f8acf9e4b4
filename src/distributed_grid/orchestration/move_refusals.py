"""Why a process was not moved, in words for whoever asked."""

from distributed_grid.decide.offloading.recommend import Stuck
from distributed_grid.errors import CannotMove, MoveFailed
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.offloading import ObstacleCode, ProcessFacts


def refusal(facts: ProcessFacts, found: object) -> CannotMove:
    obstacles = found.obstacles if isinstance(found, Stuck) else ()
    room = [one for one in obstacles if one.code is ObstacleCode.NO_CAPACITY]
    smaller = "Ask for less with --cpus and --memory, or see what is free: grid node ls"
    return CannotMove(
        f"Process {facts.pid} ({facts.name}) cannot leave {facts.node}",
        because=[one.describe() for one in obstacles],
        try_next=smaller if obstacles and len(room) == len(obstacles) else "See what could: grid offload scan",
    )


def not_started(facts: ProcessFacts, to: NodeName, why: str, *, kept: bool, by_hand: str) -> MoveFailed:
    if kept:
        return MoveFailed(f"The command could not be started on {to}", because=[why])
    return MoveFailed(
        f"Process {facts.pid} was stopped on {facts.node} and could not be started on {to}: it does not run",
        because=[why],
        try_next=f"Start it again by hand on {facts.node}: {by_hand}",
    )
