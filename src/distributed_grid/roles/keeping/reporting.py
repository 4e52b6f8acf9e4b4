"""What is told of a run: the record that everybody can read."""

import os
from datetime import UTC, datetime
from typing import Any

from distributed_grid.model.instants import instant
from distributed_grid.model.roles.runs import LEAVING, Record
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.roles.calls.roster import Seat
from distributed_grid.roles.keeping.parts import RunParts
from distributed_grid.roles.keeping.posts import Post, PostState
from distributed_grid.roles.record_rows import member_row, role_row


def record_of(parts: RunParts, job_id: str, worker_id: str, node: str) -> Record:
    user, team = parts.surveyor.user_and_team
    posts = sorted(parts.crew.posts.values(), key=lambda post: (post.key, post.process.index))
    return {
        "name": parts.name,
        "workload": parts.workload.name,
        "state": str(parts.state),
        "why": parts.why,
        "progress": parts.progress,
        "owner": {
            "node": node,
            "pid": os.getpid(),
            "job_id": job_id,
            "worker_id": worker_id,
            "user": user,
            "team": team,
        },
        "began_at": _at(parts.began),
        "updated_at": instant(datetime.now(UTC)),
        "roles": [_role(parts, role, posts) for role in parts.workload.roles],
        "members": _members(parts, posts),
        "holdings": [
            {
                "node": one.holding.node,
                "pool": one.holding.pool,
                "resources": one.holding.resources.to_amounts(),
                "boost_id": one.boost_id,
            }
            for one in list(parts.held)
        ],
        "events": parts.events.rows(),
    }


def _role(parts: RunParts, role: RoleSpec, posts: list[Post]) -> dict[str, Any]:
    return role_row(
        role,
        wanted=parts.wanted.get(role.name, role.least),
        up=len([post for post in posts if role.name in post.key and _state(post) == PostState.UP]),
        failures=parts.failures[role.name],
        scaling=parts.scaling.get(role.name, ""),
    )


def _members(parts: RunParts, posts: list[Post]) -> list[dict[str, Any]]:
    found = [_member(post, seat) for post in posts for seat in post.seats]
    order = {role.name: number for number, role in enumerate(parts.workload.roles)}
    return sorted(found, key=lambda one: (order[one["role"]], one["rank"]))


def _member(post: Post, seat: Seat) -> dict[str, Any]:
    return member_row(
        seat,
        _state(post),
        post.name,
        gpus=post.gpus,
        restarts=post.restarts,
        queue=post.queue,
        running=post.running,
        pid=post.pid,
        why=post.why,
    )


def _state(post: Post) -> str:
    return str(post.state) if post.leaving_since is None else LEAVING


def _at(moment: float) -> str:
    return instant(datetime.fromtimestamp(moment, UTC))
