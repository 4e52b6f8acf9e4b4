"""Recommendations: which processes are worth moving, what they need, where they would go, or why not."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from distributed_grid.decide.capacity.lending import plan_grant
from distributed_grid.decide.capacity.usage import Loans
from distributed_grid.decide.offload.movable import kind_of_process, obstacles_here, obstacles_there, part_of
from distributed_grid.decide.offload.secrets import shown_command
from distributed_grid.model.leases import Purpose
from distributed_grid.model.nodes import NodeName, NodeTable
from distributed_grid.model.offload import (
    Elsewhere,
    FileRole,
    Obstacle,
    ObstacleCode,
    OffloadingRecommendation,
    ProcessFacts,
    ProcessKind,
)
from distributed_grid.model.plans import NO_RULES, Grant, Refused, Rules
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import CPU, GB, GPU, MEMORY, scale
from distributed_grid.model.times import span

HEAVY_CPU: Final = 0.5
HEAVY_MEMORY: Final = 1 * GB

_MEMORY_STEP: Final = GB // 4
_MEMORY_SLACK: Final = 1.2
_YOUNG_S: Final = 30.0
_LONG_S: Final = 3600.0


def would_use(facts: ProcessFacts) -> float:
    """Cores: on a busy machine a process gets less than it would use elsewhere."""
    return max(facts.cpu, facts.cpu_wanted)


def is_heavy(facts: ProcessFacts) -> bool:
    return would_use(facts) >= HEAVY_CPU or facts.memory >= HEAVY_MEMORY or facts.gpus > 0


def cpu_needed(facts: ProcessFacts) -> float:
    """Whole cores, at least one: what was measured over a moment is rounded up."""
    return float(max(1, math.ceil(would_use(facts) - 0.05)))


def memory_needed(facts: ProcessFacts) -> int:
    """Bytes: a fifth more than it has now, in quarters of a GB."""
    return max(1, math.ceil(facts.memory * _MEMORY_SLACK / _MEMORY_STEP)) * _MEMORY_STEP


def confidence(facts: ProcessFacts) -> tuple[float, str]:
    """0..1, and why. It begins anew on the other node: that costs what it has done, if it kept none of it."""
    sure, because = 0.9, [what_it_uses(facts)]
    kind = kind_of_process(facts)
    if kind is not ProcessKind.PYTHON:
        sure -= {ProcessKind.BUILD: 0.15, ProcessKind.SHELL: 0.2}.get(kind, 0.25)
        because.append(f"{'a shell script' if kind is ProcessKind.SHELL else f'kind {kind}'}: may hang on this machine")
    if facts.age_s < _YOUNG_S:
        sure -= 0.2
        because.append(f"only {span(facts.age_s)} old: it may soon be done")
    elif facts.age_s > _LONG_S:
        sure -= 0.2
        because.append(f"{span(facts.age_s)} old: what it has not saved is lost")
    if written := facts.files_of(FileRole.WRITTEN):
        sure -= 0.1
        because.append(f"writes {len(written)} file{'s' * (len(written) != 1)}")
    if not is_heavy(facts):
        sure -= 0.3
        because.append("too light to be worth it")
    return round(max(0.05, sure), 2), "; ".join(because)


def what_it_uses(facts: ProcessFacts) -> str:
    waits = would_use(facts) - facts.cpu
    starved = f" (and waits for {waits:.1f} more: its machine is busy)" if waits >= HEAVY_CPU / 2 else ""
    parts = [f"{facts.cpu:.1f} cores{starved}", f"{facts.memory / GB:.1f} GB"]
    if facts.gpus:
        parts.append(f"{facts.gpus} GPU{'s' * (facts.gpus != 1)}")
    return "uses " + ", ".join(parts)


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
