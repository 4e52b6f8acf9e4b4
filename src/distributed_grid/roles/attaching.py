"""A run of another process: its members can be called from here, and its owner receives requests."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import ray

from distributed_grid.errors import CannotScale, RoleNotFound, RoleRunNotFound, RoleRunOver, Unavailable
from distributed_grid.execution.role_records import NAMESPACE, RoleRecords
from distributed_grid.loops import ThreadLoop
from distributed_grid.model.roles.runs import LEAVING, Record, RunState, is_over
from distributed_grid.model.roles.workload import text_of_role
from distributed_grid.roles.calls.endpoints import Endpoint, EndpointRegistry
from distributed_grid.roles.calls.groups import CallOptions, RoleGroup
from distributed_grid.roles.calls.ray_transport import RayTransport
from distributed_grid.roles.ending import RAY_EXIT
from distributed_grid.roles.known_runs import KnownRuns
from distributed_grid.roles.supervision.surveying import controller_here

if TYPE_CHECKING:
    from distributed_grid.wire.roles import MemberOfRun

_FOLLOW_S: Final = 0.5
_POLL_S: Final = 0.1
_NO_ANSWER: Final = (Unavailable, ray.exceptions.RayError)
"""Ray's control service is away or slow. It is asked again soon."""

T = TypeVar("T")


class AttachedRun:
    """Made by `attach`. It follows the run's record, so it knows members that restart, join or leave.

    Leaving its `with` block, or `detach`, ends nothing.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._runs = KnownRuns(RoleRecords.connected(), controller_here)
        self._registry = EndpointRegistry(name)
        self._loop = ThreadLoop(f"grid-roles-{name}-attached", self._follow, lambda: _FOLLOW_S, waits_first=True)
        self._transport = RayTransport(lambda _: self._loop.wake())
        self._changing = threading.Lock()
        """Also held while the record is read. Otherwise an older reading could overwrite a newer one."""
        self._is_detached = False
        self._seen: dict[tuple[str, int], tuple[str, int, int | None]] = {}
        """By role and rank: the actor, its life and its process."""
        self._record = self._runs.one(name)
        if self.state in (RunState.ENDED, RunState.FAILED):  # a lost run can still be shut down from here
            raise RoleRunOver(f"The run {name} is over: {self._record['why'] or self._record['state']}")
        self._take(self._record)
        self._loop.start()
        RAY_EXIT.add(self, self._leave_ray)

    # -- use -----------------------------------------------------------------------------------------------------

    @property
    def roles(self) -> tuple[str, ...]:
        return self._registry.roles

    @property
    def state(self) -> RunState:
        return RunState(self._record["state"])

    @property
    def why(self) -> str:
        return str(self._record["why"])

    def __getitem__(self, role: str | Enum) -> RoleGroup[Any]:
        name = text_of_role(role)
        found = next((one for one in self._record["roles"] if one["role"] == name), None)
        if found is None:
            raise RoleNotFound(f"{self.name} has no role {name!r}", try_next=f"It has {', '.join(self.roles)}.")
        return RoleGroup(self._registry, self._transport, name, CallOptions(found["call_deadline_seconds"]))

    def group(self, role: str | Enum, cls: type[T]) -> RoleGroup[T]:
        """The same group with its class stated: `run.group("trainer", Trainer)`."""
        return self[role]

    def endpoints(self, role: str) -> tuple[Endpoint, ...]:
        """The endpoints of a role's members in rank order, for interfaces other than its groups."""
        return self._registry.endpoints(role)

    def status(self) -> Record:
        """The record, read anew. Endpoints are updated from it."""
        with self._changing:
            try:
                record = self._runs.one(self.name)
            except RoleRunNotFound:
                self._registry.close(f"the run {self.name} is over")
                raise
            self._record = record
            if is_over(record):
                self._registry.close(f"the run {self.name} is over: {record['why']}")
            elif not self._is_detached:
                self._take(record)
        return record

    def scale(self, role: str | Enum, count: int, wait_s: float | None = 60.0) -> None:
        """Ask the run's owner for `count` members of a role, and wait until they are up. None or 0: do not wait."""
        name = text_of_role(role)
        self._runs.scale(self.name, name, count)
        until = time.monotonic() + (wait_s or 0.0)
        while wait_s and not self._registry.is_at(name, count):
            if time.monotonic() > until:
                raise CannotScale(
                    f"{name} does not have {count} members after {wait_s:g} s", because=self._last_events()
                )
            time.sleep(_POLL_S)
            with suppress(*_NO_ANSWER):
                self.status()

    def shutdown(self, wait_s: float | None = 120.0) -> None:
        """Ask the run's owner to end it, and wait until it has ended. Raises if it has not after `wait_s`.

        If the owner is gone, this process cleans up the run. A run that has ended is asked for nothing.
        """
        if not self._is_detached:
            self._runs.end(self.name, wait_s)
        self.detach()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the run has ended. False: it has not within `timeout_s`."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._is_over():
            if until is not None and time.monotonic() >= until:
                return False
            time.sleep(_POLL_S)
        return True

    def detach(self) -> None:
        self._is_detached = True
        self._loop.end()
        self._registry.close(f"this process is no longer attached to {self.name}")
        RAY_EXIT.drop(self)

    def _leave_ray(self) -> None:
        self.detach()
        self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    # -- following -----------------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        try:
            return is_over(self.status())
        except RoleRunNotFound:
            return True
        except _NO_ANSWER:
            return False

    def _last_events(self) -> list[str]:
        return [event["message"] for event in self._record["events"][-3:]]

    def _follow(self) -> None:
        if self._is_over():
            self._loop.end()
        else:
            self._registry.forget_finished(self._transport.unfinished)

    def _take(self, record: Record) -> None:
        """Update the endpoints from the record."""
        for one in record["roles"]:
            self._registry.add_role(one["role"])
        there = {(member["role"], member["rank"]): member for member in record["members"] if member["state"] != LEAVING}
        for key, member in there.items():
            self._endpoint(key, member)
        for role, rank in [key for key in self._seen if key not in there]:
            del self._seen[role, rank]
            self._registry.drop(role, rank, "it is gone")

    def _endpoint(self, key: tuple[str, int], member: MemberOfRun) -> None:
        life = (member["actor"], member["restarts"], member["pid"])
        endpoint = self._registry.endpoint(*key)
        if endpoint is None or endpoint.retired:
            endpoint = Endpoint(*key, node=member["node"], methods=member["methods"], concurrency=member["concurrency"])
            self._registry.put(endpoint)
        endpoint.busy = member["queue"] + member["running"]
        if member["state"] not in ("up", "silent"):
            self._seen.pop(key, None)
            endpoint.disconnect(member["why"] or f"it is {member['state']}")
        elif self._seen.get(key) != life:
            try:
                actor = ray.get_actor(member["actor"], namespace=NAMESPACE)
            except ValueError:
                return  # the member has just died; the run's owner will report it
            self._seen[key] = life
            endpoint.connect(actor, node=member["node"])
