"""Many clients at once that request, renew and release at random, and a sampler that adds up totals meanwhile."""

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ray._private.state as ray_state

from distributed_grid.client import GridClient
from distributed_grid.errors import BoostNotFound, GridError, NoCapacity, NotRenewable, TargetNotFound
from distributed_grid.store.home import GridHome

Boost = dict[str, Any]

_MOST_HELD = 4
# The duration of lasting boosts, which must exist until they are released; the others expire within a second.
_LONG_S = 600.0


@dataclass
class Storm:
    """`clients` threads that together make `calls` calls. `held` has the boosts that were granted and not released."""

    home: GridHome
    wishes: Callable[[random.Random], dict[str, Any]]
    calls: int = 300
    clients: int = 8
    seed: int = 1
    pause_s: float = 0.0
    """The longest pause of a client between two calls."""
    counts: Counter[str] = field(default_factory=Counter)
    held: dict[str, Boost] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)
    forgiven: dict[str, float] = field(default_factory=dict)
    """Node -> the time until which boosts with this node may rightly be gone."""

    def __post_init__(self) -> None:
        self._left = self.calls
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._may_ask = threading.Event()
        self._may_ask.set()
        self._asking = 0
        self._granted_at: dict[str, float] = {}
        self._threads = [threading.Thread(target=self._client, args=(n,), daemon=True) for n in range(self.clients)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        self._over.set()
        self._may_ask.set()
        self.join()

    @contextmanager
    def without(self, node: str) -> Iterator[None]:
        """This node dies and returns in the block: what it lent or borrowed until then is rightly gone."""
        self.forgiven[node] = math.inf
        yield
        self.forgiven[node] = time.monotonic()

    def _is_forgiven(self, boost: Boost) -> bool:
        nodes = (boost["source_node"], boost["target_node"])
        return any(self._granted_at[boost["boost_id"]] <= self.forgiven.get(node, -math.inf) for node in nodes)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No client makes calls inside the block; calls in flight finish first."""
        self._may_ask.clear()
        while self._asking:
            time.sleep(0.005)
        yield
        self._may_ask.set()

    def _client(self, number: int) -> None:
        chance = random.Random(f"{self.seed}-{number}")
        client = GridClient(self.home, retry_s=60.0)
        mine: dict[str, Boost] = {}
        while self._next():
            try:
                self._one_call(client, mine, chance)
            except GridError as error:
                self.trouble.append(f"{type(error).__name__}: {error.message} {error.because}")
            with self._lock:
                self._asking -= 1
            time.sleep(chance.uniform(0, self.pause_s))
        client.close()

    def _next(self) -> bool:
        """Whether to make another call; if so, it counts as in flight from here on."""
        while True:
            self._may_ask.wait()
            with self._lock:
                if self._over.is_set() or self._left <= 0:
                    return False
                if self._may_ask.is_set():
                    self._left -= 1
                    self._asking += 1
                    return True

    def _one_call(self, client: GridClient, mine: dict[str, Boost], chance: random.Random) -> None:
        what = chance.choices(("grant", "renew", "release"), (5, 2, 3))[0]
        if not mine or (what == "grant" and len(mine) < _MOST_HELD):
            self._grant(client, mine, chance)
            return
        boost_id = chance.choice(list(mine))
        if what == "renew":
            self._renew(client, mine, boost_id)
        else:
            self._release(client, mine, boost_id)

    def _grant(self, client: GridClient, mine: dict[str, Boost], chance: random.Random) -> None:
        lasting = chance.random() < 0.6
        seconds = _LONG_S if lasting else chance.uniform(0.2, 1.0)
        try:
            boost = client.request_boost(self.wishes(chance) | {"duration_seconds": seconds})
        except NoCapacity:
            self.counts["refused"] += 1
            return
        except TargetNotFound:
            if math.inf not in self.forgiven.values():
                raise
            self.counts["refused to a node that is away"] += 1
            return
        self._granted_at[boost["boost_id"]] = time.monotonic()
        self.counts["granted" if lasting else "granted to expire"] += 1
        mine[boost["boost_id"]] = boost
        if lasting:
            self.held[boost["boost_id"]] = boost

    def _renew(self, client: GridClient, mine: dict[str, Boost], boost_id: str) -> None:
        try:
            client.renew_boost(boost_id, _LONG_S)
            self.held[boost_id] = mine[boost_id]
            self.counts["renewed"] += 1
        except (BoostNotFound, NotRenewable):
            self._must_have_expired(mine, boost_id)

    def _release(self, client: GridClient, mine: dict[str, Boost], boost_id: str) -> None:
        lasting = self.held.pop(boost_id, None)  # from now on the boost may be gone
        try:
            client.release_boost(boost_id)
            self.counts["released"] += 1
            del mine[boost_id]
        except BoostNotFound:
            if lasting is not None and not self._is_forgiven(lasting):
                self.trouble.append(f"{boost_id} was granted for long, and is not known when released")
            self._must_have_expired(mine, boost_id)

    def _must_have_expired(self, mine: dict[str, Boost], boost_id: str) -> None:
        lasting = self.held.pop(boost_id, None)
        if lasting is not None and not self._is_forgiven(lasting):
            self.trouble.append(f"{boost_id} was granted for long, and is lost")
        del mine[boost_id]
        self.counts["expired"] += 1


@dataclass
class Sampler:
    """Reads every node's totals as fast as it can, and keeps the largest sum of each resource."""

    kinds: tuple[str, ...]
    most: dict[str, float] = field(default_factory=dict)
    samples: int = 0
    pause_s: float = 0.0

    @contextmanager
    def running(self) -> "Iterator[Sampler]":
        over = threading.Event()
        thread = threading.Thread(target=self._run, args=(over,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join()

    def _run(self, over: threading.Event) -> None:
        while not over.is_set():
            nodes = ray_state.total_resources_per_node().values()
            for kind in self.kinds:
                self.most[kind] = max(self.most.get(kind, 0.0), sum(node.get(kind, 0.0) for node in nodes))
            self.samples += 1
            time.sleep(self.pause_s)
