"""A run with a real keeper, round by round, while Ray, its actors and the cluster are stand-ins."""

import time
from collections.abc import Callable, Iterable
from concurrent import futures
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from fake_clock import Clock
from fake_key_value_store import FakeKeyValueStore

from distributed_grid.decide.roles.planner import plan_workload
from distributed_grid.execution.role_records import RoleRecords
from distributed_grid.model.roles.plan import Inventory, InventoryNode, Placement
from distributed_grid.model.roles.processes import CallsCounted, Held, Load, ProcessSpec
from distributed_grid.model.roles.workload import Workload
from distributed_grid.roles.calls.endpoints import EndpointRegistry
from distributed_grid.roles.supervision.health import Health
from distributed_grid.roles.supervision.managed import ManagedProcess, ProcessSet
from distributed_grid.roles.supervision.parts import RunParts
from distributed_grid.roles.supervision.signals import Following, SignalReader
from distributed_grid.roles.supervision.supervisor import Supervisor
from distributed_grid.roles.supervision.surveying import Survey

PENDING: Any = object()
DIED = ray.exceptions.RayActorError(error_msg="it was killed")


class Ref:
    """A call to an actor: over once it has an outcome."""

    def __init__(self, outcome: Any = PENDING) -> None:
        self.outcome = outcome


class Actor:
    """Answers pings until it is told to be dead."""

    def __init__(self, started: Ref) -> None:
        self.started, self.dead, self.greeting = started, False, Ref(None)
        self._actor_id = SimpleNamespace(hex=lambda: f"{id(self):032x}")
        self.grid_ready = _method(lambda: started)
        self.grid_ping = _method(lambda: Ref(DIED if self.dead else True))
        self.grid_meet = _method(lambda *_: Ref(None))

    def __getattr__(self, name: str) -> Any:
        return _method(lambda *_: self.greeting)


class Actors:
    """Makes them. `fails`: the constructors of these raise; `waits`: those of these do not end."""

    def __init__(self) -> None:
        self.fails: set[str] = set()
        self.waits: set[str] = set()
        self.greeting: set[str] = set()
        self.raises: list[Exception] = []
        """What asking Ray for an actor raises, the next times."""
        self.started: list[str] = []

    def start(self, spec: ProcessSpec, *_: Any) -> Actor:
        if self.raises:
            raise self.raises.pop(0)
        name = spec.name.partition("/")[2]
        self.started.append(name)
        failed = {"role": spec.roles[0], "error": "KeyError: 'x'", "traceback": "in __init__"}
        told = {"pid": 1, "gpus": [], "failed": failed if name in self.fails else None}
        return Actor(Ref(PENDING if name in self.waits else told))

    def methods(self, _role: str) -> list[str]:
        return ["step"]

    def limit(self, _role: str) -> int:
        return 1

    def greets(self, role: str) -> bool:
        return role in self.greeting

    def ports_on(self, *_: Any) -> Ref:
        return Ref()


class FreePlaces:
    def __init__(self) -> None:
        self.returned: list[str] = []

    def take(self, holdings: Iterable[Any], ids: dict[str, str], _within_s: float) -> list[Held]:
        return [Held(holding, ids[holding.node], None) for holding in holdings]

    def give_back(self, held: Iterable[Held]) -> None:
        self.returned += [one.holding.node for one in held]

    def lost(self, _held: Held, *, ask: bool = False) -> None:
        return None

    def ending_of(self, _held: Held) -> None:
        return None


class KeptRun:
    def __init__(self, workload: Workload, nodes: Iterable[InventoryNode], patch: pytest.MonkeyPatch) -> None:
        self.clock, self.actors, self.places, self.killed = Clock(), Actors(), FreePlaces(), []
        patch.setattr(time, "monotonic", self.clock)
        for name, stand_in in {"wait": _wait, "get": _get, "kill": self._kill, "is_initialized": lambda: True}.items():
            patch.setattr(ray, name, stand_in)
        context = SimpleNamespace(get_job_id=lambda: "01", get_worker_id=lambda: "02", get_node_id=lambda: "id of n1")
        patch.setattr(ray, "get_runtime_context", lambda: context)
        self.nodes = [*nodes]
        """What is free; nothing that the run starts is taken from it."""
        self.client: Any = None
        self.records = RoleRecords(FakeKeyValueStore())
        self.workers: Callable[[list[Any]], dict[str, Any]] = lambda raylets: {}
        """What nodes answer when they are asked for their workers."""
        registry = EndpointRegistry("run-1")
        for role in workload.roles:
            registry.add_role(role.name)
        process_set = ProcessSet("run-1", self.actors, registry)  # type: ignore[arg-type]
        self.parts = RunParts("run-1", workload, process_set, self.places, self)  # type: ignore[arg-type]
        reader = SignalReader(self.parts, lambda _: None)  # type: ignore[arg-type, return-value]
        self.health = Health(
            process_set,
            SimpleNamespace(raylets=lambda: []),  # type: ignore[arg-type]
            15.0,
            lambda raylets: self.workers(raylets),
        )
        self.following = Following(self.parts, reader.read)
        self.supervisor = Supervisor(self.parts, self.records, self.health, self.following)
        self.ended = ""
        self.supervisor.on_down = self._down
        found = plan_workload(workload, self.look().inventory)
        assert isinstance(found, Placement)
        self.parts.occupy(found, self.look())
        self.parts.wanted = found.counts
        self.round()

    # -- as a surveyor -------------------------------------------------------------------------------------------

    user_and_team = ("ana", "vision")

    def look(self) -> Survey:
        return Survey(Inventory(self.nodes), {node.name: f"id of {node.name}" for node in self.nodes})

    def name_of(self, _node_id: str) -> str:
        return "n1"

    # -- for tests -----------------------------------------------------------------------------------------------

    def round(self, after_s: float = 1.1) -> None:
        """One round of the supervisor, so much later; signals that were asked have been read by then."""
        self.clock.sleep(after_s)
        futures.wait(self.following.under_way)
        self.supervisor.tick()

    def process(self, role: str, rank: int = 0) -> ManagedProcess:
        return self.parts.process_set.by_name[f"run-1/{role}/{rank}"]

    def count_calls(self, process: ManagedProcess, running: int = 0, queue: int = 0, at: float | None = None) -> None:
        """As the supervisor does from time to time."""
        load = Load(running, queue, self.clock() if at is None else at)
        self.parts.process_set.send([(process, CallsCounted(load))])

    def ranks(self, role: str) -> list[int]:
        """Of those that can be called."""
        return [
            endpoint.rank for endpoint in self.parts.process_set.registry.endpoints(role) if endpoint.target is not None
        ]

    @property
    def told(self) -> str:
        return "\n".join(event.message for event in self.parts.events)

    def _kill(self, actor: Actor) -> None:
        self.killed.append(actor)

    def _down(self, why: str, _state: Any) -> None:
        self.ended = why


def _method(call: Callable[..., Ref]) -> Any:
    return SimpleNamespace(remote=call)


def _wait(refs: list[Ref], **_: Any) -> tuple[list[Ref], list[Ref]]:
    done = [ref for ref in refs if ref.outcome is not PENDING]
    return done, [ref for ref in refs if ref not in done]


def _get(ref: Ref) -> Any:
    if isinstance(ref.outcome, Exception):
        raise ref.outcome
    return ref.outcome
