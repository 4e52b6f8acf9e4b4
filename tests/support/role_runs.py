"""Records of runs of roles, as their owners write them."""

from typing import Any


def a_role(name: str, count: int, most: int | None = None, up: int | None = None, **others: Any) -> dict[str, Any]:
    return {
        "role": name,
        "asked": [count, most or count],
        "wanted": count,
        "up": count if up is None else up,
        "pool": None,
        "colocation_group": None,
        "colocation": None,
        "needs": {"cpu": 1.0},
        "call_deadline_seconds": None,
        "failure_policy": "restart",
        "failures": 0,
        "failure_budget": None,
        "scaling": "",
    } | others


def a_member(role: str, rank: int, node: str = "a", **others: Any) -> dict[str, Any]:
    return {
        "role": role,
        "rank": rank,
        "node": node,
        "gpus": [],
        "state": "up",
        "restarts": 0,
        "queue": 0,
        "running": 0,
        "pid": 1000 + rank,
        "actor": f"run-1/{role}/{rank}",
        "methods": ["step"],
        "concurrency": 1,
        "why": "",
    } | others


def a_run(name: str = "run-1", state: str = "running", **others: Any) -> dict[str, Any]:
    """A trainer and two of at most four rollout workers."""
    return {
        "name": name,
        "workload": "rl",
        "state": state,
        "why": "",
        "progress": "",
        "owner": {
            "node": "a",
            "pid": 4711,
            "job_id": "01000000",
            "worker_id": f"worker-of-{name}",
            "user": "somebody",
            "team": "",
        },
        "began_at": "2025-01-01T10:00:00+00:00",
        "updated_at": "2025-01-01T10:05:00+00:00",
        "roles": [a_role("trainer", 1, needs={"cpu": 1.0, "gpu": 1}), a_role("rollout_worker", 2, 4)],
        "members": [
            a_member("trainer", 0, gpus=[0]),
            a_member("rollout_worker", 0, "b"),
            a_member("rollout_worker", 1, "c", restarts=1, queue=3, running=1),
        ],
        "holdings": [],
        "events": [],
    } | others
