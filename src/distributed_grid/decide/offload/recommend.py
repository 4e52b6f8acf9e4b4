"""Recommendations: which processes are worth moving, what they need, where they would go, or why not."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from distributed_grid.decide.capacity.lending import plan_grant
from distributed_grid.decide.capacity.usage import Usage
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
    """Cores that the process would use elsewhere: on a busy machine it gets fewer."""
    return max(facts.cpu, facts.cpu_wanted)


def is_heavy(facts: ProcessFacts) -> bool:
    return would_use(facts) >= HEAVY_CPU or facts.memory >= HEAVY_MEMORY or facts.gpus > 0


def cpu_needed(facts: ProcessFacts) -> float:
    """Whole cores, at least one. The short measurement is rounded up."""
    return float(max(1, math.ceil(would_use(facts) - 0.05)))


def memory_needed(facts: ProcessFacts) -> int:
    """Bytes: a fifth more than the process has now, in steps of a quarter of a GB."""
    return max(1, math.ceil(facts.memory * _MEMORY_SLACK / _MEMORY_STEP)) * _MEMORY_STEP


def confidence(facts: ProcessFacts) -> tuple[float, str]:
    """0..1, and why. The process starts over on the other node, so it loses all work that it has not saved."""
    sure, because = 0.9, [what_it_uses(facts)]
    kind = kind_of_process(facts)
    if kind is not ProcessKind.PYTHON:
        sure -= {ProcessKind.BUILD: 0.15, ProcessKind.SHELL: 0.2}.get(kind, 0.25)
        because.append(
            f"{'a shell script' if kind is ProcessKind.SHELL else f'kind {kind}'}: may depend on this machine"
        )
    if facts.age_s < _YOUNG_S:
        sure -= 0.2
        because.append(f"only {span(facts.age_s)} old: it may finish soon")
    elif facts.age_s > _LONG_S:
        sure -= 0.2
        because.append(f"{span(facts.age_s)} old: unsaved work would be lost")
    if written := facts.files_of(FileRole.WRITTEN):
        sure -= 0.1
        because.append(f"writes {len(written)} file{'s' * (len(written) != 1)}")
    if not is_heavy(facts):
        sure -= 0.3
        because.append("too small to be worth moving")
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
    usage: Usage,
    rules: Rules = NO_RULES,
) -> tuple[tuple[OffloadingRecommendation, ...], tuple[Stuck, ...]]:
    """Heavy processes that could move, by confidence and then by size; and those that cannot.

    Launchers and parts of another process are left out: the process at the top of the family is reported instead.
    """
    movable: list[OffloadingRecommendation] = []
    stuck: list[Stuck] = []
    for facts in processes:
        if not is_heavy(facts) or kind_of_process(facts) is ProcessKind.LAUNCHER or part_of(facts) is not None:
            continue
        found = find_place(recommendation_of(facts), facts, nodes, elsewhere, usage, rules)
        if isinstance(found, Stuck):
            stuck.append(found)
        else:
            movable.append(found)
    movable.sort(key=lambda one: (-one.confidence, -one.cpu, -one.memory, one.process.pid if one.process else 0))
    stuck.sort(key=lambda one: (-would_use(one.process), -one.process.memory, one.process.pid))
    return tuple(movable), tuple(stuck)


def recommendation_of(facts: ProcessFacts) -> OffloadingRecommendation:
    """The needs of the process and the confidence of the recommendation, still without a destination."""
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
    usage: Usage,
    rules: Rules = NO_RULES,
) -> OffloadingRecommendation | Stuck:
    """The destination: of the nodes with room and everything the process needs, the one left with the most headroom."""
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
    plan = plan_grant(ask_for(wanted), NodeTable(fitting.values()), usage, rules)
    if isinstance(plan, Grant):
        return replace(wanted, destination=plan.source)
    obstacles = (*in_the_way, *_no_room(plan, facts.node))
    return Stuck(facts, obstacles or (Obstacle(ObstacleCode.NO_CAPACITY, "no other node is available"),))


def _in_the_way(facts: ProcessFacts, name: NodeName, elsewhere: Mapping[NodeName, Elsewhere]) -> tuple[Obstacle, ...]:
    if name not in elsewhere:
        return (Obstacle(ObstacleCode.NO_CAPACITY, f"{name}: it did not answer"),)
    return obstacles_there(facts, elsewhere[name])


def ask_for(wanted: OffloadingRecommendation) -> Ask:
    """The request for the lease that the work runs in, with everything reserved on its destination."""
    along = [(MEMORY, wanted.memory)]
    if wanted.gpu:
        along.append((GPU, round(wanted.gpu * scale(GPU))))
    return Ask(
        target=wanted.target_node,
        kind=CPU,
        units=round(wanted.cpu * scale(CPU)),
        sources=() if wanted.destination is None else (wanted.destination,),
        delivery="reserve",
        along=tuple(sorted(along)),
        purpose=Purpose.TASK,
        label=label_of(wanted.command or ()),
    )


def label_of(command: tuple[str, ...]) -> str:
    """A shortened command line, without secrets."""
    text = " ".join(" ".join(shown_command(command)).split())
    return text if len(text) <= LABEL_CHARACTERS else text[: LABEL_CHARACTERS - 3] + "..."


def _no_room(plan: Refused, origin: NodeName) -> list[Obstacle]:
    obstacles = [] if plan.team_limit is None else [Obstacle(ObstacleCode.NO_CAPACITY, plan.team_limit.detail)]
    return obstacles + [
        Obstacle(ObstacleCode.NO_CAPACITY, f"{refusal.node}: {refusal.detail}")
        for refusal in plan.refusals
        if refusal.node != origin
    ]
