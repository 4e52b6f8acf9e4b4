"""What a node was measured to do, beside what Ray has promised on it, at one instant."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from distributed_grid.model.nodes import NodeId, NodeName
from distributed_grid.model.resources import ResourceVector


@dataclass(frozen=True, slots=True)
class GpuProcess:
    pid: int
    memory_bytes: int | None
    """None where the driver does not tell."""
    ours: bool | None = None
    """Whether the node's own Ray started it; None: not known, since the driver counts processes of other containers."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One device. What the driver does not tell is None, never zero."""

    index: int | None
    """As `nvidia-smi` counts."""
    uuid: str | None
    name: str | None
    utilisation: float | None
    """0..1: the part of the last moments in which some kernel ran."""
    memory_total: int | None
    memory_used: int | None
    temperature_c: float | None = None
    processes: tuple[GpuProcess, ...] | None = None
    silent_because: str | None = None
    """Why the driver tells nothing of it at all."""


@dataclass(frozen=True, slots=True)
class HostReading:
    """The machine, or the container that the node runs in: its limits count, not the machine's."""

    cpus: float
    """Cores that may be used."""
    cpu_used: float
    """Cores busy, on average since the reading before."""
    memory_total: int
    memory_used: int
    swap_total: int
    swap_used: int
    load: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class OwnUse:
    """What the node's own raylet and everything below it uses: where nodes share a machine, this is theirs alone."""

    cpu_used: float
    """Cores busy, on average since the reading before."""
    memory_used: int
    processes: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What a probe found on its node."""

    host: HostReading
    own: OwnUse
    gpus: tuple[GpuReading, ...] = ()
    no_gpus_because: str | None = None
    """Why there are no GPU readings; None where there are some."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """0..1 per kind, and as one number. None: not measured, and so without a part in the number."""

    overall: float
    cpu: float
    memory: float
    gpu: float | None = None
    own_cpu: float | None = None
    """By the node's own processes, where other nodes share its machine; None: as `cpu`."""
    own_memory: float | None = None

    def of(self, kind: str) -> float | None:
        """As it is shown: how busy the node and its machine are."""
        found: float | None = getattr(self, kind)
        return found

    def own(self, kind: str) -> float | None:
        """By what the node itself does: what lending is decided by. Nodes of one machine are all as busy as that is,
        and capacity that moves between them changes nothing about it.
        """
        found: float | None = getattr(self, f"own_{kind}", None)
        return self.of(kind) if found is None else found


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """One node at one instant: measured, where its probe answered, and logical, as Ray counts it."""

    name: NodeName
    node_id: NodeId
    taken_at: datetime
    """When this was put together, by the controller's clock."""
    base: ResourceVector
    total: ResourceVector
    free: ResourceVector
    lent: ResourceVector = field(default_factory=ResourceVector)
    borrowed: ResourceVector = field(default_factory=ResourceVector)
    shares_its_host: bool = False
    """Other nodes of the cluster run on the same machine."""
    measured: Reading | None = None
    """None: its probe has not answered yet."""
    measured_at: datetime | None = None
    """When the probe's answer came, by the controller's clock."""
    pressure: Pressure | None = None
    stale: bool = False
    """Its probe has stopped answering: what is measured is old, and nobody may take the node for idle."""
    stale_because: str = ""
    seen_since: datetime | None = None
    """When the node was first seen by whoever took this."""

    @property
    def state(self) -> str:
        """`starting` until its probe has answered for the first time."""
        return "stale" if self.stale else "ok" if self.measured else "starting"

    @property
    def used(self) -> ResourceVector:
        return (self.total - self.free).at_least_zero()

    def age(self, now: datetime) -> timedelta | None:
        """How old the measured values are; None if there never were any."""
        return None if self.measured_at is None else max(timedelta(), now - self.measured_at)
