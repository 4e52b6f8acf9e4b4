"""One probe on every node: an actor that takes none of the node's capacity and measures the node when asked."""

import hashlib
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any, Final

import ray
from ray import cloudpickle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from distributed_grid.decide.monitoring.naming import Raylet
from distributed_grid.execution import processes
from distributed_grid.execution.actors import NAMESPACE, find, names
from distributed_grid.model.codec import PLAIN
from distributed_grid.model.nodes import NodeId
from distributed_grid.model.snapshots import Reading
from distributed_grid.monitoring import on_node_probe
from distributed_grid.monitoring.on_node_probe.probe import Probe

PREFIX: Final = "grid-probe-"

_FUNCTIONS: Final = "functions"
_FUNCTIONS_AT_ONCE: Final = 4
_AT_ONCE: Final = 8
_STARTING_S: Final = 30.0
"""How long a probe that does not come up keeps other probes from starting."""
_STOP_S: Final = 5.0
_PAUSE_S: Final = 5.0
"""The pause between the second and the third try to start a probe. It doubles each time after that."""
_LONGEST_PAUSE_S: Final = 300.0

cloudpickle.register_pickle_by_value(on_node_probe)


@dataclass(frozen=True, slots=True)
class Unread:
    """Why there is no reading of a node."""

    because: str


@dataclass(slots=True)
class _Handle:
    """A probe that is in the cluster, or starting."""

    actor: Any
    since: float
    up: object
    """A reference to its first answer; None once that came."""
    requested: Any | None = None
    """A reference to a requested reading that has not come."""
    requested_at: float = 0.0


@dataclass(slots=True)
class _Failures:
    """Consecutive failures of one node's probes."""

    count: int
    not_before: float
    because: str


@cache
def probe_class() -> Any:
    """The actor class of probes."""
    return ray.remote(concurrency_groups={_FUNCTIONS: _FUNCTIONS_AT_ONCE})(Probe)


@dataclass(slots=True)
class Probes:
    """The probes of the cluster that this process is connected to.

    Calls block for up to the time they are given. Only one thread at a time may call.
    """

    clock: Callable[[], float] = time.monotonic
    hung_s: float = 60.0
    """A probe that has been silent for so long after a request is replaced: it may never answer."""
    actor_class: Callable[[], Any] = probe_class
    _handles: dict[NodeId, _Handle] = field(default_factory=dict)
    _wanted: dict[NodeId, int] = field(default_factory=dict)
    """The nodes that should have a probe, and how many GPUs Ray has there."""
    _failures: dict[NodeId, _Failures] = field(default_factory=dict)
    _has_looked: bool = False

    def keep(self, raylets: Iterable[Raylet], within_s: float = 5.0) -> None:
        """Ensure that each of these nodes has a probe of this version, and that no other node has one.

        Only a few probes start at a time. The rest are left to the next call. Call this whenever nodes come or go, and
        from time to time.
        """
        self._wanted = {raylet.node_id: int(raylet.base.get("GPU", 0)) for raylet in raylets}
        if not self._has_looked:
            self._take_over()
            self._has_looked = True
        for node_id in self._handles.keys() - self._wanted.keys():
            self._end(node_id)
        self._give_up_hung()
        self._failures = {node_id: self._failures[node_id] for node_id in self._failures.keys() & self._wanted.keys()}
        deadline = self.clock() + within_s
        while missing := self._startable():
            free = _AT_ONCE - len(self._starting())
            for node_id in missing[: max(0, free)]:
                self._start(node_id)
            left = deadline - self.clock()
            if len(missing) <= free or left <= 0:
                return
            if starting := [probe.up for probe in self._starting().values()]:
                ray.wait(starting, num_returns=1, timeout=left)

    def use(self, actors: Mapping[NodeId, Any]) -> None:
        """Take these actors, which are up, for the probes of their nodes. For measurements of the cost of asking."""
        self._wanted = dict.fromkeys(actors, 0)
        self._handles = {node_id: _Handle(actor, self.clock(), up=None) for node_id, actor in actors.items()}

    def read_all(self, timeout_s: float) -> dict[NodeId, Reading | Unread]:
        """Ask all probes at once. Returns for every node its reading, or why there is none.

        A probe that has not answered in time is not asked again until it has. Its late answer is old and is discarded.
        """
        now = self.clock()
        self._drop_late_answers()
        fresh = {node_id: probe for node_id, probe in self._handles.items() if probe.requested is None}
        for probe in fresh.values():
            probe.requested, probe.requested_at = probe.actor.read.remote(), now
        references = [probe.requested for probe in fresh.values()]
        done = set(ray.wait(references, num_returns=len(references), timeout=timeout_s)[0]) if references else set()
        found: dict[NodeId, Reading | Unread] = {}
        for node_id in self._wanted:
            if node_id not in self._handles:
                found[node_id] = Unread(self._why_none(node_id))
            elif self._handles[node_id].requested in done:
                found[node_id] = self._answer(node_id)
            else:
                found[node_id] = Unread(self._why_late(self._handles[node_id]))
        return found

    def on(self, node_id: NodeId, function: Callable[..., object], *args: object) -> object:
        """Run a function on a node, in its probe; returns a reference to its result. Any thread may call this.

        A task would work, too. But for a controller whose starter has ended, Ray starts a new worker for every task:
        two seconds of a core each time.
        """
        probe = self._handles.get(node_id)
        if probe is None or (probe.up is not None and not ray.wait([probe.up], timeout=0)[0]):
            return processes.on(node_id, function, *args)
        return probe.actor.do.options(concurrency_group=_FUNCTIONS).remote(function, *args)

    def pids(self, timeout_s: float) -> dict[NodeId, int]:
        """The process ids of the probes that answer in time."""
        requested = {probe.actor.about.remote(): node_id for node_id, probe in self._handles.items()}
        done = ray.wait(list(requested), num_returns=len(requested), timeout=timeout_s)[0] if requested else []
        answers = {requested[reference]: _result(reference) for reference in done}
        return {node_id: said["pid"] for node_id, said in answers.items() if isinstance(said, dict)}

    def stop(self) -> int:
        """Remove all probes from the cluster, including those of other processes. Returns how many are still there."""
        self._wanted = {}
        self._handles = {}
        deadline = self.clock() + _STOP_S
        while left := names(PREFIX):
            for name in left:
                _kill(find(name))
            if self.clock() > deadline:
                return len(left)
            time.sleep(0.05)
        return 0

    def _take_over(self) -> None:
        """Keep the probes of an earlier controller. End those of another version and those of nodes that are gone."""
        ours = {name_of(node_id): node_id for node_id in self._wanted}
        for name in names(PREFIX):  # of any version
            actor = find(name)
            if name in ours and actor is not None:
                self._handles[ours[name]] = _Handle(actor, self.clock(), actor.about.remote())
            else:
                _kill(actor)

    def _startable(self) -> list[NodeId]:
        now = self.clock()
        paused = {node_id for node_id, failed in self._failures.items() if now < failed.not_before}
        return sorted(self._wanted.keys() - self._handles.keys() - paused)

    def _starting(self) -> dict[NodeId, _Handle]:
        """The probes that are starting."""
        unsure = {node_id: probe for node_id, probe in self._handles.items() if probe.up is not None}
        if unsure:
            references = [probe.up for probe in unsure.values()]
            up = set(ray.wait(references, num_returns=len(references), timeout=0)[0])
            for probe in unsure.values():
                if probe.up in up:
                    probe.up = None
        now = self.clock()
        return {
            node_id: probe
            for node_id, probe in unsure.items()
            if probe.up is not None and now - probe.since < _STARTING_S
        }

    def _start(self, node_id: NodeId) -> None:
        actor = self.actor_class().options(
            name=name_of(node_id),
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            max_restarts=-1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        started = actor.remote(nvml_source(), self._wanted[node_id])
        self._handles[node_id] = _Handle(started, self.clock(), started.about.remote())

    def _drop_late_answers(self) -> None:
        late = {probe.requested: node_id for node_id, probe in self._handles.items() if probe.requested is not None}
        done = ray.wait(list(late), num_returns=len(late), timeout=0)[0] if late else []
        for reference in done:
            node_id = late[reference]
            self._handles[node_id].requested = None
            self._judge(node_id, _result(reference))

    def _answer(self, node_id: NodeId) -> Reading | Unread:
        probe = self._handles[node_id]
        said = _result(probe.requested)
        probe.requested = None
        if (why := self._judge(node_id, said)) is not None:
            return Unread(why)
        self._failures.pop(node_id, None)
        return PLAIN.decode(Reading, said)

    def _judge(self, node_id: NodeId, said: object) -> str | None:
        """The problem with an answer, if there is one. A probe that is dead or fails is replaced."""
        if not isinstance(said, BaseException):
            return None
        if isinstance(said, ray.exceptions.ActorUnavailableError):
            return "its probe is being restarted"
        why = str(said).strip().splitlines()[-1] if str(said).strip() else type(said).__name__
        self._failed(node_id, why)
        return f"its probe failed: {why}"

    def _failed(self, node_id: NodeId, why: str) -> None:
        count = self._failures[node_id].count + 1 if node_id in self._failures else 1
        pause_s = 0.0 if count == 1 else min(_LONGEST_PAUSE_S, _PAUSE_S * 2 ** (count - 2))
        self._failures[node_id] = _Failures(count, self.clock() + pause_s, why)
        self._end(node_id)

    def _give_up_hung(self) -> None:
        self._drop_late_answers()
        now = self.clock()
        hung = {
            node_id: now - probe.requested_at
            for node_id, probe in self._handles.items()
            if probe.requested is not None and now - probe.requested_at > self.hung_s
        }
        for node_id, silent_s in hung.items():
            self._failed(node_id, f"it had not answered for {silent_s:.0f} s, and is replaced")

    def _end(self, node_id: NodeId) -> None:
        _kill(self._handles.pop(node_id).actor)

    def _why_none(self, node_id: NodeId) -> str:
        failed = self._failures.get(node_id)
        return f"its probe failed: {failed.because}" if failed else "its probe has not been started yet"

    def _why_late(self, probe: _Handle) -> str:
        if probe.up is not None and not ray.wait([probe.up], timeout=0)[0]:
            return "its probe is still starting"
        return f"its probe has not answered for {self.clock() - probe.requested_at:.0f} s"


@cache
def version() -> str:
    """Identifies this version of the probe: a digest of all that travels."""
    folder = resources.files(on_node_probe)
    texts = [(part.name, part.read_bytes()) for part in folder.iterdir() if part.name.endswith(".py")]
    return hashlib.sha256(repr(sorted(texts)).encode() + nvml_source()).hexdigest()[:8]


@cache
def nvml_source() -> bytes:
    """nvidia-ml-py as text, small enough to be stored with the actor: a restart must not depend on its starter."""
    source = metadata.distribution("nvidia-ml-py").locate_file("pynvml.py")
    return zlib.compress(Path(str(source)).read_bytes(), 9)


def name_of(node_id: NodeId) -> str:
    return f"{PREFIX}{node_id}-{version()}"


def _kill(actor: Any | None) -> None:
    if actor is not None:
        ray.kill(actor, no_restart=True)


def _result(reference: Any) -> object:
    """The result of a finished call, or the error that it ended with."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        return error
