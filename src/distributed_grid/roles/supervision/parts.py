"""The state that the parts of a run share: its current plan, its processes and its holdings."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from distributed_grid.decide.roles.processes import unneeded
from distributed_grid.decide.roles.units import holdings
from distributed_grid.model.roles.plan import Placement, Unit
from distributed_grid.model.roles.processes import Held
from distributed_grid.model.roles.runs import LEGAL, RunState
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.roles.workload import Workload
from distributed_grid.roles.record import Events
from distributed_grid.roles.supervision.managed import Fault, ManagedProcess, ProcessSet
from distributed_grid.roles.supervision.places import Places
from distributed_grid.roles.supervision.surveying import Survey, Surveyor

TAKE_S: Final = 3.0
"""How long to wait for places that were seen to be free."""


@dataclass(slots=True)
class RunParts:
    """Changed by one thread: the launcher's, then the supervisor's."""

    name: str
    workload: Workload
    process_set: ProcessSet
    places: Places
    surveyor: Surveyor
    began: float = field(default_factory=time.time)
    state: RunState = RunState.STARTING
    why: str = ""
    progress: str = ""
    held: list[Held] = field(default_factory=list)
    wanted: dict[str, int] = field(default_factory=dict)
    """The wanted number of members of each role."""
    failures: Counter[str] = field(default_factory=Counter)
    events: Events = field(default_factory=Events)
    scaling: dict[str, str] = field(default_factory=dict)
    """The last state of each scaling role, in words."""
    short: dict[str, str] = field(default_factory=dict)
    """Why a role has, or had, fewer members than wanted."""
    failed_additions: Counter[str] = field(default_factory=Counter)
    """By role: how often added members did not start."""

    def become(self, state: RunState, why: str) -> None:
        """The only way in which the run's state changes."""
        assert state is self.state or state in LEGAL[self.state], (self.state, state)
        self.state, self.why = state, why

    def spec(self, role: str) -> RoleSpec:
        found = self.workload.role(role)
        assert found is not None
        return found

    def together(self, role: str) -> tuple[str, ...]:
        """The role and the roles that share its place: they have equally many members."""
        groups = (tuple(spec.name for spec in group) for group in self.workload.together)
        return next(names for names in groups if role in names)

    def note(self, message: str) -> None:
        self.events.note(message)

    def late(self) -> list[Fault]:
        """The processes that should be up by now."""
        now = time.monotonic()
        found = []
        for process in self.process_set.coming:
            allowed = min(self.spec(role).startup_deadline_seconds for role in process.key)
            if now - process.status.started_at > allowed:
                found.append(Fault(process, f"it was not up after {allowed:g} s", what="did not start"))
        return found

    def units(self) -> list[Unit]:
        """All current units, each once, even if several processes are in it."""
        return list(dict.fromkeys(process.status.unit for process in self.process_set.by_name.values()))

    def occupy(self, placement: Placement, survey: Survey) -> list[ManagedProcess]:
        """Take the places of a plan, all or none, and start its processes there."""
        held = self.hold(placement.units, survey)
        try:
            return self.process_set.add(held)
        except BaseException:
            self.give_back_empty()
            raise

    def hold(self, units: Iterable[Unit], survey: Survey) -> list[Held]:
        held = self.places.take(holdings(units, self.workload), survey.ids, TAKE_S)
        self.held += held
        return held

    def give_back_empty(self) -> None:
        """Release what no process needs any more."""
        empty = unneeded(self.held, self.process_set.statuses.values())
        self.places.give_back(empty)
        self.held = [one for one in self.held if all(one is not other for other in empty)]
