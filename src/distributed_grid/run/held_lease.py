"""The lease of a run: requested, renewed while the run lives, returned at its end."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from distributed_grid.client import GridClient
from distributed_grid.client.lease_keeper import WatchedLease, is_gone
from distributed_grid.errors import GridError, InvalidRequest, NotFound, NotReserved
from distributed_grid.loops import ThreadLoop
from distributed_grid.model.endings import EndCause
from distributed_grid.model.leases import Delivery, Purpose
from distributed_grid.model.requests import make_ask, on_nodes, reservation
from distributed_grid.model.resources import CPU, GPU, MEMORY, ResourceVector
from distributed_grid.model.validators import LONGEST_LABEL, waiting_time
from distributed_grid.run.signals import signals_blocked

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import Boost, BoostEnding, BoostRequest

DEFAULT_DURATION_S: Final = 120.0
"""How long a lease lasts without renewal: if its machine fails, its capacity is soon free again."""

_LOOK_S: Final = 1.0
"""The program must learn of a reclaim soon, since the grace period starts with the reclaim."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The user's options for a run."""

    cpus: str | None = None
    gpus: str | None = None
    memory: str | None = None
    target: str | None = None
    sources: tuple[str, ...] = ()
    """The only nodes that may lend."""
    priority: str = "normal"
    duration: str | None = None
    wait: str | None = None
    boost: str | None = None
    grace: str | None = None
    reclaim_url: str | None = None
    idle_after: str | None = None
    nodes: int | None = None
    spread: bool = False

    def body(self, target: str, label: str) -> BoostRequest:
        """The request for the lease."""
        asked = {kind: amount for kind, amount in self._amounts().items() if amount is not None}
        amounts, layout = on_nodes(asked or {CPU: "1"}, self.nodes, spread=self.spread)
        return reservation(
            target,
            amounts,
            priority=self.priority,
            duration_seconds=DEFAULT_DURATION_S if self.duration is None else self.duration,
            source_nodes=list(self.sources) or None,
            grace_seconds=self.grace,
            reclaim_url=self.reclaim_url,
            idle_after=self.idle_after,
            purpose=Purpose.RUN,
            label=label,
            wait_seconds=waiting_time(self.wait or 0),
            **layout,
        )

    def _amounts(self) -> Mapping[str, str | None]:
        return {GPU: self.gpus, CPU: self.cpus, MEMORY: self.memory}

    def check(self, isolation: str = "group") -> None:
        """Refuse invalid input without a cluster."""
        if isolation == "cluster" and ".." in (self.cpus or ""):
            raise InvalidRequest(
                "A private cluster cannot grow",
                because=["its raylets have exactly what their lease reserves"],
                try_next=f"Use --isolation group with --cpus {self.cpus}, or ask for a fixed number of CPUs.",
            )
        if self.boost is not None and (any(self._amounts().values()) or self.nodes is not None or self.spread):
            raise InvalidRequest(
                "--boost runs in an existing boost; --cpus, --gpus, --memory, --nodes and --spread request a new lease"
            )
        own_terms = (self.grace, self.reclaim_url, self.idle_after)
        if self.boost is not None and any(term is not None for term in own_terms):
            raise InvalidRequest("--boost uses the boost's own grace period, reclaim hook and idle time")
        make_ask(self.body(self.target or "target", ""), fractional_gpus=True)


@dataclass(frozen=True, slots=True)
class Reclaim:
    """The lease is being reclaimed or returned. The program may stay until then."""

    ending: BoostEnding
    """As in the API: the cause, by whom, for whom."""
    until: float
    """On this machine's monotonic clock: the controller's clock may differ."""
    may_be_withdrawn: bool = False
    """The lease is idle: the program keeps it if its work uses it again, and only the controller knows whether it does.
    So the controller says when the time is over."""

    @property
    def left_s(self) -> float:
        return max(0.0, self.until - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether the program has to end now."""
        return self.left_s <= 0 and not self.may_be_withdrawn


class HeldLease:
    """One lease while it is needed, with the program inside it.

    `reclaim`: why the lease is being reclaimed or returned, and how long the program may stay. `ended`: why the lease
    is gone.
    """

    def __init__(
        self,
        client: GridClient,
        boost: Boost,
        program_id: str,
        label: str,
        *,
        is_ours: bool,
        is_inside: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_inside`: whether a program runs in it now; a shell may be merely open."""
        self._is_inside = is_inside
        self._cpu_s: Callable[[], float | None] = lambda: None
        self._client, self._program_id, self._label = client, program_id, label[:LONGEST_LABEL]
        self.boost = boost
        self.is_ours = is_ours
        self.reclaim: Reclaim | None = None
        self._losses: SimpleQueue[str] = SimpleQueue()
        self._lease = WatchedLease(boost)
        self._lease.take_in(self._ask(client))
        in_thread = GridClient(client.home)
        look_s = min(_LOOK_S, self._lease.length_s / 6)
        self._loop = ThreadLoop(
            "grid-run-lease", lambda: self._keep(in_thread), lambda: look_s, waits_first=True, at_end=in_thread.close
        )
        with signals_blocked():  # signals are for the main thread
            self._loop.start()

    @classmethod
    def of(cls, client: GridClient, wanted: Wanted, program_id: str, label: str) -> HeldLease:
        """Request a lease, or use the boost that was named."""
        if wanted.boost is not None:
            boost = reserved(client, client.boost(wanted.boost, to_use=True))
            return cls(client, boost, program_id, label, is_ours=False)
        target = wanted.target or _head(client)
        granted = client.request_boost(wanted.body(target, label), idempotency_key=uuid.uuid4().hex)
        try:
            return cls(client, granted, program_id, label, is_ours=True)
        except BaseException:
            with suppress(GridError):
                client.release_boost(granted["boost_id"], {"grace_seconds": 0})
            raise

    def measure(self, cpu_s: Callable[[], float | None]) -> None:
        """The program has begun: report its CPU time from now on, so that a lease that it does not use can be
        recognized. `cpu_s` returns None when it has nothing new."""
        self._cpu_s = cpu_s

    @property
    def id(self) -> str:
        return str(self.boost["boost_id"])

    def give_back(self) -> None:
        """End what still runs in the lease and return it. A boost that existed before the run stays, empty."""
        self._loop.end()
        with suppress(GridError):  # then the controller counts the program as gone after a silence
            self._client.leave(self.id, self._program_id)
        if self.is_ours and self.ended is None:
            with suppress(NotFound):
                self._client.release_boost(self.id, {"grace_seconds": 0, "wait_seconds": 20})

    @property
    def ended(self) -> str | None:
        return self._lease.ended

    @property
    def ending(self) -> BoostEnding | None:
        """How it ended, if the controller knows."""
        return self._lease.ending

    def _keep(self, client: GridClient) -> None:
        """Keep the lease alive unless it is being reclaimed, and check more often that it still exists."""
        if self.is_ours:
            self._lease.keep(client.renew_boost)
        if self._look(client) is not None:
            self._loop.end()

    def why_ended(self) -> str | None:
        """Asks the controller now: a program that fails for want of its lease may be the first to notice."""
        return self.ended or self._look(self._client)

    def _look(self, client: GridClient) -> str | None:
        self._lease.look(lambda: self._ask(client))
        return self.ended

    def _ask(self, client: GridClient) -> Boost:
        said = client.report_program(
            self.id, self._program_id, self._label, is_inside=self._is_inside(), cpu_s=self._cpu_s()
        )
        boost, left_s = said["boost"], said["ends_in_seconds"]
        self._notice_losses(boost)
        if boost["ending"] is None or left_s is None:
            self.reclaim = None
        elif not is_gone(boost):
            is_idle = boost["notice"] is not None and boost["ending"]["cause"] == EndCause.IDLE
            self.reclaim = Reclaim(boost["ending"], time.monotonic() + left_s, is_idle)
        return boost

    def losses(self) -> Iterator[str]:
        """What the lease has lost since the last call, in words for the user: a lender may leave with its part."""
        with suppress(Empty):
            while True:
                yield self._losses.get_nowait()

    def _notice_losses(self, boost: Boost) -> None:
        left = lenders_of(boost)
        for source in lenders_of(self.boost):
            if source not in left:
                self._losses.put(
                    f"{source} has left the cluster, and what ran there is gone. The lease goes on with "
                    f"{amounts_by_node(boost)}."
                )
        self.boost = boost


def _head(client: GridClient) -> str:
    nodes = client.nodes()["nodes"]
    return str(next((node["name"] for node in nodes if node["is_head"]), nodes[0]["name"] if nodes else ""))


def lenders_of(boost: Boost) -> tuple[str, ...]:
    """The nodes that lend it, each once."""
    return tuple(dict.fromkeys(part["source_node"] for part in boost["parts"])) or (boost["source_node"],)


def amounts_by_node(boost: Boost) -> str:
    """ "gpu1 (1 GPU, 1 CPU), gpu2 (1 GPU, 1 CPU)"."""
    held = {source: ResourceVector() for source in lenders_of(boost)}
    for part in boost["parts"]:
        held[part["source_node"]] += ResourceVector.of(**part["resources"])
    return ", ".join(f"{source} ({resources.describe()})" for source, resources in held.items())


def reserved(client: GridClient, boost: Boost) -> Boost:
    """The boost, if it is active and has a placement group to run in; else raises `NotReserved`."""
    if boost["placement_group"] is None or boost["state"] != "active":
        raise NotReserved(
            f"No program can run inside boost {boost['boost_id'][:8]}: it is {boost['state']}, with delivery "
            f"{boost['delivery']}",
            because=[f"its capacity is on {boost['target_node']}, where every Ray program can use it without a lease"]
            if Delivery.named(boost["delivery"]).moves_totals
            else [],
            try_next=f"Run the program directly, with RAY_ADDRESS={client.ray_address()}",
        )
    return boost
