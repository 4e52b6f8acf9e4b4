"""Which processes of a run live: asked in a concurrency group of its own, so that a busy one answers, too."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import ray

from distributed_grid.execution.named_actors import why_gone
from distributed_grid.execution.ray_gateway import RayGateway
from distributed_grid.execution.ray_rpc import Worker, workers_on
from distributed_grid.model.nodes import NodeId
from distributed_grid.roles.keeping.crew import Crew, Fault, Post, PostState

EVERY_S: Final = 1.0
_PINGS_A_SECOND: Final = 200
"""Of a thousand actors, each is asked every five seconds: what looks after them must not be what they wait for."""
_QUEUES_S: Final = 2.0
_LIVES: Final = (PostState.UP, PostState.SILENT)


class Health:
    def __init__(self, crew: Crew, gateway: RayGateway, silent_after_s: float) -> None:
        self._crew = crew
        self._gateway = gateway
        self._silent_after_s = silent_after_s
        self._queues_at = 0.0
        self._threads = ThreadPoolExecutor(1, "grid-roles-queues")
        self._counting: Future[dict[str, Worker]] | None = None

    def look(self) -> list[Fault]:
        """Ask those whose turn it is; those that have failed since the last look."""
        now = time.monotonic()
        lives = [post for post in self._crew.posts.values() if post.handle is not None and post.state in _LIVES]
        self._count_queues(now, lives)
        asked = {post.ping: post for post in lives if post.ping is not None}
        done = ray.wait([*asked], num_returns=len(asked), timeout=0, fetch_local=False)[0] if asked else []
        faults = [fault for ref in done if (fault := self._answered(asked[ref], now)) is not None]
        failed = {id(fault.post) for fault in faults}
        every_s = max(EVERY_S, len(lives) / _PINGS_A_SECOND)
        silent_after_s = max(self._silent_after_s, 2 * every_s)
        for post in lives:
            if id(post) in failed:
                continue
            if post.ping is None and now - post.pinged_at >= every_s:
                post.ping, post.pinged_at = post.handle.grid_ping.remote(), now
            elif post.ping is not None and now - post.pinged_at > silent_after_s:
                faults.append(Fault(post, f"it has not answered for {now - post.pinged_at:.0f} s", what="was silent"))
            elif post.ping is not None and now - post.pinged_at > silent_after_s / 3:
                post.state = PostState.SILENT
        return faults

    def _answered(self, post: Post, now: float) -> Fault | None:
        ref, post.ping = post.ping, None
        try:
            ray.get(ref)
        except ray.exceptions.RayError as error:
            return Fault(post, why_gone(error))
        post.state = PostState.UP
        return None

    def _count_queues(self, now: float, lives: list[Post]) -> None:
        """Asked beside everything else: a node answers only once all of its workers have, and one may be stuck."""
        if self._counting is not None and self._counting.done():
            self._take_in(self._counting.result(), lives)
            self._counting = None
        if self._counting is None and now - self._queues_at >= _QUEUES_S and lives:
            self._queues_at = now
            self._counting = self._threads.submit(self._count, {post.held.node_id for post in lives})

    def _count(self, nodes: set[NodeId]) -> dict[str, Worker]:
        raylets = [raylet for raylet in self._gateway.raylets() if raylet.node_id in nodes]
        return {worker.actor_id: worker for raylet in raylets for worker in workers_on(raylet) if worker.actor_id}

    def _take_in(self, workers: dict[str, Worker], lives: list[Post]) -> None:
        for post in lives:
            worker = workers.get(post.handle._actor_id.hex())
            if worker is not None:
                post.queue, post.running = worker.waiting, worker.running
            for seat in post.seats:
                seat.busy = post.running + post.queue

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
