"""More or fewer members of a role, while its run goes on: inside its pool, with a boost if it may have one."""

import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace

from distributed_grid.decide.roles.planner import plan_more
from distributed_grid.errors import GridError, NotFound, Refused
from distributed_grid.model.roles.plan import DoesNotFit, RemedyKind
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.roles.asked_counts import scaled_counts
from distributed_grid.roles.keeping.parts import RunParts
from distributed_grid.roles.keeping.places import NotHeld


@dataclass(frozen=True, slots=True)
class Borrowed:
    """A boost that was asked for so that a role could have more members than so many."""

    boost_id: str
    role: str
    above: int
    lasts_s: float
    renew_at: float


class Resizing:
    def __init__(self, parts: RunParts) -> None:
        self._p = parts
        self._borrowed: list[Borrowed] = []

    def towards(self, role: str, count: int) -> str:
        """Bring a role to so many members; empty, or why it has fewer for now."""
        counts = scaled_counts(self._p.workload, role, count)
        there = self._p.crew.count(role)
        self._p.wanted |= counts
        if count < there:
            self._shrink(role, tuple(counts), count)
            return ""
        return self._grow(role, count, there) if count > there else ""

    def borrows_for(self, role: str) -> bool:
        return any(one.role == role and one.above >= self._p.crew.count(role) for one in self._borrowed)

    def give_back_boosts(self) -> None:
        for one in self._borrowed:
            self._return(one)
        self._borrowed = []

    def _shrink(self, role: str, together: tuple[str, ...], count: int) -> None:
        """Those of the highest ranks go."""
        kept = {post.process.index for post in self._p.crew.of_roles([role])[:count]}
        leaving = [post for post in self._p.crew.of_roles(together) if post.process.index not in kept]
        self._p.crew.dismiss(leaving, f"{role} was scaled down to {count}")
        self._p.give_back_empty()
        self._p.note(f"{role} was scaled down to {count}")
        for one in [one for one in self._borrowed if one.role == role and one.above >= count]:
            self._return(one)
            self._borrowed.remove(one)

    def _grow(self, role: str, count: int, there: int) -> str:
        survey = self._p.surveyor.look()
        found = plan_more(self._p.workload, {role: count - there}, survey.inventory, self._p.units())
        if isinstance(found, DoesNotFit):
            return self._borrow(self._p.spec(role), there, found)
        try:
            self._p.man(found, survey)
        except (GridError, NotHeld) as error:
            return str(error)
        self._p.note(f"{role} was scaled up to {count}")
        return ""

    def _borrow(self, spec: RoleSpec, there: int, found: DoesNotFit) -> str:
        """Ask for the boosts that would make room, if it may; they are there when it is tried again."""
        why = found.reasons[0].describe() if found.reasons else found.headline
        client, scaling = self._p.surveyor.client, spec.follows
        wishes = next((one.boosts for one in found.remedies if one.kind is RemedyKind.BOOST), ())
        if client is None or scaling is None or not scaling.boost or not wishes:
            return why
        if self.borrows_for(spec.name):
            return f"{why}; it was given a boost, which is not to be seen yet"
        for wish in wishes:
            asked = {"duration_seconds": scaling.boost_duration_seconds, "label": f"{self._p.name}/{spec.name}"}
            try:
                granted = client.request_boost({**wish.body(), **asked}, idempotency_key=uuid.uuid4().hex)
            except GridError as error:
                return f"{why}; a boost was refused: {error.message}"
            lasts_s = scaling.boost_duration_seconds
            renew_at = time.monotonic() + lasts_s / 3
            self._borrowed.append(Borrowed(granted["boost_id"], spec.name, there, lasts_s, renew_at))
            self._p.note(f"{spec.name} borrows for its next member: {wish.command}")
        return f"{why}; it was given a boost"

    def renew(self) -> None:
        """For as long as they are needed: each at a third of its length."""
        client, now = self._p.surveyor.client, time.monotonic()
        for one in [one for one in self._borrowed if now >= one.renew_at]:
            self._borrowed.remove(one)
            try:
                if client is not None:
                    client.renew_boost(one.boost_id)
            except (NotFound, Refused) as error:
                self._p.note(f"a boost of {one.role} is no longer there: {error.message}")
                continue
            except GridError:
                pass  # the controller is away; the boost lasts a while, and is asked for again
            self._borrowed.append(replace(one, renew_at=now + one.lasts_s / 3))

    def _return(self, one: Borrowed) -> None:
        client = self._p.surveyor.client
        if client is not None:
            with suppress(GridError):
                client.release_boost(one.boost_id)
            self._p.note(f"a boost of {one.role} goes home")
