"""Scales a role while its run continues: inside its pool, and with a boost if allowed.

Members that leave take no new calls, finish the ones they have, and end.
"""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import ray

from distributed_grid.decide.roles.planner import plan_more
from distributed_grid.decide.roles.scaling import FINISH_S, may_end
from distributed_grid.errors import GridError, NotFound, Refused
from distributed_grid.model.roles.plan import DoesNotFit, RemedyKind, Unit
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.roles.asked_counts import scaled_counts
from distributed_grid.roles.calls.ray_transport import held_results, unfinished
from distributed_grid.roles.supervision.managed import Fault, Post
from distributed_grid.roles.supervision.parts import RunParts
from distributed_grid.roles.supervision.places import NotHeld

_TRIES: Final = 10
"""How often to look for room with a granted boost: another request may have taken what it brought."""


@dataclass(frozen=True, slots=True)
class Borrowed:
    """A boost that lets a role have more than `above` members."""

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
        """Whether a boost is held for the next member of the role."""
        return any(one.above >= self._p.crew.count(role) for one in self._of(role))

    def ask(self, spec: RoleSpec, there: int, found: DoesNotFit) -> str:
        """Ask for the boosts that would make room, if allowed. They are there at the next try. Returns why not now."""
        why = found.reasons[0].describe() if found.reasons else found.headline
        client, scaling = self._p.surveyor.client, spec.follows
        wishes = next((one.boosts for one in found.remedies if one.kind is RemedyKind.BOOST), ())
        group = self._p.together(spec.name)
        if self.borrows_for(spec.name):
            self._tries[group] += 1
            if self._tries[group] < _TRIES:
                return f"{why}; it was given a boost, which is not to be seen yet"
            self._return([one for one in self._of(spec.name) if one.above >= there])
            return f"{why}; it was given a boost, and another program took the room"
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
                self._return(granted)  # part of what is missing is of no use
                return f"{why}; a boost was refused: {error.message}"
            granted.append(Borrowed(boost["boost_id"], spec.name, there, lasts_s, time.monotonic() + lasts_s / 3))
            self._borrowed.append(granted[-1])
            self._p.note(f"{spec.name} borrows for its next member: {wish.command}")
        self._tries[group] = 0
        return f"{why}; it was given a boost"

    def look(self) -> None:
        """Give back boosts for more members than wanted, and renew the rest."""
        leaving = {role for post in self._p.crew.posts.values() if post.leaving_since is not None for role in post.key}
        self._return(
            [one for one in self._borrowed if one.above >= self._p.wanted[one.role] and one.role not in leaving]
        )
        self._renew()

    def _renew(self) -> None:
        """Renew for as long as they are needed, each at a third of its length."""
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
                pass  # the controller is away; the boost lasts a while, and the renewal is repeated
            self._borrowed[self._borrowed.index(one)] = replace(one, renew_at=now + one.lasts_s / 3)

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
                self._p.note(f"a boost of {one.role} goes home")


Awaited = Callable[[Post], int]


class Leaving:
    def __init__(self, parts: RunParts) -> None:
        self._p = parts

    def leave(self, posts: Iterable[Post], why: str, *, finish_s: float | None = None) -> None:
        """Stop counting, listing and announcing these processes. They have `finish_s` for their calls; None: as usual.

        A process that cannot be called now has nothing to finish.
        """
        going, now = list(posts), time.monotonic()
        for post in going:
            post.leaving_since, post.why = now, why
            post.finish_s = FINISH_S if finish_s is None else finish_s
            for seat in post.seats:
                self._p.crew.roster.drop(seat.role, seat.rank, why)
        self._end(post for post in going if not post.seated)

    def look(self) -> None:
        """End the processes that have finished. Processes that share a place end together."""
        now, awaited = time.monotonic(), _awaiting(self._leaving)
        for together in self._by_place().values():
            for seat in [seat for post in together for seat in post.seats]:
                seat.forget_finished(unfinished)  # they are no longer on the roster, which does this for other seats
            if not all(_may_end(post, now, awaited) for post in together):
                continue
            for post in together:
                if calls := _calls(post):
                    self._p.note(f"{post.who} had {calls} calls {post.finish_s:g} s after it was to go, and was ended")
            self._end(together)

    def finishing(self) -> list[str]:
        """The processes that are being removed and still have calls, for people."""
        leaving = self._leaving
        awaited = _awaiting(leaving)
        busy = [post for post in leaving if _calls(post) or awaited(post)]
        return [f"{post.who} on {post.process.node} finishes its calls" for post in busy]

    def take(self, faults: Sequence[Fault]) -> list[Fault]:
        """Processes that failed while they were being removed have ended. Returns the faults of the others."""
        self._end(fault.post for fault in faults if fault.post.leaving_since is not None)
        return [fault for fault in faults if fault.post.leaving_since is None]

    def recall(self, roles: Sequence[str], count: int) -> None:
        """Keep the processes that are being removed but are wanted again at this count and have not ended yet."""
        for together in self._by_place().values():
            index = together[0].process.index
            if index < count and {*roles} == {role for post in together for role in post.key}:
                for post in together:
                    post.leaving_since, post.why, post.seated = None, "", False
                    post.seats = self._p.crew.new_seats(post.process)
                self._p.note(f"{'+'.join(roles)} {index} was to go, and stays")

    def _by_place(self) -> dict[Unit, list[Post]]:
        found: dict[Unit, list[Post]] = {}
        for post in self._leaving:
            found.setdefault(post.unit, []).append(post)
        return found

    @property
    def _leaving(self) -> list[Post]:
        return [post for post in self._p.crew.posts.values() if post.leaving_since is not None]

    def _end(self, posts: Iterable[Post]) -> None:
        ended = list(posts)
        if ended:
            self._p.crew.dismiss(ended, ended[0].why)
            self._p.give_back_empty()


def _may_end(post: Post, now: float, awaited: Awaited) -> bool:
    assert post.leaving_since is not None
    given = {"leaving_since": post.leaving_since, "counted_at": post.counted_at, "now": now, "finish_s": post.finish_s}
    return may_end(calls=_calls(post), **given) and may_end(calls=awaited(post), **given)


def _calls(post: Post) -> int:
    """Its reported calls, and those of this process, which may still be on their way."""
    return post.running + post.queue + sum(seat.outstanding for seat in post.seats)


def _awaiting(posts: Sequence[Post]) -> Awaited:
    """The calls of this process that have not ended and whose results it can still ask for.

    An actor does not know of calls that wait for their arguments. They are collected on first use.
    """
    ids = {id(post): post.handle._actor_id.hex() for post in posts if post.handle is not None}
    held = cache(lambda: held_results(ids.values()))
    return lambda post: len(unfinished([ref for ref in held().get(ids.get(id(post), ""), ()) if ref != post.ping]))


@dataclass(frozen=True, slots=True)
class Newcomers:
    """Members that were added together to reach a count. All of them stay, or none does."""

    role: str
    count: int
    posts: tuple[Post, ...]


class Resizing:
    def __init__(self, parts: RunParts) -> None:
        self._p = parts
        self._newcomers: list[Newcomers] = []
        self.borrowing = Borrowing(parts)
        self.leaving = Leaving(parts)

    def towards(self, role: str, count: int) -> str:
        """Bring a role to `count` members. Returns why it has fewer for now, or an empty string."""
        self._p.wanted |= scaled_counts(self._p.workload, role, count)
        if count > self._p.crew.count(role):
            return self._grow(role, count)
        if count < self._p.crew.count(role):
            self._shrink(role, count)
        return ""

    def take(self, faults: Sequence[Fault]) -> list[Fault]:
        """End failed members that were being removed. Send away newcomers that were never up; the run does not fail.

        Returns all other faults.
        """
        left = self.leaving.take(faults)
        posts = self._p.crew.posts  # a dismissed process may have a successor of the same name
        here = [replace(one, posts=tuple(p for p in one.posts if posts.get(p.name) is p)) for one in self._newcomers]
        self._newcomers = [one for one in here if not all(post.was_up for post in one.posts)]
        for new in [*self._newcomers]:
            failed = next((fault for fault in left if fault.post in new.posts and not fault.post.was_up), None)
            if failed is not None:
                self._newcomers.remove(new)
                self._send_away(new, failed)
                left = [fault for fault in left if fault.post not in new.posts]
        return left

    def look(self) -> None:
        """End the removed members that have finished. Then what was borrowed for them is no longer needed."""
        self.leaving.look()
        self.borrowing.look()

    def _shrink(self, role: str, count: int) -> None:
        """Remove the members with the highest ranks."""
        kept = {post.process.index for post in self._p.crew.of_roles([role])[:count]}
        going = [post for post in self._p.crew.of_roles(self._p.together(role)) if post.process.index not in kept]
        self._p.note(f"{role} was scaled down to {count}")
        self.leaving.leave(going, f"{role} was scaled down to {count}")

    def _grow(self, role: str, count: int) -> str:
        self.leaving.recall(self._p.together(role), count)
        there = self._p.crew.count(role)
        if there < count:
            survey = self._p.surveyor.look()
            found = plan_more(self._p.workload, {role: count - there}, survey.inventory, self._p.units())
            if isinstance(found, DoesNotFit):
                return self.borrowing.ask(self._p.spec(role), there, found)
            try:
                new = self._p.man(found, survey)
            except NotHeld as refused:
                return str(refused)
            self._newcomers.append(Newcomers(role, count, tuple(new)))
        self._p.note(f"{role} was scaled up to {count}")
        return ""

    def _send_away(self, new: Newcomers, failed: Fault) -> None:
        why = f"{failed.post.who} {failed.what} on {failed.post.process.node}: {failed.why}"
        self.leaving.leave(new.posts, f"{why}, and it came with that")
        there = self._p.crew.count(new.role)
        self._p.note(f"{new.role} does not get {new.count} members, and has {there} again: {why}")
        for role in self._p.together(new.role):
            self._p.wanted[role] = there
            self._p.short[role] = "\n".join(filter(None, (why, failed.remote_traceback.strip())))
            self._p.sent_away[role] += 1
