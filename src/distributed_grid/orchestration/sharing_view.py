"""Sharing as the API and `--json` show it: who may lend what, who waits, and by which numbers."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from distributed_grid.decide.admission import Verdict
from distributed_grid.decide.fair_share import burden
from distributed_grid.model.instants import instant
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.resources import BUILT_IN, amount_of
from distributed_grid.model.teams import DEFAULT_TEAM, Team
from distributed_grid.model.waiting import Waiting
from distributed_grid.orchestration.boost_view import boost_dict, listed
from distributed_grid.orchestration.parts import Parts
from distributed_grid.orchestration.queueing import Queue
from distributed_grid.orchestration.rules_in_force import numbers

_FIRST_OF_QUEUE: Final = 8


def sharing_dict(p: Parts, queue: Queue, nodes: NodeTable) -> dict[str, Any]:
    """What `grid resource-sharing status` shows: the policy in force, every node's limits, every team's part, and who
    waits.
    """
    sharing = p.config.resource_sharing
    return policy_dict(p) | {
        "enabled": sharing.enabled,
        "delivery": sharing.delivery or "transfer (reserve for GPUs)",
        "nodes": [_node_dict(p, node) for node in nodes.values()],
        "teams": [_team_dict(p, team) for team in _teams(p)],
        **waiting_dict(p, queue),
        "cooling": sorted(p.sharing.cooling),
    }


def policy_dict(p: Parts) -> dict[str, Any]:
    return {
        "policy": str(p.sharing.policy),
        "mode": str(p.sharing.mode),
        "configured_policy": str(p.sharing.configured_policy),
        "configured_mode": str(p.sharing.configured_mode),
        "numbers": asdict(numbers(p)),
    }


def _node_dict(p: Parts, node: Node) -> dict[str, Any]:
    loans = p.ledger.loans
    return {
        "name": node.name,
        "alive": node.alive,
        "can_share": node.limits.can_share,
        "cooling": node.name in p.sharing.cooling,
        "limits": {
            kind: None if (limit := node.limits.limit(kind)) is None else amount_of(kind, limit) for kind in BUILT_IN
        },
        "lent": loans.lent_by(node.name).to_amounts(),
        "borrowed": loans.borrowed_by(node.name).to_amounts(),
        "free": node.free.at_least_zero().to_amounts(),
    }


def _teams(p: Parts) -> list[Team]:
    """Those that are configured, and those that have something all the same."""
    others = {lease.team for lease in p.ledger} - set(p.teams)
    return [*p.teams.values(), *(Team(name) for name in sorted(others or ({DEFAULT_TEAM} - set(p.teams))))]


def _team_dict(p: Parts, team: Team) -> dict[str, Any]:
    return {
        "name": team.name,
        "guaranteed": team.guaranteed.to_amounts(),
        "borrowing_limit": {kind: amount_of(kind, units) for kind, units in team.borrowing_limit.items()},
        "lending_limit": {kind: amount_of(kind, units) for kind, units in team.lending_limit.items()},
        "weight": team.weight,
        "held": p.ledger.loans.held_by(team.name).to_amounts(),
        "recent_use": round(burden(team, p.sharing.accounts, p.now()) * team.weight, 4),
    }


def queued_dict(waiting: Waiting, verdict: Verdict | None, now: datetime) -> dict[str, Any]:
    ask = waiting.ask
    start = None if verdict is None else verdict.expected_start
    return {
        "request_id": waiting.id,
        "position": None if verdict is None else verdict.position,
        "target_node": ask.target,
        "resource_type": ask.kind,
        "amount": amount_of(ask.kind, ask.units),
        "priority": str(ask.priority),
        "duration_seconds": ask.duration_s,
        "team": ask.team,
        "requester": ask.requester,
        "since": instant(waiting.since),
        "waited_seconds": round(max(0.0, (now - waiting.since).total_seconds()), 3),
        "until": None if waiting.until is None else instant(waiting.until),
        "reason": verdict.reason if verdict is not None else f"{ask.target} is not connected, or nobody has looked yet",
        "expected_start": None if start is None else instant(start),
        "expected_source": None if verdict is None else verdict.expected_source,
    }


def queue_dict(waiting: Mapping[str, Waiting], verdicts: tuple[Verdict, ...], now: datetime) -> dict[str, Any]:
    """Everybody who waits, the next one first; or as many as fit into an answer."""
    return listed("requests", _queued(waiting, verdicts, now), "requester")


def _queued(
    waiting: Mapping[str, Waiting], verdicts: tuple[Verdict, ...], now: datetime, most: int | None = None
) -> list[dict[str, Any]]:
    known = {verdict.waiting.id: verdict for verdict in verdicts if verdict.waiting.id in waiting}
    ids = [*known, *(request_id for request_id in waiting if request_id not in known)]
    return [queued_dict(waiting[each], known.get(each), now) for each in ids[:most]]


def waiting_dict(p: Parts, queue: Queue) -> dict[str, Any]:
    """How many requests wait, and the first of them as the queue's list has them: what every status shows."""
    first = _queued(p.sharing.waiting, queue.verdicts(), p.now(), _FIRST_OF_QUEUE)
    return {"waiting": len(p.sharing.waiting), "queue": first}


def allocation_dict(
    found: Lease | Waiting, verdict: Verdict | None, notes: tuple[str, ...], now: datetime
) -> dict[str, Any]:
    """A request, whether it waits or has become a boost."""
    if isinstance(found, Waiting):
        queued = queued_dict(found, verdict, now)
        return {"request_id": found.id, "state": "waiting", "waiting": queued, "boost": None}
    return {"request_id": found.id, "state": str(found.state), "waiting": None, "boost": boost_dict(found, notes)}
