"""Waiting until a run of roles is as it was asked to be, with a line that says how far it is."""

import time
from collections.abc import Callable
from typing import Any, Final

from distributed_grid.client import GridClient
from distributed_grid.decide.roles.runs import not_ended, reached
from distributed_grid.errors import CannotScale, RoleRunNotFound, RoleRunOver
from distributed_grid.model.roles.runs import is_over

_LOOK_S: Final = 0.3
_STUCK_S: Final = 10.0

Run = dict[str, Any]
Show = Callable[[str], None]


def until_scaled(client: GridClient, name: str, role: str, count: int, within_s: float, show: Show) -> Run:
    """Until a role has so many members that answer. Raises if its run ends, or nothing moves for a while."""
    deadline = time.monotonic() + within_s
    stuck_since: float | None = None
    while True:
        run = client.role_run(name)
        if is_over(run) or run["state"] == "stopping":
            raise RoleRunOver(f"The run {name} is {run['state']}", because=[run["why"]] if run["why"] else [])
        now, far = time.monotonic(), reached(run, role, count)
        if far.done:
            return run
        show(far.told)
        stuck_since = (stuck_since or now) if far.stuck else None
        is_stuck = stuck_since is not None and now - stuck_since > _STUCK_S
        if is_stuck or now > deadline:
            raise CannotScale(
                f"{role} of {name} does not have {count} members" + ("" if is_stuck else f" after {within_s:g} s"),
                because=[far.told, *([run["why"]] if run["why"] else [])],
                try_next=f"The run goes on trying. See grid roles status {name}; or ask for another count.",
            )
        time.sleep(_LOOK_S)


def until_down(client: GridClient, name: str, within_s: float, show: Show) -> None:
    """Until a run that was asked to end is gone; it is forgotten then."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            run = client.role_run(name)
            if is_over(run):
                client.role_run_down(name, only_over=True)
                return
        except RoleRunNotFound:
            return
        show(f"{name} is {run['state']}: {sum(role['up'] for role in run['roles'])} members are up")
        if time.monotonic() > deadline:
            raise not_ended(run, within_s)
        time.sleep(_LOOK_S)
