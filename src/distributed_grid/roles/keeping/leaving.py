"""Members that are to go while their run goes on: they take no new calls, finish those that they have, and end."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from distributed_grid.decide.roles.leaving import FINISH_S, may_end
from distributed_grid.model.roles.plan import Unit
from distributed_grid.roles.calls.ray_transport import held_results, unfinished
from distributed_grid.roles.keeping.parts import RunParts
from distributed_grid.roles.keeping.posts import Fault, Post

Awaited = Callable[[Post], int]


class Leaving:
    def __init__(self, parts: RunParts) -> None:
        self._p = parts

    def leave(self, posts: Iterable[Post], why: str, *, finish_s: float | None = None) -> None:
        """They are no longer counted, listed or told of, and may take `finish_s` for their calls; None: as usual.

        Those that cannot be called now have nothing to finish.
        """
        going, now = list(posts), time.monotonic()
        for post in going:
            post.leaving_since, post.why = now, why
            post.finish_s = FINISH_S if finish_s is None else finish_s
            for seat in post.seats:
                self._p.crew.roster.drop(seat.role, seat.rank, why)
        self._end(post for post in going if not post.seated)

    def look(self) -> None:
        """End those that are through; what shares a place ends together."""
        now, awaited = time.monotonic(), _awaiting(self._leaving)
        for together in self._by_place().values():
            for seat in [seat for post in together for seat in post.seats]:
                seat.forget_finished(unfinished)  # the roster, which has this done for the others, has it no more
            if not all(_may_end(post, now, awaited) for post in together):
                continue
            for post in together:
                if calls := _calls(post):
                    self._p.note(f"{post.who} had {calls} calls {post.finish_s:g} s after it was to go, and was ended")
            self._end(together)

    def finishing(self) -> list[str]:
        """Those that are to go and still have calls, for people."""
        leaving = self._leaving
        awaited = _awaiting(leaving)
        busy = [post for post in leaving if _calls(post) or awaited(post)]
        return [f"{post.who} on {post.process.node} finishes its calls" for post in busy]

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
    """As it told, and those of this process, which may still be on their way."""
    return post.running + post.queue + sum(seat.outstanding for seat in post.seats)


def _awaiting(posts: Sequence[Post]) -> Awaited:
    """The calls of this process that are not over and whose results it can still ask for.

    An actor does not know of those that wait for their arguments. They are looked for when first asked for.
    """
    ids = {id(post): post.handle._actor_id.hex() for post in posts if post.handle is not None}
    held = cache(lambda: held_results(ids.values()))
    return lambda post: len(unfinished([ref for ref in held().get(ids.get(id(post), ""), ()) if ref != post.ping]))
