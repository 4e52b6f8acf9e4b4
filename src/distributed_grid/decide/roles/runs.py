"""Which changes of a run of roles are valid, and short summaries of a run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from distributed_grid.errors import InvalidRequest, RoleNotFound, RoleRunOver, Unavailable
from distributed_grid.model.leases import Lease, Purpose
from distributed_grid.model.roles.runs import LEAVING, Record, RunState, is_over
from distributed_grid.model.times import parse_instant

if TYPE_CHECKING:
    from distributed_grid.wire.roles import RoleRun, RoleRunShort, RunHeader

_OLD: Final = timedelta(days=1)


def short_run(record: Record) -> RoleRunShort:
    """A run as one line of a list."""
    up, wanted = sum(role["up"] for role in record["roles"]), sum(role["wanted"] for role in record["roles"])
    return {
        "name": record["name"],
        "workload": record["workload"],
        "state": record["state"],
        "why": record["why"],
        "progress": record["progress"],
        "owner": record["owner"],
        "began_at": record["began_at"],
        "updated_at": record["updated_at"],
        "up": up,
        "wanted": wanted,
    }


def counts_for(record: Record, role: str, count: int) -> dict[str, int]:
    """The counts to ask for, so that a role, and each role that shares its process or bundle, has `count` members.

    Raises an error for the user if that is not possible.
    """
    name = record["name"]
    if is_over(record) or record["state"] == RunState.STOPPING:
        reasons = [record["why"]] if record["why"] else []
        raise RoleRunOver(f"The run {name} is {record['state']}", because=reasons, try_next=f"grid roles status {name}")
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


def left_behind(record: Record) -> list[str]:
    """The leases that a run which is over has left behind."""
    return [one["boost_id"] for one in record["holdings"] if one["boost_id"] is not None]


def is_old(record: RunHeader, now: datetime) -> bool:
    """Whether a run ended so long ago that its record is no longer of interest."""
    return is_over(record) and now - parse_instant(record["updated_at"]) > _OLD


def not_ended(record: Record, within_s: float) -> Unavailable:
    name, owner = record["name"], record["owner"]
    return Unavailable(
        f"The run {name} has not ended after {within_s:g} s",
        because=[f"it belongs to process {owner['pid']} on {owner['node']}, which last reported: {record['state']}"],
        try_next=f"End that process on {owner['node']}, and Ray ends the run: kill {owner['pid']}",
    )


def is_held_for(run: str, lease: Lease) -> bool:
    """Whether a lease belongs to this run. Records are not trusted: any process in the cluster can write them."""
    return lease.purpose is Purpose.ROLES and lease.label.partition("/")[0] == run


@dataclass(frozen=True, slots=True)
class Reached:
    """A role's progress towards a requested count."""

    progress: str
    done: bool = False
    stuck: bool = False
    """Its owner knows the request and nothing moves: there is no room, or something else sets the count."""


def reached(seen: RoleRun, role: str, count: int) -> Reached:
    """`seen`: the run as the API shows it, with its pending commands."""
    command = seen.get("pending_command")
    if command is not None and role in command["counts"]:
        return Reached(f"{role}: {count} requested; the run has not read the request yet")
    found = next(one for one in seen["roles"] if one["role"] == role)
    if found["wanted"] != count:
        because = f" ({found['scaling']})" if found["scaling"] else ""
        return Reached(f"{role}: the run wants {found['wanted']}, not {count}{because}", stuck=True)
    there = [one for one in seen["members"] if one["role"] == role and one["state"] not in ("gone", LEAVING)]
    progress = f"{role}: {found['up']} of {count} up"
    if len(there) == found["up"] == count:
        return Reached(progress, done=True)
    return Reached(progress, stuck=len(there) < count and all(one["state"] == "up" for one in there))


def _many(count: int) -> str:
    return f"{count} member{'s' * (count != 1)}"
