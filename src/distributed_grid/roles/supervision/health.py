"""Which processes of a run are alive. Pings use their own concurrency group, so a busy process answers, too."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

import ray

from distributed_grid.decide.monitoring.naming import Raylet
from distributed_grid.decide.roles.processes import PING_S
from distributed_grid.execution.actors import why_gone
from distributed_grid.execution.ray_gateway import RayGateway
from distributed_grid.execution.ray_rpc import Worker, workers_on
from distributed_grid.model.roles.processes import Answered, CallsCounted, Load, Unanswered
from distributed_grid.roles.supervision.managed import Fault, ManagedProcess, ProcessSet
from distributed_grid.roles.supervision.signals import in_background

_PINGS_A_SECOND: Final = 200
"""With a thousand actors, each is pinged every five seconds: supervision must not become what the actors wait for."""
_QUEUES_S: Final = 2.0
_QUEUES_SOON_S: Final = 0.5
"""The interval while a member that may be busy is being removed."""


def workers_by_actor(raylets: list[Raylet]) -> dict[str, Worker]:
    return {worker.actor_id: worker for raylet in raylets for worker in workers_on(raylet) if worker.actor_id}


class Health:
    def __init__(
        self,
        process_set: ProcessSet,
        gateway: RayGateway,
        silent_after_s: float,
        count: Callable[[list[Raylet]], dict[str, Worker]] = workers_by_actor,
    ) -> None:
        """`count`: asks raylets for their workers, by actor. It may take long."""
        self._process_set = process_set
        self._gateway = gateway
        self._silent_after_s = silent_after_s
        self._count = count
        self._queues_at = 0.0
        self._counting: Future[dict[str, Worker]] | None = None

    def look(self) -> list[Fault]:
        """Ping the processes whose turn it is. Returns those that have failed since the last look."""
        now, found = time.monotonic(), self._process_set
        found.check_suspects()
        lives = [one for one in found.by_name.values() if one.handle is not None and one.status.is_alive]
        self._count_queues(now, lives)
        pinged = {process.ping: process for process in lives if process.ping is not None}
        done = ray.wait([*pinged], num_returns=len(pinged), timeout=0, fetch_local=False)[0] if pinged else []
        faults = [fault for ref in done if (fault := self._answered(pinged[ref])) is not None]
        failed = {id(fault.process) for fault in faults}
        every_s = max(PING_S, len(lives) / _PINGS_A_SECOND)
        silent_after_s = max(self._silent_after_s, 2 * every_s)
        for process in lives:
            status, waited_s = process.status, now - process.status.pinged_at
            if id(process) in failed:
                continue
            if process.ping is None:
                if now >= status.ping_due:
                    found.ping(process, every_s)
            elif waited_s > silent_after_s:
                faults.append(Fault(process, f"it has not answered for {waited_s:.0f} s", what="was silent"))
            elif waited_s > silent_after_s / 3:
                found.send([(process, Unanswered())])
        return faults

    def _answered(self, process: ManagedProcess) -> Fault | None:
        try:
            ray.get(self._process_set.answer(process))
        except ray.exceptions.RayError as error:
            return Fault(process, why_gone(error))
        self._process_set.send([(process, Answered())])
        return None

    def _count_queues(self, now: float, lives: list[ManagedProcess]) -> None:
        """Counted in a separate thread: a node answers only once all of its workers have, and one may be stuck."""
        if self._counting is not None and self._counting.done():
            counting, self._counting = self._counting, None
            with suppress(Exception):  # they are counted again soon
                self._take_in(counting.result(), lives)
        every_s = _QUEUES_SOON_S if any(process.status.is_leaving for process in lives) else _QUEUES_S
        if self._counting is None and now - self._queues_at >= every_s and lives:
            self._queues_at = now
            nodes = {process.held.node_id for process in lives}
            # Ray itself is called here: a thread that outlives the run must not call it.
            raylets = [raylet for raylet in self._gateway.raylets() if raylet.node_id in nodes]
            self._counting = in_background("grid-roles-queues", lambda: self._count(raylets))

    def _take_in(self, workers: dict[str, Worker], lives: list[ManagedProcess]) -> None:
        for process in lives:
            worker = workers.get(process.handle._actor_id.hex()) if process.handle is not None else None
            if worker is not None:
                load = Load(worker.running, worker.waiting, self._queues_at)
                self._process_set.send([(process, CallsCounted(load))])
            for endpoint in process.endpoints:
                endpoint.busy = process.running + process.queue
