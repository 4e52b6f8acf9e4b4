"""A node's measurements, beside its logical resources in Ray, at one instant."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from distributed_grid.model.nodes import NodeId, NodeName
from distributed_grid.model.resources import ResourceVector


@dataclass(frozen=True, slots=True)
class GpuProcess:
    pid: int
    memory_bytes: int | None
    """None if the driver does not report it."""
    ours: bool | None = None
    """Whether the node's own Ray started it; None: unknown, since the driver counts other containers' processes."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One device. Values that the driver does not report are None, never zero."""

    index: int | None
    """As `nvidia-smi` counts."""
    uuid: str | None
    name: str | None
    utilisation: float | None
    """0..1: the fraction of recent time in which some kernel ran."""
    memory_total: int | None
    memory_used: int | None
    temperature_c: float | None = None
    processes: tuple[GpuProcess, ...] | None = None
    silent_because: str | None = None
    """Why the driver reports nothing about it at all."""


@dataclass(frozen=True, slots=True)
class HostReading:
    """The machine, or the container that the node runs in: the container's limits count, not the machine's."""

    cpus: float
    """Cores that may be used."""
    cpu_used: float
    """Busy cores, averaged since the previous reading."""
    memory_total: int
    memory_used: int
    swap_total: int
    swap_used: int
    load: tuple[float, float, float]
    disk_total: int = 0
    """The file system to which the node's Ray spills objects; zero: not measured."""
    disk_used: int = 0


@dataclass(frozen=True, slots=True)
class OwnUse:
    """Use by the node's own raylet and everything below it: separates nodes that share a machine."""

    cpu_used: float
    """Busy cores, averaged since the previous reading."""
    memory_used: int
    processes: int


@dataclass(frozen=True, slots=True)
class WorkerUse:
    """Use by one of a node's worker processes and everything below it."""

    pid: int
    cpu_used: float
    """Busy cores, averaged since the previous reading."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A probe's measurements of its node."""

    host: HostReading
    own: OwnUse
    gpus: tuple[GpuReading, ...] = ()
    no_gpus_because: str | None = None
    """Why there are no GPU readings; None if there are some."""
    workers: tuple[WorkerUse, ...] = ()
    """Those that the previous reading showed, too."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """0..1 per kind, and as one number. None: not measured, and not part of that number."""

    overall: float
    cpu: float
    memory: float
    gpu: float | None = None
    own_cpu: float | None = None
    """By the node's own processes, if other nodes share its machine; None: same as `cpu`."""
    own_memory: float | None = None

    def of(self, kind: str) -> float | None:
        """The pressure to show: how busy the node and its machine are."""
        found: float | None = getattr(self, kind)
        return found

    def own(self, kind: str) -> float | None:
        """The pressure by the node's own work, which lending decisions use.

        Nodes of one machine are all as busy as the machine, and moving capacity between them does not change that.
        """
        found: float | None = getattr(self, f"own_{kind}", None)
        return self.of(kind) if found is None else found


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """One node at one instant: measured, if its probe answered, and logical, as Ray counts it."""

    name: NodeName
    node_id: NodeId
    taken_at: datetime
    """When the snapshot was assembled, by the controller's clock."""
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
    """When the probe's answer arrived, by the controller's clock."""
    pressure: Pressure | None = None
    stale: bool = False
    """Its probe has stopped answering: the measurements are old, and the node must not be taken for idle."""
    stale_because: str = ""
    seen_since: datetime | None = None
    """When the observer first saw the node."""

    @property
    def state(self) -> str:
        """`starting` until its probe has answered for the first time."""
        return "stale" if self.stale else "ok" if self.measured else "starting"

    @property
    def used(self) -> ResourceVector:
        return (self.total - self.free).at_least_zero()

    def own_pressure(self, kind: str) -> float | None:
        """The pressure by the node's own work; None without a recent measurement."""
        return None if self.stale or self.pressure is None else self.pressure.own(kind)

    def age(self, now: datetime) -> timedelta | None:
        """The age of the measurements; None if there are none."""
        return None if self.measured_at is None else max(timedelta(), now - self.measured_at)
