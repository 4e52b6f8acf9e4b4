"""Lending with grid: the public class, in ordinary use."""

from dataclasses import dataclass, field

from bench.stage import SOURCE, TARGET
from distributed_grid.orchestration.resource_boost_manager import ResourceBoostManager, ResourceBoostRequest


@dataclass
class Boosting:
    """`request_boost` and `release_boost`, as a controller's client or with the engine in this process."""

    manager: ResourceBoostManager
    delivery: str
    amount: float = 1.0
    source: str | None = SOURCE
    """None: any, or several together."""
    _boost: str = field(default="", init=False)

    async def request(self) -> None:
        wanted = ResourceBoostRequest(
            TARGET, "cpu", self.amount, preferred_source=self.source, delivery=self.delivery, duration_seconds=3600
        )
        granted = await self.manager.request_boost(wanted)
        if granted is None:
            raise RuntimeError(f"refused: {self.manager.last_refusal}")
        self._boost = granted

    async def release(self) -> None:
        if not await self.manager.release_boost(self._boost):
            raise RuntimeError(f"boost {self._boost} is not known")
