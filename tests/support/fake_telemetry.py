"""What a cluster would measure, as a test says it."""

from builders import reading

from distributed_grid.decide.monitoring.naming import Raylet
from distributed_grid.decide.monitoring.snapshots import Answers
from distributed_grid.model.demand import Pending
from distributed_grid.model.nodes import NodeId, NodeName
from distributed_grid.model.snapshots import Reading


class FakeTelemetry:
    """Every node answers with what `answers` has for its name, or else with a quiet machine."""

    def __init__(self) -> None:
        self.answers: dict[NodeName, Reading | str] = {}
        self.waiting: tuple[Pending, ...] = ()
        self.left = False

    async def read(self, raylets: dict[NodeName, Raylet], within_s: float) -> Answers:
        return {raylet.node_id: self.answers.get(name, reading()) for name, raylet in raylets.items()}

    async def pending(self, names: dict[NodeId, NodeName]) -> tuple[Pending, ...]:
        return self.waiting

    async def leave(self) -> None:
        self.left = True
