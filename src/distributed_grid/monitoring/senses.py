"""What measuring needs from a cluster. `RaySenses` is the real one; tests of the layers above may bring another."""

from typing import Protocol

from distributed_grid import threads
from distributed_grid.decide.naming import Raylet
from distributed_grid.decide.snapshots import Answers
from distributed_grid.model.demand import Pending
from distributed_grid.model.nodes import NodeId, NodeName
from distributed_grid.model.snapshots import Reading


class Senses(Protocol):
    """One round at a time uses these."""

    async def read(self, raylets: dict[NodeName, Raylet], within_s: float) -> Answers: ...
    async def pending(self, names: dict[NodeId, NodeName]) -> tuple[Pending, ...]: ...
    async def leave(self) -> None:
        """Take everything out of the cluster that measuring put there."""


class RaySenses:
    """Probes on the nodes and the queues of the control service. Blocking calls run in threads."""

    def __init__(self, gcs_address: str) -> None:
        from distributed_grid.monitoring.demand import DemandReader
        from distributed_grid.monitoring.probes import Probes

        self._probes = Probes()
        self.on = self._probes.on
        self._queues = DemandReader(gcs_address)

    async def read(self, raylets: dict[NodeName, Raylet], within_s: float) -> Answers:
        return await threads.ERRANDS.run(self._read, raylets, within_s)

    def _read(self, raylets: dict[NodeName, Raylet], within_s: float) -> Answers:
        self._probes.keep(raylets.values(), within_s)
        found = self._probes.read_all(within_s)
        return {id_: answer if isinstance(answer, Reading) else answer.because for id_, answer in found.items()}

    async def pending(self, names: dict[NodeId, NodeName]) -> tuple[Pending, ...]:
        return await threads.ERRANDS.run(self._queues.pending, names)

    async def leave(self) -> None:
        await threads.ERRANDS.run(self._probes.stop)
