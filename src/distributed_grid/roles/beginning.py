"""Starts a run, or attaches to one. Ray is imported only where it is needed; local mode does not need it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, overload

from distributed_grid.model.roles.workload import Workload
from distributed_grid.roles.local.run import LocalRun

if TYPE_CHECKING:
    from distributed_grid.roles.attaching import AttachedRun
    from distributed_grid.roles.run import Run

SILENT_AFTER_S = 15.0
"""A process that does not answer for so long is taken for dead: only one that is stuck as a whole does not answer."""

Progress = Callable[[str], None]


@overload
def launch(workload: Workload, name: str | None = None, *, local: Literal[True]) -> LocalRun: ...
@overload
def launch(
    workload: Workload,
    name: str | None = None,
    *,
    local: Literal[False] = False,
    leases: bool | None = None,
    priority: str = "normal",
    wait_s: float = 0.0,
    progress: Progress | None = None,
    silent_after_s: float = SILENT_AFTER_S,
) -> "Run": ...
def launch(
    workload: Workload,
    name: str | None = None,
    *,
    local: bool = False,
    leases: bool | None = None,
    priority: str = "normal",
    wait_s: float = 0.0,
    progress: Progress | None = None,
    silent_after_s: float = SILENT_AFTER_S,
) -> "Run | LocalRun":
    """Start a whole workload, all or nothing. Returns when all members are up.

    `name`: the name under which others can `attach`; by default the workload's own. `leases`: whether capacity is held
    by grid's leases, of this `priority`; None: yes if this cluster is shared. `wait_s`: how long to wait if there is no
    room now. `progress`: called repeatedly with the progress. `silent_after_s`: a process that does not answer for so
    long is taken for dead. `local`: in this process alone, without Ray.
    """
    if local:
        return LocalRun(workload, name)
    from distributed_grid.roles.run import Run, Starting
    from distributed_grid.roles.supervision.places import Leases, OwnGroups, Places
    from distributed_grid.roles.supervision.surveying import Surveyor

    run_name = name or workload.name

    def begin(tell: Progress) -> Run:
        surveyor = Surveyor.connected()
        shared = surveyor.is_shared if leases is None else leases
        places: Places = Leases(run_name, surveyor.lender(), priority) if shared else OwnGroups(run_name)
        run = Run(workload, run_name, surveyor, places, silent_after_s)
        run.start(wait_s, tell)
        return run

    return Starting(begin, run_name).result(progress or (lambda _: None))


def attach(name: str) -> "AttachedRun":
    """The run of this name that another process started. This process must be connected to the same Ray cluster."""
    from distributed_grid.roles.attaching import AttachedRun
    from distributed_grid.roles.supervision.surveying import connected

    connected()
    return AttachedRun(name)
