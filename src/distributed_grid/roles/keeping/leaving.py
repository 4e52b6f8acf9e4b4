"""Members that are to go while their run goes on: they take no new calls, finish those that they have, and end."""

import time
from collections.abc import Iterable, Sequence

from distributed_grid.decide.roles.leaving import FINISH_S, may_end
from distributed_grid.model.roles.plan import Unit
from distributed_grid.roles.calls.ray_transport import unfinished
from distributed_grid.roles.keeping.parts import RunParts
from distributed_grid.roles.keeping.posts import Fault, Post


class Leaving:
    def __init__(self, parts: RunParts) -> None:
        self._p = parts

    def leave(self, posts: Iterable[Post], why: str) -> None:
        """They are no longer counted, listed or told of. Who cannot be called now has nothing to finish."""
        going, now = list(posts), time.monotonic()
        for post in going:
            post.leaving_since, post.why = now, why
            for seat in post.seats:
                self._p.crew.roster.drop(seat.role, seat.rank, why)
        self._end(post for post in going if not post.seated)

    def look(self) -> None:
        """End those that are through; what shares a place ends together."""
        now = time.monotonic()
        for together in self._by_place().values():
            for seat in [seat for post in together for seat in post.seats]:
                seat.forget_finished(unfinished)  # the roster, which has this done for the others, has it no more
            if not all(_may_end(post, now) for post in together):
                continue
            for post in together:
                if calls := _calls(post):
                    self._p.note(f"{post.who} had {calls} calls {FINISH_S:g} s after it was to go, and was ended")
            self._end(together)

    def take(self, faults: Sequence[Fault]) -> list[Fault]:
        """Those that failed while they were about to end have ended; the faults of the others."""
        self._end(fault.post for fault in faults if fault.post.leaving_since is not None)
        return [fault for fault in faults if fault.post.leaving_since is None]

    def recall(self, roles: Sequence[str], count: int) -> None:
        """If there are to be so many again, those stay that had to go for it and have not ended yet."""
        for together in self._by_place().values():
            index = together[0].process.index
            if index < count and {*roles} == {role for post in together for role in post.key}:
                for post in together:
                    post.leaving_since, post.why, post.seated = None, "", False
                    post.seats = self._p.crew.new_seats(post.process)
                self._p.note(f"{'+'.join(roles)} {index} was to go, and stays")

    def _by_place(self) -> dict[Unit, list[Post]]:
        found: dict[Unit, list[Post]] = {}
        for post in self._p.crew.posts.values():
            if post.leaving_since is not None:
                found.setdefault(post.unit, []).append(post)
        return found

    def _end(self, posts: Iterable[Post]) -> None:
        ended = list(posts)
        if ended:
            self._p.crew.dismiss(ended, ended[0].why)
            self._p.give_back_empty()


def _may_end(post: Post, now: float) -> bool:
    assert post.leaving_since is not None
    return may_end(leaving_since=post.leaving_since, counted_at=post.counted_at, calls=_calls(post), now=now)


def _calls(post: Post) -> int:
    """As it told, and those of this process, which may still be on their way."""
    return post.running + post.queue + sum(seat.outstanding for seat in post.seats)
