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
from distributed_grid.roles.calls.endpoints import Endpoint, EndpointRegistry
from distributed_grid.roles.on_node.making import ON_PEERS
from distributed_grid.roles.on_node.peers import wire_name
from distributed_grid.roles.supervision.hosting import GREETING, Hosting, ProcessSpec, specs_of
from distributed_grid.roles.supervision.places import Held


class ProcessState(StrEnum):
    STARTING = "starting"
    UP = "up"
    SILENT = "silent"
    """It does not answer, though it has not ended."""
    RESTARTING = "restarting"
    GONE = "gone"


LIVES: Final = (ProcessState.UP, ProcessState.SILENT)


@dataclass(slots=True, eq=False)
class ManagedProcess:
    """One process of a run, across all of its lives."""

    spec: ProcessSpec
    unit: Unit
    held: Held
    endpoints: tuple[Endpoint, ...]
    handle: Any = None
    steps: list[Any] = field(default_factory=list)
    """References to the steps before it is up: its constructors, then meeting its peers."""
    state: ProcessState = ProcessState.STARTING
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
    routed: bool = False
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
        return self.spec.name

    @property
    def key(self) -> tuple[str, ...]:
        return self.spec.roles

    @property
    def life(self) -> int:
        """Its current life; -1 between two lives, when its name is not in use."""
        return self.restarts if self.handle is not None else -1

    @property
    def title(self) -> str:
        """For people: "worker 3"."""
        return f"{'+'.join(self.key)} {self.spec.index}"


@dataclass(frozen=True, slots=True)
class Fault:
    """How a process failed: in a constructor, with its traceback, or as a whole."""

    process: ManagedProcess
    why: str
    role: str = ""
    remote_traceback: str = ""
    what: str = "died"
    """The text that follows its name."""


@dataclass(slots=True)
class ProcessSet:
    run: str
    hosting: Hosting
    registry: EndpointRegistry
    by_name: dict[str, ManagedProcess] = field(default_factory=dict)
    """By name. Each change makes a new dictionary, since other threads read it at any time."""
    _edition: int = 0
    _ports: dict[tuple[str, ...], tuple[NodeId, Any, int]] = field(default_factory=dict)
    """By roles: the node with rank 0, a reference to its address and free ports, and which port is theirs."""

    # -- coming and going ----------------------------------------------------------------------------------------

    def add(self, held: Iterable[Held]) -> list[ManagedProcess]:
        """Start all units of what is held. If that raises, none of them is left."""
        new: list[ManagedProcess] = []
        for one in held:
            for unit in one.holding.units:
                for spec in specs_of(self.run, unit):
                    new.append(ManagedProcess(spec, unit, one, self.new_endpoints(spec)))
        self.by_name = self.by_name | {process.name: process for process in new}
        try:
            self.start(new)
        except BaseException:
            self.end(new, "it could not be started")
            raise
        return new

    def start(self, processes: Sequence[ManagedProcess], *, new_ports: bool = False) -> None:
        """Make their actors, all at once. `look` reports when they are up."""
        self._find_ports(processes, pending=new_ports)
        ranks = self._ranks({process.key for process in processes})
        for process in processes:
            _, ports, number = self._ports[process.key]
            process.handle = self.hosting.start(process.spec, process.held, ranks[process.name], ports, number)
            process.steps = [process.handle.grid_ready.remote()]
            process.since, process.ping, process.pinged_at = time.monotonic(), None, 0.0
            process.queue, process.running, process.routed = 0, 0, False
        for process, told in self.introduce(processes):
            process.steps += told

    def stop(self, process: ManagedProcess, state: ProcessState, why: str = "") -> None:
        """End its process, if there is one."""
        stuck = process.pid if process.state is ProcessState.SILENT else None
        process.state, process.why, process.pid, process.steps, process.ping = state, why or process.why, None, [], None
        process.routed = False
        for endpoint in process.endpoints:
            (endpoint.retire if state is ProcessState.GONE else endpoint.disconnect)(process.why or "its process ended")
        handle, process.handle = process.handle, None
        if handle is not None and ray.is_initialized():
            # Whatever the error, other processes must still be ended. Not found: this process has left Ray and
            # connected again, and Ray has ended its actors meanwhile; Ray also ends actors without any handle.
            with suppress(Exception):
                ray.kill(handle)
                if stuck is not None:
                    self.hosting.end_stuck(process.held.node_id, stuck)

    def end(self, processes: Iterable[ManagedProcess], why: str) -> None:
        """End them for good."""
        leaving = list(processes)
        gone = {process.name for process in leaving}
        self.by_name = {name: process for name, process in self.by_name.items() if name not in gone}
        for process in leaving:
            self.stop(process, ProcessState.GONE, why)
            for endpoint in process.endpoints:
                self.registry.drop(endpoint.role, endpoint.rank, why)

    # -- looking -------------------------------------------------------------------------------------------------

    def look(self, within_s: float = 0.0) -> list[Fault]:
        """The processes that failed to come up since the last look. Waits up to `within_s` for all of them."""
        coming = {process.steps[0]: process for process in self.coming}
        if not coming:
            return []
        done, _ = ray.wait([*coming], num_returns=len(coming), timeout=within_s, fetch_local=False)
        found = [self._advance(coming[ref]) for ref in done]
        return [fault for fault in found if fault is not None]

    def settle(self) -> None:
        """Make processes that are up callable: each at once, but those of a gang together."""
        there = {process.name for process in self.by_name.values() if process.state in LIVES and not process.steps}
        came = []
        for process in self.by_name.values():
            mates = [name for name in process.gang or (process.name,) if name in self.by_name]
            if (
                not process.routed
                and process.leaving_since is None
                and process.name in there
                and there.issuperset(mates)
            ):
                came.append(process)
        for process in came:
            process.gang, process.routed = None, True
            for endpoint in process.endpoints:
                endpoint.connect(process.handle, node=process.spec.node)

    def _advance(self, process: ManagedProcess) -> Fault | None:
        """The current step is done: take its outcome."""
        step = process.steps.pop(0)
        try:
            told = ray.get(step)
        except ray.exceptions.RayTaskError as error:
            process.steps = []
            return Fault(process, why_gone(error), remote_traceback=str(error), what=f"failed in {ON_PEERS}()")
        except Exception as error:  # noqa: BLE001 (whatever it is, the process is not up)
            process.steps = []
            return Fault(process, why_gone(error))
        if isinstance(told, dict) and "failed" in told and process.pid is None:
            if (failed := told["failed"]) is not None:
                process.steps = []
                return Fault(process, failed["error"], failed["role"], failed["traceback"], what="did not start")
            process.pid, process.gpus = told["pid"], tuple(told["gpus"])
        if not process.steps:
            process.state, process.why, process.pinged_at, process.was_up = ProcessState.UP, "", time.monotonic(), True
        return None

    @property
    def coming(self) -> list[ManagedProcess]:
        return [process for process in self.by_name.values() if process.steps]

    @property
    def staying(self) -> list[ManagedProcess]:
        """All processes except those that are being removed."""
        return [process for process in self.by_name.values() if process.leaving_since is None]

    def introduce(self, processes: Iterable[ManagedProcess]) -> list[tuple[ManagedProcess, list[Any]]]:
        """Tell each process that defines `on_peers` of its peers. Returns each with references to the notifications."""
        asking = [(process, [role for role in process.key if self.hosting.greets(role)]) for process in processes]
        told: list[tuple[ManagedProcess, list[Any]]] = []
        if not any(greets for _, greets in asking):
            return told
        others: dict[str, list[tuple[int, str, int]]] = {}
        for one in sorted(self.staying, key=lambda one: one.spec.index):
            for role in one.key:
                others.setdefault(role, []).append((one.spec.index, one.name, one.life))
        self._edition += 1
        for process, greets in asking:
            if greets and process.handle is not None:
                process.handle.grid_meet.remote(self._edition, others)
                greetings = [getattr(process.handle, wire_name(role, GREETING)) for role in greets]
                told.append((process, [greet.remote(self._edition) for greet in greetings]))
        return told

    def of_roles(self, roles: Iterable[str]) -> list[ManagedProcess]:
        """The processes that host one of these roles, by index, without those that are being removed."""
        wanted = set(roles)
        return sorted((p for p in self.staying if wanted & {*p.key}), key=lambda p: p.spec.index)

    def count(self, role: str) -> int:
        return len(self.of_roles([role]))

    # -- who and where -------------------------------------------------------------------------------------------

    def new_endpoints(self, spec: ProcessSpec) -> tuple[Endpoint, ...]:
        """An endpoint for each role in the process."""
        hosting, found = self.hosting, []
        for role in spec.roles:
            methods, limit = hosting.methods(role), hosting.limit(role)
            found.append(Endpoint(role, spec.index, node=spec.node, methods=methods, concurrency=limit))
            self.registry.put(found[-1])
        return tuple(found)

    def _ranks(self, keys: Iterable[tuple[str, ...]]) -> dict[str, dict[str, str]]:
        """By name, for all processes with these roles: the variables for its environment."""
        found: dict[str, dict[str, str]] = {}
        for key in keys:
            mates = self.of_roles(key[:1])
            on_node: dict[str, list[ManagedProcess]] = {}
            for mate in mates:
                on_node.setdefault(mate.spec.node, []).append(mate)
            for number, here in enumerate(on_node.values()):
                for local, mate in enumerate(here):
                    found[mate.name] = {
                        "RANK": str(mate.spec.index),
                        "REPLICA_INDEX": str(mate.spec.index),
                        "WORLD_SIZE": str(len(mates)),
                        "LOCAL_RANK": str(local),
                        "LOCAL_WORLD_SIZE": str(len(here)),
                        "NODE_RANK": str(number),
                        "GRID_RUN": self.run,
                        "GRID_ROLE": "+".join(key),
                    }
        return found

    def _find_ports(self, processes: Sequence[ManagedProcess], *, pending: bool) -> None:
        """For roles whose rank 0 is new or has moved. Each node is asked once for all of them."""
        wanted: dict[NodeId, list[tuple[str, ...]]] = {}
        for key in dict.fromkeys(process.key for process in processes):
            first = self.of_roles(key)[0].held.node_id
            if pending or key not in self._ports or self._ports[key][0] != first:
                wanted.setdefault(first, []).append(key)
        for node_id, keys in wanted.items():
            ports = self.hosting.ports_on(node_id, len(keys))
            self._ports |= {key: (node_id, ports, number) for number, key in enumerate(keys)}
