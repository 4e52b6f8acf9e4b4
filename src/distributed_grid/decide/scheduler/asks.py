"""Tasks in the queue: the request for a task's lease, and the one order of tasks and other requests."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from distributed_grid.decide.capacity.quotas import why_over_limit
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.queue.claims import Account, ordered
from distributed_grid.model.leases import Cause, Purpose
from distributed_grid.model.nodes import NodeName, NodeTable
from distributed_grid.model.requests import Ask, Waiting, make_ask, reservation
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.scheduling import ScheduledTask
from distributed_grid.model.teams import Teams


def ask_for(
    task: ScheduledTask,
    *,
    fractional_gpus: bool = True,
    count: int | None = None,
    nodes: tuple[NodeName, ...] | None = None,
    places: tuple[NodeName, ...] = (),
) -> Ask:
    """The request for the task's lease, on nodes that may include the target itself. A gang is one request, with a
    member for each of its members, or for `count` of them; `places` are the nodes that its strategy would choose.

    `complete_task` ends the lease; without that call, it ends by itself. Its cause marks it as the scheduler's: callers
    can give a lease any label and purpose, but not that cause.
    """
    request = task.request
    body = reservation(
        request.target or "",
        request.amounts,
        priority=request.priority,
        duration_seconds=task.held_s,
        purpose=Purpose.TASK,
        label=task.id,
    )
    ask = make_ask(body, requester=task.who, team=task.team, fractional_gpus=fractional_gpus)
    ask = replace(ask, cause=Cause.SCHEDULED, nodes=nodes)
    return ask.times(request.count if count is None else count, request.layout, places)


def in_order(
    queue: Collection[Waiting],
    tasks: Iterable[ScheduledTask],
    usage: Usage,
    accounts: Mapping[str, Account],
    teams: Teams,
    now: datetime,
) -> tuple[Waiting, ...]:
    """All waiting requests and tasks in the one order of claims."""
    known = {each.ask.label for each in queue if each.is_for_a_task}
    others = (Waiting(task.id, ask_for(task), task.asked_at) for task in tasks if task.waits and task.id not in known)
    return ordered((*queue, *others), usage, accounts, teams, now)


def why_team_may_not(task: ScheduledTask, count: int, nodes: NodeTable, usage: Usage, teams: Teams) -> str | None:
    """Why the task's team may not have leases for so many members; None if it may."""
    if not teams or not count:
        return None
    need = ResourceVector({kind: count * units for kind, units in task.needs.items()})
    limit = why_over_limit(ask_for(task, count=count), need, nodes, usage, teams)
    return None if limit is None else limit.detail
