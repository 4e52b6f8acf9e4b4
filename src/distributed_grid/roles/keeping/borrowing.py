"""Boosts that a role which scales asks for where it lacks room, for as long as it needs them."""

import time
import uuid
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import ray

from distributed_grid.errors import GridError, NotFound, Refused
from distributed_grid.model.roles.plan import DoesNotFit, RemedyKind
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.roles.keeping.parts import RunParts

_TRIES: Final = 10
"""So often room is looked for with a boost that was given: somebody else may have taken what it brought."""


@dataclass(frozen=True, slots=True)
class Borrowed:
    """A boost that was asked for so that a role could have more members than so many."""

    boost_id: str
    role: str
    above: int
    lasts_s: float
    renew_at: float


class Borrowing:
    def __init__(self, parts: RunParts) -> None:
        self._p = parts
        self._borrowed: list[Borrowed] = []
        self._tries: Counter[tuple[str, ...]] = Counter()

    def borrows_for(self, role: str) -> bool:
        """For the next member of it."""
        return any(one.above >= self._p.crew.count(role) for one in self._of(role))

    def ask(self, spec: RoleSpec, there: int, found: DoesNotFit) -> str:
        """Ask for the boosts that would make room, if it may: they are there when it is tried again. Why not now."""
        why = found.reasons[0].describe() if found.reasons else found.headline
        client, scaling = self._p.surveyor.client, spec.follows
        wishes = next((one.boosts for one in found.remedies if one.kind is RemedyKind.BOOST), ())
        group = self._p.together(spec.name)
        if self.borrows_for(spec.name):
            self._tries[group] += 1
            if self._tries[group] < _TRIES:
                return f"{why}; it was given a boost, which is not to be seen yet"
            self._return([one for one in self._of(spec.name) if one.above >= there])
            return f"{why}; it was given a boost, and somebody else has the room"
        if client is None or scaling is None or not scaling.boost or not wishes:
            return why
        granted: list[Borrowed] = []
        for wish in wishes:
            lasts_s = scaling.boost_duration_seconds
            asked = {
                "duration_seconds": lasts_s,
                "label": f"{self._p.name}/{spec.name}",
                "ends_with": ray.get_runtime_context().get_worker_id(),
            }
            try:
                boost = client.request_boost({**wish.body(), **asked}, idempotency_key=uuid.uuid4().hex)
            except GridError as error:
                self._return(granted)  # a part of what it lacks is of no use
                return f"{why}; a boost was refused: {error.message}"
            granted.append(Borrowed(boost["boost_id"], spec.name, there, lasts_s, time.monotonic() + lasts_s / 3))
            self._borrowed.append(granted[-1])
            self._p.note(f"{spec.name} borrows for its next member: {wish.command}")
        self._tries[group] = 0
        return f"{why}; it was given a boost"

    def look(self) -> None:
        """Give back what is for more members than there are to be, and renew the rest."""
        leaving = {role for post in self._p.crew.posts.values() if post.leaving_since is not None for role in post.key}
        self._return(
            [one for one in self._borrowed if one.above >= self._p.wanted[one.role] and one.role not in leaving]
        )
        self._renew()

    def _renew(self) -> None:
        """For as long as they are needed: each at a third of its length."""
        client, now = self._p.surveyor.client, time.monotonic()
        for one in [one for one in self._borrowed if now >= one.renew_at]:
            try:
                if client is not None:
                    client.renew_boost(one.boost_id)
            except (NotFound, Refused) as error:
                self._borrowed.remove(one)
                self._p.note(f"a boost of {one.role} is no longer there: {error.message}")
                continue
            except GridError:
                pass  # the controller is away; the boost lasts a while, and is asked for again
            self._borrowed[self._borrowed.index(one)] = replace(one, renew_at=now + one.lasts_s / 3)

    def give_back_all(self) -> None:
        self._return([*self._borrowed])

    def _of(self, role: str) -> list[Borrowed]:
        """What shares a place with it needs the same room."""
        return [one for one in self._borrowed if one.role in self._p.together(role)]

    def _return(self, boosts: Iterable[Borrowed]) -> None:
        client = self._p.surveyor.client
        for one in boosts:
            self._borrowed.remove(one)
            if client is not None:
                with suppress(GridError):
                    client.release_boost(one.boost_id)
                self._p.note(f"a boost of {one.role} goes home")
