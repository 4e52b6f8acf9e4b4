"""Ownership: what a caller may change, and the highest priority that it may request. All such checks are here.

A lease, a waiting request, a task, a moved process or a run of roles belongs to the caller that asked for it and to
that caller's team. Others need the scope `admin`, or own every node that lends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distributed_grid.errors import NotOwner, PriorityNotAllowed
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeName, in_words
from distributed_grid.model.offload import Offloaded, ProcessFacts
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.principals import GRID, TEAM_PREFIX, Principal, Scope
from distributed_grid.model.requests import Waiting
from distributed_grid.model.roles.runs import Record
from distributed_grid.model.scheduling import ScheduledTask
from distributed_grid.model.teams import DEFAULT_TEAM, Teams
from distributed_grid.model.windows import Window

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import Boost


@dataclass(frozen=True, slots=True)
class Owned:
    """Something that a caller wants to change, and its owner."""

    what: str
    """As a message names it: "Boost 5f0c1a2b"."""
    requester: str
    """Empty: no caller asked for it, or its owner is not known."""
    team: str = ""
    lenders: tuple[NodeName, ...] = ()
    """The nodes whose capacity it holds, where it holds some."""


def owned_lease(lease: Lease) -> Owned:
    return Owned(f"Boost {lease.id[:8]}", lease.requester, lease.team, lease.sources)


def owned_boost_dict(boost: Boost) -> Owned:
    """A boost that has ended, as the audit log shows it."""
    team = str(boost.get("team") or "")
    sources = [boost.get("source_node"), *(part["source_node"] for part in boost.get("parts") or ())]
    lenders = tuple(dict.fromkeys(source for source in sources if source))
    return Owned(f"Boost {str(boost['boost_id'])[:8]}", str(boost.get("requester") or ""), team, lenders)


def owned_request(waiting: Waiting) -> Owned:
    """Nothing is lent to it yet, so no node's owner is concerned."""
    return Owned(f"Request {waiting.id[:8]}", waiting.ask.requester, waiting.ask.team)


def owned_window(window: Window) -> Owned:
    return Owned(f"The window {window.name}", window.ask.requester, window.ask.team)


def owned_task(task: ScheduledTask) -> Owned:
    return Owned(f"Task {task.id[:40]}", task.who, task.team)


def owned_offload(one: Offloaded) -> Owned:
    return Owned(f"The moved process {one.id[:8]}", one.requester, one.team, (one.to_node,))


def owned_process(facts: ProcessFacts) -> Owned:
    """A process that grid did not start belongs to its user alone."""
    return Owned(f"Process {facts.pid} on {facts.node}", facts.user)


def owned_run(record: Record) -> Owned:
    """The owner that the process of a run of roles reports. Records from before it did so have none."""
    owner = record["owner"]
    return Owned(f"The run {record['name']}", str(owner.get("user") or ""), str(owner.get("team") or ""))


def may_change(caller: Principal, thing: Owned, node_owners: Iterable[str] = ()) -> bool:
    """Whether the caller owns it, shares its team, owns all nodes that lend it, or has the scope `admin`.

    The team `default` holds all callers without a team: sharing it makes no team-mates.
    """
    if caller.may(Scope.ADMIN) or (thing.requester and caller.name == thing.requester):
        return True
    if caller.team and caller.team == thing.team != DEFAULT_TEAM:
        return True
    return caller.name in node_owners or bool(caller.team and f"{TEAM_PREFIX}{caller.team}" in node_owners)


def may_see(caller: Principal, thing: Owned, node_owners: Iterable[str] = ()) -> bool:
    """Whether the caller may know that it exists: with the scope `view`, or because the caller may change it."""
    return caller.may(Scope.VIEW) or may_change(caller, thing, node_owners)


def check_may_change(caller: Principal, thing: Owned, node_owners: Iterable[str] = ()) -> None:
    """Raise `NotOwner`, which names the owner and the others that may do it, unless the caller may change this."""
    owners = tuple(node_owners)
    if may_change(caller, thing, owners):
        return
    could = [thing.requester] if thing.requester and thing.requester != GRID else []
    could += [f"a user of team {thing.team}"] if thing.team not in ("", DEFAULT_TEAM) else []
    could += [f"an owner of {in_words(thing.lenders)} ({', '.join(owners)})"] if owners else []
    admin = "use a token with the scope admin."
    owner, you = _named(thing.requester, thing.team), _named(caller.name, caller.team)
    raise NotOwner(
        f"{thing.what} belongs to {owner}, and you are {you}",
        because=["it can be changed by its requester and team, by an owner of the node that lends it, and by admins"],
        try_next=f"Ask {' or '.join(could)} to do it, or {admin}" if could else admin.capitalize(),
    )


def _named(name: str, team: str) -> str:
    who = name or "no known user"
    return f"{who} of team {team}" if team and team != DEFAULT_TEAM else who


def most_allowed(caller: Principal, teams: Teams) -> AllocationPriority:
    """The highest priority that a caller may ask for: its token's, and never more than its team's.

    A token without one has its team's, or `normal` where the team has none either. Admins have no limit.
    """
    if caller.may(Scope.ADMIN):
        return AllocationPriority.CRITICAL
    of_team = teams.of(caller.team).max_priority
    said = caller.max_priority or of_team or AllocationPriority.NORMAL
    return said if of_team is None else min(said, of_team, key=lambda priority: priority.rank)


def check_priority(caller: Principal, requested: AllocationPriority, teams: Teams) -> None:
    """Raise `PriorityNotAllowed` if that is more than the caller may ask for."""
    most = most_allowed(caller, teams)
    if requested.rank <= most.rank:
        return
    of_team = teams.of(caller.team).max_priority
    by_team = of_team is not None and most is of_team and (caller.max_priority or requested).rank >= requested.rank
    whose = f"the team {caller.team}" if by_team else f"the token of {caller.name}"
    more = (
        f"max_priority: {requested} for the team {caller.team} in the configuration"
        if by_team
        else f"a new token: grid token create {caller.name} --max-priority {requested}"
    )
    raise PriorityNotAllowed(
        f"The priority {requested} is above {most}, the maximum for {whose}",
        try_next=f"Use --priority {most}, or ask an admin for {more}",
    )
