"""The rows of a run's record: its roles and its members, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distributed_grid.model.resources import amount_of
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.roles.calls.endpoints import Endpoint

if TYPE_CHECKING:
    from distributed_grid.wire.roles import MemberOfRun, RoleOfRun


def role_row(spec: RoleSpec, *, wanted: int, up: int, failures: int = 0, scaling: str = "") -> RoleOfRun:
    together = spec.colocation_group is not None
    return {
        "role": spec.name,
        "asked": [spec.least, spec.most],
        "wanted": wanted,
        "up": up,
        "pool": spec.pool,
        "colocation_group": spec.colocation_group,
        "colocation": str(spec.colocation) if together else None,
        "needs": {kind: float(amount_of(kind, units)) for kind, units in spec.needs.items()},
        "call_deadline_seconds": spec.call_deadline_seconds,
        "failure_policy": str(spec.failure_policy),
        "failures": failures,
        "failure_budget": spec.failure_budget,
        "scaling": scaling,
    }


def member_row(
    endpoint: Endpoint,
    state: str,
    actor: str,
    *,
    gpus: tuple[Any, ...] = (),
    restarts: int = 0,
    queue: int = 0,
    running: int = 0,
    pid: int | None = None,
    why: str | None = None,
) -> MemberOfRun:
    return {
        "role": endpoint.role,
        "rank": endpoint.rank,
        "node": endpoint.node,
        "gpus": list(gpus),
        "state": state,
        "restarts": restarts,
        "queue": queue,
        "running": running,
        "pid": pid,
        "actor": actor,
        "methods": sorted(endpoint.methods),
        "concurrency": endpoint.concurrency,
        "why": endpoint.why if why is None else why,
    }
