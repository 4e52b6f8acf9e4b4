"""What may be asked of a run of roles, and how it is told in short."""

from typing import Any

from distributed_grid.errors import InvalidRequest, RoleNotFound, RoleRunOver
from distributed_grid.model.roles.runs import Record, RunState, is_over

_SHORT = ("name", "workload", "state", "why", "progress", "owner", "began_at", "updated_at")


def short_run(record: Record) -> dict[str, Any]:
    """A run as one line of a list."""
    up, wanted = (sum(role[key] for role in record["roles"]) for key in ("up", "wanted"))
    return {key: record[key] for key in _SHORT} | {"up": up, "wanted": wanted}


def counts_for(record: Record, role: str, count: int) -> dict[str, int]:
    """What to wish for, so that a role has `count` members: what shares its process or bundle has as many.

    Raises what a person should read if that cannot be.
    """
    name = record["name"]
    if is_over(record) or record["state"] == RunState.STOPPING:
        told = [record["why"]] if record["why"] else []
        raise RoleRunOver(f"The run {name} is {record['state']}", because=told, try_next=f"grid roles status {name}")
    by_name = {one["role"]: one for one in record["roles"]}
    if (found := by_name.get(role)) is None:
        raise RoleNotFound(f"The run {name} has no role {role!r:.80}", because=[f"it has {', '.join(by_name)}"])
    least, most = found["asked"]
    if least == most != count:
        raise InvalidRequest(
            f"{role} of {name} has {_many(least)}, and does not scale",
            try_next="To scale it, give it a range in its workload: count: {min: 1, max: 8}",
        )
    if not least <= count <= most:
        raise InvalidRequest(f"{role} of {name} has from {least} to {_many(most)}, not {count}")
    group = found["colocation_group"]
    together = [one for one in by_name.values() if group is not None and one["colocation_group"] == group] or [found]
    return {one["role"]: count for one in together}


def _many(count: int) -> str:
    return f"{count} member{'s' * (count != 1)}"
