"""A workload in this process, without Ray: for tests, for debuggers, and for what fits into one process."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from distributed_grid.client import user_name
from distributed_grid.errors import Refused
from distributed_grid.loops import ThreadLoop
from distributed_grid.model.roles.runs import LEGAL, RunState
from distributed_grid.model.roles.workload import Workload, scaled_counts, spec_named, text_of_role
from distributed_grid.model.times import instant
from distributed_grid.roles.calls.groups import CallOptions, RoleGroup
from distributed_grid.roles.local.members import LocalProcessSet
from distributed_grid.roles.record import Events, member_row, role_row
from distributed_grid.roles.supervision.signals import Counted, Followed, Following, SignalReader

if TYPE_CHECKING:
    from distributed_grid.wire.roles import RunRecord

_TICK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class LocalParts:
    """See `Followed`."""

    workload: Workload
    process_set: Counted
    note: Callable[[str], None]
    wanted: dict[str, int] = field(default_factory=dict)
    """Always empty: a requested member is there at once, or never."""
    scaling: dict[str, str] = field(default_factory=dict)


class LocalFollowing:
    """Starts where a role follows a signal. Its thread does not keep the process alive."""

    def __init__(
        self, followed: Followed, group: Callable[[str], RoleGroup[Any]], scale: Callable[[str, int], None]
    ) -> None:
        self._followed, self._scale = followed, scale
        self._following = Following(followed, SignalReader(followed, group).read)
        self._loop = ThreadLoop("grid-roles-signals", self._serve, lambda: _TICK_S, waits_first=True)
        if any(role.scaling is not None for role in followed.workload.roles):
            self._loop.start()

    def close(self) -> None:
        self._loop.end()

    def _serve(self) -> None:
        for role, count in self._following.wanted():
            self._towards(role, count)

    def _towards(self, role: str, count: int) -> None:
        """Members that do not come up change nothing: the signal is read again after a pause."""
        try:
            self._scale(role, count)
        except Exception as error:  # noqa: BLE001 (constructors raise anything, and the run continues)
            if not self._loop.is_stopping:
                self._followed.note(f"{role} does not have {count} members: {error}")


T = TypeVar("T")


class LocalRun:
    """The same as a run on Ray: one instance per role and rank, groups, deadlines, errors, siblings, scaling, record.

    The run is up once it is constructed. Roles start with their least count and follow their signals. Members get
    copies of configs and arguments and return copies of results, as processes would. One process has one environment,
    so there are no rank variables, and the variables of a spec are not set: a member knows its rank by `peers.me`.
    Resources, pools and nodes are ignored: nothing is limited.
    """

    def __init__(self, workload: Workload, name: str | None = None) -> None:
        self.workload, self.name = workload, name or workload.name
        self._state, self._why = RunState.STARTING, ""
        self._ending = threading.Lock()
        self._began = self._updated = datetime.now(UTC)
        self._events = Events()
        self._resizing = threading.Lock()
        self._over = threading.Event()
        self._process_set = LocalProcessSet(workload, self.name)
        try:
            self._process_set.introduce(
                self._process_set.grow({spec.name: spec.least for spec in workload.roles}), self._note
            )
        except BaseException:
            self._process_set.close("the run did not start")
            raise
        self._become(RunState.RUNNING)
        self._note(f"{len(self._process_set.registry.all_endpoints())} members are up")
        parts = LocalParts(workload, self._process_set, self._note)
        self._scaling, self._following = parts.scaling, LocalFollowing(parts, self.__getitem__, self.scale)

    @property
    def roles(self) -> tuple[str, ...]:
        return self._process_set.registry.roles

    def __getitem__(self, role: str | Enum) -> RoleGroup[Any]:
        spec = spec_named(self.workload, role)
        return RoleGroup(
            self._process_set.registry,
            self._process_set.transport,
            spec.name,
            CallOptions(deadline_s=spec.call_deadline_seconds),
        )

    def group(self, role: str | Enum, cls: type[T]) -> RoleGroup[T]:
        """The same group with its class stated: `run.group("trainer", Trainer)`."""
        return self[role]

    @property
    def state(self) -> RunState:
        return self._state

    @property
    def why(self) -> str:
        return self._why

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the run has ended. False: it has not within `timeout_s`."""
        return self._over.wait(timeout_s)

    def scale(self, role: str | Enum, count: int, wait_s: float | None = None) -> None:
        """Wait until new members are up. Surplus members leave, highest ranks first, after the calls they have.

        New members all come up, or none does. Then all members learn of their peers.
        """
        sizes = scaled_counts(self.workload, role, count)
        with self._resizing:
            if self._process_set.registry.closed:
                raise Refused(f"The run {self.name} is over", because=[self._process_set.registry.closed])
            there = max(map(self._process_set.count, sizes))
            self._process_set.shrink(sizes)
            self._process_set.introduce(self._process_set.grow(sizes), self._note)
            if count != there:
                self._note(f"{text_of_role(role)} was scaled {'up' if count > there else 'down'} to {count}")

    def shutdown(self) -> None:
        """End the run; calls under way are lost. A second call does nothing."""
        self._following.close()
        why = "it was shut down"
        with self._ending:
            if self._state is not RunState.RUNNING:
                return
            self._become(RunState.STOPPING, why)
        self._process_set.close(f"the run {self.name} was shut down")
        self._become(RunState.ENDED, why)
        self._note(why)
        self._over.set()

    def __enter__(self) -> LocalRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.shutdown()

    def status(self) -> RunRecord:
        """The record, in the same form as on Ray."""
        endpoints = {role: self._process_set.registry.endpoints(role) for role in self.roles}
        counts = {role: len(found) for role, found in endpoints.items()}
        return {
            "name": self.name,
            "workload": self.workload.name,
            "state": self._state,
            "why": self._why,
            "progress": "",
            "owner": {
                "node": platform.node(),
                "pid": os.getpid(),
                "job_id": "",
                "worker_id": "",
                "user": user_name(),
                "team": "",
            },
            "began_at": instant(self._began),
            "updated_at": instant(self._updated),
            "roles": [
                role_row(one, wanted=counts[one.name], up=counts[one.name], scaling=self._scaling.get(one.name, ""))
                for one in self.workload.roles
            ],
            "members": [
                member_row(
                    endpoint, "up", self._process_set.actor(endpoint), queue=queue, running=running, pid=os.getpid()
                )
                for found in endpoints.values()
                for endpoint in found
                for queue, running in [self._process_set.load(endpoint)]
            ],
            "holdings": [],
            "events": self._events.rows(),
        }

    def _become(self, state: RunState, why: str = "") -> None:
        """The only way in which the run's state changes."""
        assert state in LEGAL[self._state], (self._state, state)
        self._state, self._why = state, why

    def _note(self, message: str) -> None:
        self._updated = self._events.note(message)
