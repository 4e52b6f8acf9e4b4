"""The managed processes of a run: started in their places, known by name, and restarted."""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import ray

from distributed_grid.execution.actors import why_gone
from distributed_grid.model.nodes import NodeId
from distributed_grid.model.roles.plan import Unit
from distributed_grid.roles.calls.roster import Roster, Seat
from distributed_grid.roles.on_node.making import ON_PEERS
from distributed_grid.roles.on_node.peers import wire_name
from distributed_grid.roles.supervision.hosting import GREETING, Hosting, Process, processes_of
from distributed_grid.roles.supervision.places import Held


class PostState(StrEnum):
    STARTING = "starting"
    UP = "up"
    SILENT = "silent"
    """It does not answer, though it has not ended."""
    RESTARTING = "restarting"
    GONE = "gone"


LIVES: Final = (PostState.UP, PostState.SILENT)


@dataclass(slots=True, eq=False)
class Post:
    """One process of a run, across all of its lives."""

    process: Process
    unit: Unit
    held: Held
    seats: tuple[Seat, ...]
    handle: Any = None
    steps: list[Any] = field(default_factory=list)
    """References to the steps before it is up: its constructors, then meeting its peers."""
    state: PostState = PostState.STARTING
    since: float = 0.0
    """When it was last started."""
    restarts: int = 0
    pid: int | None = None
    gpus: tuple[Any, ...] = ()
    ping: Any = None
    pinged_at: float = 0.0
    queue: int = 0
    running: int = 0
    why: str = ""
    gang: frozenset[str] | None = None
    """The processes that restarted together with it. None is called before all of them are up."""
    seated: bool = False
    """Callers are routed to it, in this life."""
    was_up: bool = False
    """In this life or an earlier one."""
    leaving_since: float | None = None
    """Since then it takes no new calls, and it ends when it has finished the calls it has."""
    finish_s: float = 0.0
    """How long it may take for them."""
    counted_at: float = 0.0
    """When its calls, running and waiting, were counted."""

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def key(self) -> tuple[str, ...]:
        return self.process.roles

    @property
    def life(self) -> int:
        """Its current life; -1 between two lives, when its name is not in use."""
        return self.restarts if self.handle is not None else -1

    @property
    def who(self) -> str:
        """For people: "worker 3"."""
        return f"{'+'.join(self.key)} {self.process.index}"


@dataclass(frozen=True, slots=True)
class Fault:
    """How a process failed: in a constructor, with its traceback, or as a whole."""

    post: Post
    why: str
    role: str = ""
    remote_traceback: str = ""
    what: str = "died"
    """The text that follows its name."""


@dataclass(slots=True)
class Crew:
    run: str
    hosting: Hosting
    roster: Roster
    posts: dict[str, Post] = field(default_factory=dict)
    """By name. Each change makes a new dictionary, since other threads read it at any time."""
    _edition: int = 0
    _ports: dict[tuple[str, ...], tuple[NodeId, Any, int]] = field(default_factory=dict)
    """By roles: the node with rank 0, a reference to its address and free ports, and which port is theirs."""

    # -- coming and going ----------------------------------------------------------------------------------------

    def enlist(self, held: Iterable[Held]) -> list[Post]:
        """Start all units of what is held. If that raises, none of them is left."""
        new: list[Post] = []
        for one in held:
            for unit in one.holding.units:
                for process in processes_of(self.run, unit):
                    new.append(Post(process, unit, one, self.new_seats(process)))
        self.posts = self.posts | {post.name: post for post in new}
        try:
            self.start(new)
        except BaseException:
            self.dismiss(new, "it could not be started")
            raise
        return new

    def start(self, posts: Sequence[Post], *, ports_anew: bool = False) -> None:
        """Make their actors, all at once. `look` reports when they are up."""
        self._find_ports(posts, anew=ports_anew)
        ranks = self._ranks({post.key for post in posts})
        for post in posts:
            _, ports, number = self._ports[post.key]
            post.handle = self.hosting.start(post.process, post.held, ranks[post.name], ports, number)
            post.steps = [post.handle.grid_ready.remote()]
            post.since, post.ping, post.pinged_at = time.monotonic(), None, 0.0
            post.queue, post.running, post.seated = 0, 0, False
        for post, told in self.introduce(posts):
            post.steps += told

    def stop(self, post: Post, state: PostState, why: str = "") -> None:
        """End its process, if there is one."""
        stuck = post.pid if post.state is PostState.SILENT else None
        post.state, post.why, post.pid, post.steps, post.ping = state, why or post.why, None, [], None
        post.seated = False
        for seat in post.seats:
            (seat.ended if state is PostState.GONE else seat.left)(post.why or "its process ended")
        handle, post.handle = post.handle, None
        if handle is not None and ray.is_initialized():
            # Whatever the error, other processes must still be ended. Not found: this process has left Ray and
            # connected again, and Ray has ended its actors meanwhile; Ray also ends actors without any handle.
            with suppress(Exception):
                ray.kill(handle)
                if stuck is not None:
                    self.hosting.end_stuck(post.held.node_id, stuck)

    def dismiss(self, posts: Iterable[Post], why: str) -> None:
        """End them for good."""
        leaving = list(posts)
        gone = {post.name for post in leaving}
        self.posts = {name: post for name, post in self.posts.items() if name not in gone}
        for post in leaving:
            self.stop(post, PostState.GONE, why)
            for seat in post.seats:
                self.roster.drop(seat.role, seat.rank, why)

    # -- looking -------------------------------------------------------------------------------------------------

    def look(self, within_s: float = 0.0) -> list[Fault]:
        """The processes that failed to come up since the last look. Waits up to `within_s` for all of them."""
        coming = {post.steps[0]: post for post in self.coming}
        if not coming:
            return []
        done, _ = ray.wait([*coming], num_returns=len(coming), timeout=within_s, fetch_local=False)
        found = [self._advance(coming[ref]) for ref in done]
        return [fault for fault in found if fault is not None]

    def settle(self) -> None:
        """Make processes that are up callable: each at once, but those of a gang together."""
        there = {post.name for post in self.posts.values() if post.state in LIVES and not post.steps}
        came = []
        for post in self.posts.values():
            mates = [name for name in post.gang or (post.name,) if name in self.posts]
            if not post.seated and post.leaving_since is None and post.name in there and there.issuperset(mates):
                came.append(post)
        for post in came:
            post.gang, post.seated = None, True
            for seat in post.seats:
                seat.came(post.handle, node=post.process.node)

    def _advance(self, post: Post) -> Fault | None:
        """The current step is done: take its outcome."""
        step = post.steps.pop(0)
        try:
            told = ray.get(step)
        except ray.exceptions.RayTaskError as error:
            post.steps = []
            return Fault(post, why_gone(error), remote_traceback=str(error), what=f"failed in {ON_PEERS}()")
        except Exception as error:  # noqa: BLE001 (whatever it is, the process is not up)
            post.steps = []
            return Fault(post, why_gone(error))
        if isinstance(told, dict) and "failed" in told and post.pid is None:
            if (failed := told["failed"]) is not None:
                post.steps = []
                return Fault(post, failed["error"], failed["role"], failed["traceback"], what="did not start")
            post.pid, post.gpus = told["pid"], tuple(told["gpus"])
        if not post.steps:
            post.state, post.why, post.pinged_at, post.was_up = PostState.UP, "", time.monotonic(), True
        return None

    @property
    def coming(self) -> list[Post]:
        return [post for post in self.posts.values() if post.steps]

    @property
    def staying(self) -> list[Post]:
        """All processes except those that are being removed."""
        return [post for post in self.posts.values() if post.leaving_since is None]

    def introduce(self, posts: Iterable[Post]) -> list[tuple[Post, list[Any]]]:
        """Tell each process that defines `on_peers` of its peers. Returns each with references to the notifications."""
        asking = [(post, [role for role in post.key if self.hosting.greets(role)]) for post in posts]
        told: list[tuple[Post, list[Any]]] = []
        if not any(greets for _, greets in asking):
            return told
        others: dict[str, list[tuple[int, str, int]]] = {}
        for one in sorted(self.staying, key=lambda one: one.process.index):
            for role in one.key:
                others.setdefault(role, []).append((one.process.index, one.name, one.life))
        self._edition += 1
        for post, greets in asking:
            if greets and post.handle is not None:
                post.handle.grid_meet.remote(self._edition, others)
                greetings = [getattr(post.handle, wire_name(role, GREETING)) for role in greets]
                told.append((post, [greet.remote(self._edition) for greet in greetings]))
        return told

    def of_roles(self, roles: Iterable[str]) -> list[Post]:
        """The processes that host one of these roles, by index, without those that are being removed."""
        wanted = set(roles)
        return sorted((p for p in self.staying if wanted & {*p.key}), key=lambda p: p.process.index)

    def count(self, role: str) -> int:
        return len(self.of_roles([role]))

    # -- who and where -------------------------------------------------------------------------------------------

    def new_seats(self, process: Process) -> tuple[Seat, ...]:
        """A seat for each role in the process."""
        hosting, found = self.hosting, []
        for role in process.roles:
            methods, limit = hosting.methods(role), hosting.limit(role)
            found.append(Seat(role, process.index, node=process.node, methods=methods, concurrency=limit))
            self.roster.put(found[-1])
        return tuple(found)

    def _ranks(self, keys: Iterable[tuple[str, ...]]) -> dict[str, dict[str, str]]:
        """By name, for all processes with these roles: the variables for its environment."""
        found: dict[str, dict[str, str]] = {}
        for key in keys:
            mates = self.of_roles(key[:1])
            on_node: dict[str, list[Post]] = {}
            for mate in mates:
                on_node.setdefault(mate.process.node, []).append(mate)
            for number, here in enumerate(on_node.values()):
                for local, mate in enumerate(here):
                    found[mate.name] = {
                        "RANK": str(mate.process.index),
                        "REPLICA_INDEX": str(mate.process.index),
                        "WORLD_SIZE": str(len(mates)),
                        "LOCAL_RANK": str(local),
                        "LOCAL_WORLD_SIZE": str(len(here)),
                        "NODE_RANK": str(number),
                        "GRID_RUN": self.run,
                        "GRID_ROLE": "+".join(key),
                    }
        return found

    def _find_ports(self, posts: Sequence[Post], *, anew: bool) -> None:
        """For roles whose rank 0 is new or has moved. Each node is asked once for all of them."""
        wanted: dict[NodeId, list[tuple[str, ...]]] = {}
        for key in dict.fromkeys(post.key for post in posts):
            first = self.of_roles(key)[0].held.node_id
            if anew or key not in self._ports or self._ports[key][0] != first:
                wanted.setdefault(first, []).append(key)
        for node_id, keys in wanted.items():
            ports = self.hosting.ports_on(node_id, len(keys))
            self._ports |= {key: (node_id, ports, number) for number, key in enumerate(keys)}
