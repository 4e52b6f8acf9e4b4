"""What would happen to a request, and why, as the API and `--json` show it."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from distributed_grid.decide.answers import NodeReason, Outlook
from distributed_grid.decide.preemption import Preemption
from distributed_grid.model.instants import instant
from distributed_grid.model.resources import amount_of


def plan_dict(outlook: Outlook, now: datetime) -> dict[str, Any]:
    """What `grid plan` shows."""
    ask, grant, preemption, start = outlook.ask, outlook.grant, outlook.preemption, outlook.expected_start
    return {
        "target_node": ask.target,
        "resource_type": ask.kind,
        "amount": amount_of(ask.kind, ask.units),
        "priority": str(ask.priority),
        "team": ask.team,
        "at": instant(now),
        "fits": grant is not None,
        "source_node": None if grant is None else grant.source,
        "delivery": None if grant is None else str(grant.delivery),
        "delivery_reason": None if grant is None else grant.delivery_reason,
        "warnings": [] if grant is None else list(grant.warnings),
        "preemption": None if preemption is None else _preemption_dict(preemption),
        "ahead": outlook.ahead,
        "expected_start": None if start is None else instant(start),
        "expected_wait_s": None if start is None else round(max(0.0, (start - now).total_seconds()), 3),
        "largest_now": {
            "amount": amount_of(ask.kind, outlook.largest_now),
            "source_node": outlook.largest_source,
        },
        "team_limit": outlook.team_limit,
        "nodes": considered_dicts(ask.kind, outlook.considered),
        "summary": outlook.summary,
    }


def considered_dicts(kind: str, reasons: Iterable[NodeReason]) -> list[dict[str, Any]]:
    """What every node has to do with a request."""
    return [
        {
            "node": reason.node,
            "verdict": str(reason.verdict),
            "detail": reason.detail,
            "could_lend": amount_of(kind, reason.could_lend),
        }
        for reason in reasons
    ]


def _preemption_dict(preemption: Preemption) -> dict[str, Any]:
    return {
        "source_node": preemption.source,
        "reason": preemption.reason,
        "takes_own": preemption.takes_own,
        "delivery": str(preemption.grant.delivery),
        "at": instant(preemption.at),
        "back_by": instant(preemption.back_by),
        "victims": [
            {
                "boost_id": victim.id,
                "target_node": victim.target,
                "resource_type": victim.kind,
                "amount": amount_of(victim.kind, victim.units),
                "takes": amount_of(victim.kind, preemption.takes[victim.id]),
                "priority": str(victim.priority),
                "team": victim.team,
            }
            for victim in preemption.victims
        ],
    }
