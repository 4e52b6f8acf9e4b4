"""Handles failed processes of a run as `decide.roles.failures` judges, in the same place or in another."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from distributed_grid.decide.roles.failures import judge_failures, restart_at
from distributed_grid.decide.roles.planner import plan_more
from distributed_grid.errors import GridError, said_by
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.roles.plan import DoesNotFit
from distributed_grid.model.roles.runs import Act, Failure, Verdict
from distributed_grid.roles.supervision.managed import Fault, Post, PostState
from distributed_grid.roles.supervision.parts import RunParts
from distributed_grid.roles.supervision.places import NotHeld
from distributed_grid.roles.supervision.surveying import Survey

_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Anew:
    """Processes that restart together, once each of them has a place."""

    posts: tuple[Post, ...]
    is_gang: bool
    not_before: float


class Mending:
    def __init__(self, parts: RunParts) -> None:
        self._p = parts
        self._waiting: list[Anew] = []
        self._looked_at = 0.0

    def mend(self, faults: Sequence[Fault]) -> str:
        """Handle each fault. Returns why the run cannot continue, or an empty string."""
        failed = {fault.post.name: fault for fault in faults}
        self._p.failures.update(role for fault in failed.values() for role in fault.post.key)
        verdicts = judge_failures((self._failure(fault, failed) for fault in failed.values()), self._p.workload)
        for verdict in verdicts:
            self._p.note(verdict.reason)
            if verdict.act is Act.END:
                return verdict.reason
        for verdict in verdicts:
            self._carry_out(verdict, failed)
        self._p.give_back_empty()
        self.house(at_once=True)
        return ""

    def house(self, *, at_once: bool = False) -> None:
        """Start the processes that have places. From time to time, look for places for the others."""
        now = time.monotonic()
        waiting = [anew for anew in self._waiting if now >= anew.not_before]
        if not waiting or not (at_once or now - self._looked_at > _LOOK_S):
            return
        self._looked_at = now
        survey = self._p.surveyor.look()
        for anew in waiting:
            # A process that was scaled away or given up meanwhile is skipped.
            posts = [post for post in anew.posts if self._p.crew.posts.get(post.name) is post]
            for post in posts:
                if not self._has_place(post, survey):
                    survey = self._move(post, survey)
            if all(self._has_place(post, survey) for post in posts) and self._start(posts, anew):
                self._waiting.remove(anew)

    def _start(self, posts: Sequence[Post], anew: Anew) -> bool:
        """Whether Ray accepted them. If not, they wait for the next look."""
        try:
            self._p.crew.start(posts, ports_anew=anew.is_gang)
        except Exception as error:  # noqa: BLE001 (Ray is away for a moment, or the error says why in the record)
            for post in posts:
                self._p.crew.stop(post, PostState.RESTARTING, f"it could not be started: {said_by(error)}")
            return False
        return True

    def _failure(self, fault: Fault, failed: Iterable[str]) -> Failure:
        post = fault.post
        mates = self._p.crew.of_roles(post.key)
        left = [mate for mate in mates if mate.name not in failed and mate.state is not PostState.GONE]
        return Failure(
            role=post.key[0],
            index=post.process.index,
            restarts=post.restarts,
            failures={role: self._p.failures[role] for role in post.key},
            left=len(left),
            node=post.process.node,
            what=fault.what,
            why=fault.why,
        )

    def _carry_out(self, verdict: Verdict, failed: dict[str, Fault]) -> None:
        crew = self._p.crew
        concerned = crew.of_roles(verdict.roles)
        if verdict.act is Act.RESTART_GANG:
            self._restart(concerned, in_gang=True)
            return
        mine = [post for post in concerned if post.process.index == verdict.index and post.name in failed]
        if verdict.act is Act.RESTART:
            self._restart(mine, in_gang=False)
            return
        crew.dismiss(mine, verdict.reason)
        for role in verdict.roles:
            self._p.wanted[role] = crew.count(role)

    def _restart(self, posts: Sequence[Post], *, in_gang: bool) -> None:
        crew = self._p.crew
        gang = frozenset(post.name for post in posts) if in_gang else None
        for post in posts:  # all of them first: while some of a gang end, none may still be called
            for seat in post.seats:
                seat.left("it starts anew")
        now = time.monotonic()
        not_before = max((restart_at(post.restarts + 1, began=post.since, now=now) for post in posts), default=now)
        why = f"it starts anew{f' after {not_before - now:g} s' if not_before > now else ''}"
        for post in posts:
            crew.stop(post, PostState.RESTARTING, why)
            post.restarts += 1
            post.gang = gang
        # A gang that is already waiting to restart does so together with the processes that failed now.
        again = {post.name for post in posts}
        self._waiting = [one for one in self._waiting if not again & {post.name for post in one.posts}]
        self._waiting.append(Anew(tuple(posts), in_gang, not_before))

    def _has_place(self, post: Post, survey: Survey) -> bool:
        """A place that is being reclaimed does not count for a restart."""
        places, held = self._p.places, post.held
        is_there = held.node_id in survey.ids.values() and places.lost(held, ask=True) is None
        return is_there and places.asked(held) is None

    def _move(self, post: Post, survey: Survey) -> Survey:
        """Move its unit, with all processes in it, to another place if there is one. Returns what is then free."""
        crew, workload = self._p.crew, self._p.workload
        others = [unit for unit in self._p.units() if unit != post.unit]
        found = plan_more(workload, {post.key[0]: 1}, survey.inventory, others)
        if isinstance(found, DoesNotFit):
            post.why = f"it waits for another node: {found.reasons[0].detail if found.reasons else found.headline}"
            return survey
        (unit,) = found.units
        unit = replace(unit, members=tuple(replace(m, index=post.process.index) for m in unit.members))
        try:
            held = self._p.hold([unit], survey)
        except (GridError, NotHeld) as error:
            post.why = f"it waits for another node: {error}"
            return survey
        mates = [one for one in crew.posts.values() if one.unit == post.unit]
        for one in mates:
            one.unit, one.held = unit, held[0]
            one.process = replace(one.process, node=unit.node)
            for seat in one.seats:
                seat.node = unit.node
        self._p.note(f"{post.name.partition('/')[2]} moves to {unit.node}")
        self._p.give_back_empty()
        return replace(survey, inventory=survey.inventory.with_more({unit.node: ResourceVector() - unit.resources}))
