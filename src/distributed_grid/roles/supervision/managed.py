"""The managed processes of a run: their states change here only, and what the state machine instructs is carried out.

`decide/roles/processes.py` is the state machine.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray

from distributed_grid.decide.roles.processes import handle, of_roles, routable
from distributed_grid.execution.actors import why_gone
from distributed_grid.model.nodes import NodeId
from distributed_grid.model.roles.processes import (
    Broke,
    CallFailed,
    ConnectEndpoints,
    Constructed,
    DisconnectEndpoints,
    EndAsked,
    Event,
    Held,
    Instruction,
    MatesReady,
    OpenEndpoints,
    PingSent,
    ProcessSpec,
    ProcessState,
    ProcessStatus,
    Ready,
    RelocateEndpoints,
    RetireEndpoints,
    StartActor,
    StartAsked,
    StopActor,
    specs_of,
)
from distributed_grid.roles.calls.endpoints import Endpoint, EndpointRegistry, Ref
from distributed_grid.roles.on_node.actor import Described
from distributed_grid.roles.on_node.making import ON_PEERS
from distributed_grid.roles.on_node.peers import wire_name
from distributed_grid.roles.supervision.hosting import GREETING, Hosting


@dataclass(slots=True, eq=False)
class ManagedProcess:
    """One process of a run: its status, and how to reach it. Only `ProcessSet` assigns these fields."""

    status: ProcessStatus
    endpoints: tuple[Endpoint, ...] = ()
    handle: Any = None
    """Its actor."""
    steps: list[Ref] = field(default_factory=list)
    """While it starts, references to the steps before it is up: its constructors, then meeting its peers."""
    ping: Ref | None = None
    """A reference to the ping that it has not answered yet."""

    @property
    def spec(self) -> ProcessSpec:
        return self.status.spec

    @property
    def name(self) -> str:
        return self.status.spec.name

    @property
    def key(self) -> tuple[str, ...]:
        return self.status.spec.roles

    @property
    def held(self) -> Held:
        return self.status.held

    @property
    def title(self) -> str:
        return self.status.spec.title

    @property
    def queue(self) -> int:
        return self.status.load.queue

    @property
    def running(self) -> int:
        return self.status.load.running


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
    """Each change makes a new dictionary, since other threads read it at any time."""
    _suspects: deque[Endpoint] = field(default_factory=deque)
    """Endpoints whose member a call found to be gone. Callers add to it, in threads of their own."""
    _edition: int = 0
    _ports: dict[tuple[str, ...], tuple[NodeId, Ref, int]] = field(default_factory=dict)
    """By roles: the node with rank 0, a reference to its address and free ports, and which port is theirs."""
    _variables: dict[str, dict[str, str]] = field(default_factory=dict)
    """By name: the ranks of a process, for its environment."""

    # -- state changes -------------------------------------------------------------------------------------------

    def send(self, events: Iterable[tuple[ManagedProcess, Event]]) -> None:
        """Feed events to the state machine, and carry out its instructions: endpoints of all processes first.

        While some of a gang end, none of it may still be called.
        """
        now, found = time.monotonic(), list[tuple[ManagedProcess, Instruction]]()
        for process, event in events:
            process.status, instructions = handle(process.status, event, now)
            found += [(process, one) for one in instructions]
        ended = {id(process) for process, _ in found if process.status.state is ProcessState.ENDED}
        if ended:
            self.by_name = {name: one for name, one in self.by_name.items() if id(one) not in ended}
        for process, instruction in sorted(found, key=lambda one: isinstance(one[1], StartActor | StopActor)):
            self._carry_out(process, instruction)

    def _carry_out(self, process: ManagedProcess, instruction: Instruction) -> None:
        match instruction:
            case StartActor():
                _, ports, number = self._ports[process.key]
                variables = self._variables[process.name]
                process.handle = self.hosting.start(process.spec, process.held, variables, ports, number)
                process.steps, process.ping = [process.handle.grid_ready.remote()], None
            case StopActor(stuck_pid):
                self._stop(process, stuck_pid)
            case OpenEndpoints():
                process.endpoints = self._new_endpoints(process.spec)
            case ConnectEndpoints():
                for endpoint in process.endpoints:
                    endpoint.connect(process.handle, node=process.spec.node)
            case DisconnectEndpoints(why):
                for endpoint in process.endpoints:
                    endpoint.disconnect(why)
            case RetireEndpoints(why):
                for endpoint in process.endpoints:
                    self.registry.drop(endpoint.role, endpoint.rank, why, only=endpoint)
            case RelocateEndpoints(node):
                for endpoint in process.endpoints:
                    endpoint.node = node

    def _stop(self, process: ManagedProcess, stuck_pid: int | None) -> None:
        handle, process.handle, process.steps, process.ping = process.handle, None, [], None
        if handle is not None and ray.is_initialized():
            # Whatever the error, other processes must still be ended. Not found: this process has left Ray and
            # connected again, and Ray has ended its actors meanwhile; Ray also ends actors without any handle.
            with suppress(Exception):
                ray.kill(handle)
                if stuck_pid is not None:
                    self.hosting.end_stuck(process.held.node_id, stuck_pid)

    # -- starting and ending -------------------------------------------------------------------------------------

    def add(self, held: Iterable[Held]) -> list[ManagedProcess]:
        """Start all units of what is held. If that raises, none of them is left."""
        new = [
            ManagedProcess(ProcessStatus(spec, unit, one))
            for one in held
            for unit in one.holding.units
            for spec in specs_of(self.run, unit)
        ]
        for process in new:
            process.endpoints = self._new_endpoints(process.spec)
        self.by_name = self.by_name | {process.name: process for process in new}
        try:
            self.start(new)
        except BaseException:
            self.end(new, "it could not be started")
            raise
        return new

    def start(self, processes: Sequence[ManagedProcess], *, new_ports: bool = False) -> None:
        """Make their actors, all at once. `look` reports when they are up."""
        self._find_ports(processes, new=new_ports)
        self._variables = self._ranks({process.key for process in processes})
        self.send([(process, StartAsked()) for process in processes])
        for process, greetings in self.introduce(processes):
            process.steps += greetings

    def end(self, processes: Iterable[ManagedProcess], why: str) -> None:
        """End them for good."""
        self.send([(process, EndAsked(why)) for process in processes])

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
        self.send([(self.by_name[name], MatesReady()) for name in routable(self.statuses)])

    def ping(self, process: ManagedProcess, next_s: float) -> None:
        process.ping = process.handle.grid_ping.remote()
        self.send([(process, PingSent(next_s))])

    def answer(self, process: ManagedProcess) -> Ref:
        """The reference to an answered ping."""
        ref, process.ping = process.ping, None
        return ref

    def suspect(self, endpoint: Endpoint) -> None:
        """A call found that the member is gone. May be called by any thread."""
        self._suspects.append(endpoint)

    def check_suspects(self) -> None:
        """Ping suspected processes at the next opportunity."""
        suspects = [self._suspects.popleft() for _ in range(len(self._suspects))]
        concerned = [one for one in self.by_name.values() if any(endpoint in one.endpoints for endpoint in suspects)]
        self.send([(process, CallFailed()) for process in concerned])

    def _advance(self, process: ManagedProcess) -> Fault | None:
        """The current step is done: take its outcome."""
        step, *process.steps = process.steps
        fault: Fault | None = None
        try:
            ready: Described | None = ray.get(step)  # a greeting answers nothing
        except ray.exceptions.RayTaskError as error:
            fault = Fault(process, why_gone(error), remote_traceback=str(error), what=f"failed in {ON_PEERS}()")
        except Exception as error:  # noqa: BLE001 (whatever it is, the process is not up)
            fault = Fault(process, why_gone(error))
        else:
            if ready is not None and (failed := ready["failed"]) is not None:
                fault = Fault(process, failed["error"], failed["role"], failed["traceback"], what="did not start")
            elif ready is not None:
                self.send([(process, Constructed(ready["pid"], tuple(ready["gpus"])))])
        if fault is not None:
            process.steps = []
            self.send([(process, Broke())])
        elif not process.steps:
            self.send([(process, Ready())])
        return fault

    @property
    def statuses(self) -> Mapping[str, ProcessStatus]:
        return {name: process.status for name, process in self.by_name.items()}

    @property
    def coming(self) -> list[ManagedProcess]:
        return [process for process in self.by_name.values() if process.status.is_starting]

    @property
    def staying(self) -> list[ManagedProcess]:
        """All processes except those that are being removed."""
        return [process for process in self.by_name.values() if not process.status.is_leaving]

    @property
    def leaving(self) -> list[ManagedProcess]:
        return [process for process in self.by_name.values() if process.status.is_leaving]

    def introduce(self, processes: Iterable[ManagedProcess]) -> list[tuple[ManagedProcess, list[Ref]]]:
        """Tell each process that defines `on_peers` of its peers. Returns each with references to the notifications."""
        asking = [(process, [role for role in process.key if self.hosting.greets(role)]) for process in processes]
        begun: list[tuple[ManagedProcess, list[Ref]]] = []
        if not any(greets for _, greets in asking):
            return begun
        others: dict[str, list[tuple[int, str, int]]] = {}
        for one in sorted(self.staying, key=lambda one: one.spec.index):
            for role in one.key:
                others.setdefault(role, []).append((one.spec.index, one.name, one.status.life))
        self._edition += 1
        for process, greets in asking:
            if greets and process.handle is not None:
                process.handle.grid_meet.remote(self._edition, others)
                greetings = [getattr(process.handle, wire_name(role, GREETING)) for role in greets]
                begun.append((process, [greet.remote(self._edition) for greet in greetings]))
        return begun

    def of_roles(self, roles: Iterable[str]) -> list[ManagedProcess]:
        """The processes that host one of these roles, by index, without those that are being removed."""
        here = self.by_name
        return [here[one.name] for one in of_roles([process.status for process in here.values()], roles)]

    def count(self, role: str) -> int:
        return len(self.of_roles([role]))

    # -- who and where -------------------------------------------------------------------------------------------

    def _new_endpoints(self, spec: ProcessSpec) -> tuple[Endpoint, ...]:
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

    def _find_ports(self, processes: Sequence[ManagedProcess], *, new: bool) -> None:
        """For roles whose rank 0 is new or has moved. Each node is asked once for all of them."""
        wanted: dict[NodeId, list[tuple[str, ...]]] = {}
        for key in dict.fromkeys(process.key for process in processes):
            first = self.of_roles(key)[0].held.node_id
            if new or key not in self._ports or self._ports[key][0] != first:
                wanted.setdefault(first, []).append(key)
        for node_id, keys in wanted.items():
            ports = self.hosting.ports_on(node_id, len(keys))
            self._ports |= {key: (node_id, ports, number) for number, key in enumerate(keys)}
