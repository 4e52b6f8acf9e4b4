"""Scales a role while its run continues: inside its pool, and with a boost if allowed.

Members that leave take no new calls, finish the ones they have, and end.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Final

import ray

from distributed_grid.client.lease_keeper import LeaseKeeper
from distributed_grid.decide.roles.planner import plan_more
from distributed_grid.decide.roles.processes import drained
from distributed_grid.decide.roles.scaling import FINISH_S
from distributed_grid.errors import GridError
from distributed_grid.model.roles.plan import DoesNotFit, RemedyKind, Unit
from distributed_grid.model.roles.processes import EndAsked, LeaveAsked, ProcessState, Recalled
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.roles.workload import scaled_counts
from distributed_grid.roles.calls.ray_transport import held_results, unfinished
from distributed_grid.roles.supervision.managed import Fault, ManagedProcess
from distributed_grid.roles.supervision.parts import RunParts
from distributed_grid.roles.supervision.places import NotHeld

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import BoostRequest

_TRIES: Final = 10
"""How often to look for room with a granted boost: another request may have taken what it brought."""


@dataclass(frozen=True, slots=True)
class Borrowed:
    """A boost that lets a role have more than `above` members."""

    boost_id: str
    role: str
    above: int
    keeper: LeaseKeeper


class Borrowing:
    def __init__(self, parts: RunParts) -> None:
        self._p = parts
        self._borrowed: list[Borrowed] = []
        self._tries: Counter[tuple[str, ...]] = Counter()

    def borrows_for(self, role: str) -> bool:
        """Whether a boost is held for the next member of the role."""
        return any(one.above >= self._p.process_set.count(role) for one in self._of(role))

    def ask(self, spec: RoleSpec, there: int, found: DoesNotFit) -> str:
        """Ask for the boosts that would make room, if allowed. They are there at the next try. Returns why not now."""
        why = found.reasons[0].describe() if found.reasons else found.headline
        client, scaling = self._p.surveyor.client, spec.follows
        suggested = next((one.boosts for one in found.remedies if one.kind is RemedyKind.BOOST), ())
        group = self._p.together(spec.name)
        if self.borrows_for(spec.name):
            self._tries[group] += 1
            if self._tries[group] < _TRIES:
                return f"{why}; a boost was granted, but is not visible yet"
            self._return([one for one in self._of(spec.name) if one.above >= there])
            return f"{why}; a boost was granted, but another program took the capacity"
        if client is None or scaling is None or not scaling.boost or not suggested:
            return why
        granted: list[Borrowed] = []
        for boost in suggested:
            lasts_s = scaling.boost_duration_seconds
            wanted: BoostRequest = {
                **boost.body(),
                "duration_seconds": lasts_s,
                "label": f"{self._p.name}/{spec.name}",
                "ends_with": ray.get_runtime_context().get_worker_id(),
            }
            try:
                granted_boost = client.request_boost(wanted, idempotency_key=uuid.uuid4().hex)
            except GridError as error:
                self._return(granted)  # part of what is missing is of no use
                return f"{why}; a boost was refused: {error.message}"
            granted.append(Borrowed(granted_boost["boost_id"], spec.name, there, LeaseKeeper(lasts_s)))
            self._borrowed.append(granted[-1])
            self._p.note(f"{spec.name} borrows for its next member: {boost.command}")
        self._tries[group] = 0
        return f"{why}; a boost was granted"

    def look(self) -> None:
        """Give back boosts for more members than wanted, and renew the rest."""
        leaving = {role for process in self._p.process_set.leaving for role in process.key}
        self._return(
            [one for one in self._borrowed if one.above >= self._p.wanted[one.role] and one.role not in leaving]
        )
        self._renew()

    def _renew(self) -> None:
        """Renew for as long as they are needed."""
        client = self._p.surveyor.client
        if client is None:
            return
        for one in [one for one in self._borrowed if one.keeper.is_due]:
            one.keeper.renew(partial(client.renew_boost, one.boost_id))
            if one.keeper.ended is not None:
                self._borrowed.remove(one)
                self._p.note(f"a boost for {one.role} has ended: {one.keeper.ended.message}")

    def give_back_all(self) -> None:
        self._return([*self._borrowed])

    def _of(self, role: str) -> list[Borrowed]:
        """Roles that share a place need the same room."""
        return [one for one in self._borrowed if one.role in self._p.together(role)]

    def _return(self, boosts: Iterable[Borrowed]) -> None:
        client = self._p.surveyor.client
        for one in boosts:
            self._borrowed.remove(one)
            if client is not None:
                with suppress(GridError):
                    client.release_boost(one.boost_id)
                self._p.note(f"a boost for {one.role} is returned")


Awaited = Callable[[ManagedProcess], int]


class Leaving:
    def __init__(self, parts: RunParts) -> None:
        self._p = parts

    def leave(self, processes: Iterable[ManagedProcess], why: str, *, finish_s: float | None = None) -> None:
        """Stop counting and listing these processes. They have `finish_s` for their calls; None: as usual."""
        leave = LeaveAsked(why, FINISH_S if finish_s is None else finish_s)
        self._p.process_set.send([(process, leave) for process in processes])
        self._p.give_back_empty()

    def look(self) -> None:
        """End the processes that have finished."""
        processes, leaving = self._p.process_set.by_name, self._p.process_set.leaving
        awaited = _awaiting(leaving)
        for endpoint in [endpoint for process in leaving for endpoint in process.endpoints]:
            endpoint.forget_finished(unfinished)  # the registry, which does this for other endpoints, has dropped it

        def calls(name: str) -> Iterator[int]:
            yield _calls(processes[name])
            yield awaited(processes[name])

        for group in drained([process.status for process in leaving], calls, time.monotonic()):
            together = [processes[name] for name in group]
            for process in together:
                if many := _calls(process):
                    given_s = process.status.finish_s
                    self._p.note(f"{process.title} still had {many} calls after {given_s:g} s, and was terminated")
            self._end(together)

    def finishing(self) -> list[str]:
        """The processes that are being removed and still have calls, for people."""
        leaving = self._p.process_set.leaving
        awaited = _awaiting(leaving)
        busy = [process for process in leaving if _calls(process) or awaited(process)]
        return [f"{process.title} on {process.spec.node} finishes its calls" for process in busy]

    def take(self, faults: Sequence[Fault]) -> list[Fault]:
        """Processes that failed while they were being removed have ended. Returns the faults of the others."""
        self._end([fault.process for fault in faults if fault.process.status.is_leaving])
        return [fault for fault in faults if fault.process.status.state is not ProcessState.ENDED]

    def recall(self, roles: Sequence[str], count: int) -> None:
        """Keep the processes that are being removed but are wanted again at this count and have not ended yet."""
        places: dict[Unit, list[ManagedProcess]] = {}
        for process in self._p.process_set.leaving:
            places.setdefault(process.status.unit, []).append(process)
        for together in places.values():
            index = together[0].spec.index
            if index < count and {*roles} == {role for process in together for role in process.key}:
                self._p.process_set.send([(process, Recalled()) for process in together])
                self._p.note(f"{'+'.join(roles)} {index} is no longer being removed")

    def _end(self, processes: Sequence[ManagedProcess]) -> None:
        if processes:
            self._p.process_set.send([(process, EndAsked(process.status.why)) for process in processes])
            self._p.give_back_empty()


def _calls(process: ManagedProcess) -> int:
    """Its reported calls, and those of this process, which may still be on their way."""
    return process.running + process.queue + sum(endpoint.outstanding for endpoint in process.endpoints)


def _awaiting(processes: Sequence[ManagedProcess]) -> Awaited:
    """The calls of this process that have not ended and whose results it can still ask for.

    An actor does not know of calls that wait for their arguments. They are collected on first use.
    """
    ids = {id(process): process.handle._actor_id.hex() for process in processes if process.handle is not None}
    held = cache(lambda: held_results(ids.values()))
    return lambda process: len(
        unfinished([ref for ref in held().get(ids.get(id(process), ""), ()) if ref != process.ping])
    )


@dataclass(frozen=True, slots=True)
class Newcomers:
    """Members that were added together to reach a count. All of them stay, or none does."""

    role: str
    count: int
    processes: tuple[ManagedProcess, ...]


class Resizing:
    def __init__(self, parts: RunParts) -> None:
        self._p = parts
        self._newcomers: list[Newcomers] = []
        self.borrowing = Borrowing(parts)
        self.leaving = Leaving(parts)

    def towards(self, role: str, count: int) -> str:
        """Bring a role to `count` members. Returns why it has fewer for now, or an empty string."""
        self._p.wanted |= scaled_counts(self._p.workload, role, count)
        if count > self._p.process_set.count(role):
            return self._grow(role, count)
        if count < self._p.process_set.count(role):
            self._shrink(role, count)
        return ""

    def take(self, faults: Sequence[Fault]) -> list[Fault]:
        """End failed members that were being removed. Send away newcomers that were never up; the run does not fail.

        Returns all other faults.
        """
        left = self.leaving.take(faults)
        processes = self._p.process_set.by_name  # a dismissed process may have a successor of the same name
        here = [
            replace(one, processes=tuple(p for p in one.processes if processes.get(p.name) is p))
            for one in self._newcomers
        ]
        self._newcomers = [one for one in here if not all(process.status.was_up for process in one.processes)]
        for new in [*self._newcomers]:
            failed = next(
                (fault for fault in left if fault.process in new.processes and not fault.process.status.was_up), None
            )
            if failed is not None:
                self._newcomers.remove(new)
                self._undo_addition(new, failed)
                left = [fault for fault in left if fault.process not in new.processes]
        return left

    def look(self) -> None:
        """End the removed members that have finished. Then what was borrowed for them is no longer needed."""
        self.leaving.look()
        self.borrowing.look()

    def _shrink(self, role: str, count: int) -> None:
        """Remove the members with the highest ranks."""
        kept = {process.spec.index for process in self._p.process_set.of_roles([role])[:count]}
        going = [
            process
            for process in self._p.process_set.of_roles(self._p.together(role))
            if process.spec.index not in kept
        ]
        self._p.note(f"{role} was scaled down to {count}")
        self.leaving.leave(going, f"{role} was scaled down to {count}")

    def _grow(self, role: str, count: int) -> str:
        self.leaving.recall(self._p.together(role), count)
        there = self._p.process_set.count(role)
        if there < count:
            survey = self._p.surveyor.look()
            found = plan_more(self._p.workload, {role: count - there}, survey.inventory, self._p.units())
            if isinstance(found, DoesNotFit):
                return self.borrowing.ask(self._p.spec(role), there, found)
            try:
                new = self._p.occupy(found, survey)
            except NotHeld as refused:
                return str(refused)
            self._newcomers.append(Newcomers(role, count, tuple(new)))
        self._p.note(f"{role} was scaled up to {count}")
        return ""

    def _undo_addition(self, new: Newcomers, failed: Fault) -> None:
        why = f"{failed.process.title} {failed.what} on {failed.process.spec.node}: {failed.why}"
        self.leaving.leave(new.processes, f"{why}, and this member was added together with it")
        there = self._p.process_set.count(new.role)
        self._p.note(f"{new.role} could not grow to {new.count} members and is back at {there}: {why}")
        for role in self._p.together(new.role):
            self._p.wanted[role] = there
            self._p.short[role] = "\n".join(filter(None, (why, failed.remote_traceback.strip())))
            self._p.failed_additions[role] += 1
