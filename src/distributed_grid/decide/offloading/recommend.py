"""Processes and nodes in; what could move and where to, or why not, out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from distributed_grid.decide.lending import plan_grant
from distributed_grid.decide.loans import Loans
from distributed_grid.decide.offloading.kinds import kind_of_process, part_of
from distributed_grid.decide.offloading.movable import obstacles_here, obstacles_there
from distributed_grid.decide.offloading.secrets import shown_command
from distributed_grid.decide.offloading.worth import confidence, cpu_needed, is_heavy, memory_needed, would_use
from distributed_grid.model.leases import Purpose
from distributed_grid.model.nodes import NodeName, NodeTable
from distributed_grid.model.offloading import (
    Elsewhere,
    Obstacle,
    ObstacleCode,
    OffloadingRecommendation,
    ProcessFacts,
    ProcessKind,
)
from distributed_grid.model.plans import Grant, Refused
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import CPU, GPU, MEMORY, scale
from distributed_grid.model.rules import NO_RULES, Rules

LABEL_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class Stuck:
    """A process that cannot move, and why."""

    process: ProcessFacts
    obstacles: tuple[Obstacle, ...]


def recommend(
    processes: Iterable[ProcessFacts],
    nodes: NodeTable,
    elsewhere: Mapping[NodeName, Elsewhere],
    loans: Loans,
    rules: Rules = NO_RULES,
) -> tuple[tuple[OffloadingRecommendation, ...], tuple[Stuck, ...]]:
    """Heavy processes that could move, the surest and heaviest first; and those that cannot.

    What is part of another process, and what only starts others, is not told of: whoever is behind it is.
    """
    movable: list[OffloadingRecommendation] = []
    stuck: list[Stuck] = []
    for facts in processes:
        if not is_heavy(facts) or kind_of_process(facts) is ProcessKind.LAUNCHER or part_of(facts) is not None:
            continue
        found = find_place(recommendation_of(facts), facts, nodes, elsewhere, loans, rules)
        if isinstance(found, Stuck):
            stuck.append(found)
        else:
            movable.append(found)
    movable.sort(key=lambda one: (-one.confidence, -one.cpu, -one.memory, one.process.pid if one.process else 0))
    stuck.sort(key=lambda one: (-would_use(one.process), -one.process.memory, one.process.pid))
    return tuple(movable), tuple(stuck)


def recommendation_of(facts: ProcessFacts) -> OffloadingRecommendation:
    """What it needs and how sure it is, not yet where to."""
    sure, why = confidence(facts)
    return OffloadingRecommendation(
        target_node=facts.node,
        cpu=cpu_needed(facts),
        memory=memory_needed(facts),
        gpu=float(facts.gpus),
        process=facts,
        command=facts.command,
        confidence=sure,
        reason=why,
    )


def find_place(
    wanted: OffloadingRecommendation,
    facts: ProcessFacts,
    nodes: NodeTable,
    elsewhere: Mapping[NodeName, Elsewhere],
    loans: Loans,
    rules: Rules = NO_RULES,
) -> OffloadingRecommendation | Stuck:
    """Where it can go: of the nodes that have room and all that it needs, the one that is left with the most."""
    if here := obstacles_here(facts):
        return Stuck(facts, here)
    in_the_way: list[Obstacle] = []
    fitting = {facts.node: nodes[facts.node]}
    for node in nodes.alive:
        if node.name == facts.node or wanted.destination not in (None, node.name):
            continue
        found = _in_the_way(facts, node.name, elsewhere)
        in_the_way += found
        if not found:
            fitting[node.name] = node
    plan = plan_grant(ask_for(wanted), NodeTable(fitting.values()), loans, rules)
    if isinstance(plan, Grant):
        return replace(wanted, destination=plan.source)
    told = (*in_the_way, *_no_room(plan, facts.node))
    return Stuck(facts, told or (Obstacle(ObstacleCode.NO_CAPACITY, "there is no other node to go to"),))


def _in_the_way(facts: ProcessFacts, name: NodeName, elsewhere: Mapping[NodeName, Elsewhere]) -> tuple[Obstacle, ...]:
    if name not in elsewhere:
        return (Obstacle(ObstacleCode.NO_CAPACITY, f"{name}: it did not answer"),)
    return obstacles_there(facts, elsewhere[name])


def ask_for(wanted: OffloadingRecommendation, **changes: object) -> Ask:
    """The lease that the work is to run in: all of it reserved on the node that it goes to."""
    along = [(MEMORY, wanted.memory)]
    if wanted.gpu:
        along.append((GPU, round(wanted.gpu * scale(GPU))))
    ask = Ask(
        target=wanted.target_node,
        kind=CPU,
        units=round(wanted.cpu * scale(CPU)),
        source=wanted.destination,
        delivery="reserve",
        along=tuple(sorted(along)),
        purpose=Purpose.TASK,
        label=label_of(wanted.command or ()),
    )
    return replace(ask, **changes)  # type: ignore[arg-type]


def label_of(command: tuple[str, ...]) -> str:
    """A command line in a few words, without secrets."""
    text = " ".join(" ".join(shown_command(command)).split())
    return text if len(text) <= LABEL_CHARACTERS else text[: LABEL_CHARACTERS - 3] + "..."


def _no_room(plan: Refused, origin: NodeName) -> list[Obstacle]:
    told = [] if plan.team_limit is None else [Obstacle(ObstacleCode.NO_CAPACITY, plan.team_limit)]
    return told + [
        Obstacle(ObstacleCode.NO_CAPACITY, f"{refusal.node}: {refusal.detail}")
        for refusal in plan.refusals
        if refusal.node != origin
    ]
