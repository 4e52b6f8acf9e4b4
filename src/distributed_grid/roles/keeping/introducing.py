"""Members are told of each other: whenever somebody came, went or was restarted."""

from typing import Any

import ray

from distributed_grid.execution.named_actors import why_gone
from distributed_grid.roles.keeping.parts import RunParts
from distributed_grid.roles.keeping.posts import Post
from distributed_grid.roles.on_node.making import ON_PEERS


class Introducing:
    def __init__(self, parts: RunParts) -> None:
        self._p = parts
        self._known: frozenset[tuple[str, int]] = frozenset()
        self._told: dict[Any, Post] = {}
        """References to somebody's having been told."""

    def begin(self) -> None:
        """Those that are there know each other already."""
        self._known = self._there(self._p.crew.staying)

    def look(self) -> None:
        self._note_failures()
        met = [post for post in self._p.crew.staying if not post.steps]
        if self._there(met) != self._known:
            told = self._p.crew.introduce(met)
            self._known = self._there(met)
            self._told |= {ref: post for post, refs in told for ref in refs}

    def _note_failures(self) -> None:
        """It is up and can be called, so it goes on; but somebody should know."""
        if not self._told:
            return
        done, _ = ray.wait([*self._told], num_returns=len(self._told), timeout=0, fetch_local=False)
        for ref in done:
            post = self._told.pop(ref)
            try:
                ray.get(ref)
            except ray.exceptions.RayTaskError as error:
                self._p.note(f"{post.who} failed in {ON_PEERS}(): {why_gone(error)}")
            except ray.exceptions.RayError:
                pass  # it has ended, which is noticed otherwise

    @staticmethod
    def _there(posts: list[Post]) -> frozenset[tuple[str, int]]:
        return frozenset((post.name, post.life) for post in posts)
