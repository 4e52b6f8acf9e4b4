"""More or fewer members of a role, while its run goes on: inside its pool, with a boost if it may have one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from distributed_grid.decide.roles.planner import plan_more
from distributed_grid.model.roles.plan import DoesNotFit
from distributed_grid.roles.asked_counts import scaled_counts
from distributed_grid.roles.keeping.borrowing import Borrowing
from distributed_grid.roles.keeping.leaving import Leaving
from distributed_grid.roles.keeping.parts import RunParts
from distributed_grid.roles.keeping.places import NotHeld
from distributed_grid.roles.keeping.posts import Fault, Post


@dataclass(frozen=True, slots=True)
class Newcomers:
    """Those that came together so that a role would have so many; they stay together, or none of them does."""

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
        """Bring a role to so many members; empty, or why it has fewer for now."""
        self._p.wanted |= scaled_counts(self._p.workload, role, count)
        if count > self._p.crew.count(role):
            return self._grow(role, count)
        if count < self._p.crew.count(role):
            self._shrink(role, count)
        return ""

    def take(self, faults: Sequence[Fault]) -> list[Fault]:
        """Who was to go has ended; newcomers that were never up are sent away, which is no failure of their run.

        The faults of all others are left.
        """
        left = self.leaving.take(faults)
        posts = self._p.crew.posts  # who was dismissed meanwhile may have a successor of the same name
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
        """End those that were to go and are through; then nobody needs what was borrowed for them."""
        self.leaving.look()
        self.borrowing.look()

    def _shrink(self, role: str, count: int) -> None:
        """Those of the highest ranks go."""
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
