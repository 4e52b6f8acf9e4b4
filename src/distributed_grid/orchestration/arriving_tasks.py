"""A request becomes a task: whose it is, what it needs, and, before it is sent away, what its own node has free."""

import asyncio
from dataclasses import replace
from typing import Final

from distributed_grid.decide.delivery import lent_resources
from distributed_grid.decide.lending import own_room
from distributed_grid.errors import TargetNotFound
from distributed_grid.model.leases import Delivery
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.scheduled import ScheduledTask
from distributed_grid.model.scheduling import SchedulingRequest, SchedulingStrategy
from distributed_grid.orchestration.parts import VIEW_LAG, Parts
from distributed_grid.orchestration.rules_in_force import rules_for
from distributed_grid.orchestration.task_leases import ask_for

_LOOK_AGAIN_S: Final = 0.05


async def task_for(p: Parts, request: SchedulingRequest, *, who: str, team: str) -> ScheduledTask:
    """The task, with a target and its needs in full; `TargetNotFound` if it names a node that is not there."""
    nodes = await _nodes_with(p, request)
    target = request.target or next((node.name for node in nodes.values() if node.is_head), None)
    request = replace(request, target=target)
    for name in (target, request.node, *request.near.nodes):
        if name is not None and name not in nodes:
            raise TargetNotFound(
                "Target node not found in cluster",
                because=[f"no node is named {name!r}"],
                try_next=f"Nodes: {', '.join(nodes) or 'none'}",
            )
    if target is None:
        raise TargetNotFound("The cluster has no head to schedule for", try_next="Name a target.")
    task = ScheduledTask(request, {}, p.now(), who, team)
    ask = ask_for(p.config, task)
    needs = lent_resources(ask, Delivery.RESERVE, rules_for(p, ask).companions)
    return replace(task, needs=dict(needs.items()))


async def _nodes_with(p: Parts, request: SchedulingRequest) -> NodeTable:
    """As they were seen lately, if all that the request names are among them."""
    known = p.known()
    if known and all(name in known for name in (request.target, request.node, *request.near.nodes) if name):
        return known
    return await p.look()


async def let_the_view_catch_up(p: Parts, task: ScheduledTask) -> None:
    """What its own node has got back a moment ago may not be seen yet: that is no reason to send a task away."""
    if task.request.strategy != SchedulingStrategy.LOCAL_FIRST:
        return
    while p.now() < p.last_change + VIEW_LAG:
        node = (await p.look_to_decide()).get(task.request.target or "")
        if node is None or not node.alive:
            return
        loans = p.ledger.loans
        if all(units <= own_room(node, kind, loans) for kind, units in task.needs.items()):
            return
        idle = {kind: node.base[kind] + loans.moved_in(node.name, kind) for kind in task.needs}
        if any(units > idle[kind] - loans.taken(node.name, kind) for kind, units in task.needs.items()):
            return  # it would not fit there if nothing ran
        await asyncio.sleep(_LOOK_AGAIN_S)
