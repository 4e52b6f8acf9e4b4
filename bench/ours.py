"""Lending with grid: the public class, used as anybody would."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from bench.stage import SOURCE, TARGET, Stage
from distributed_grid.orchestration.resource_boost_manager import ResourceBoostManager, ResourceBoostRequest

Shows = Callable[[bool], bool]


@dataclass
class Boosting:
    """`request_boost` and `release_boost`: a controller's client, or the controller's work done in this process."""

    manager: ResourceBoostManager
    view: Shows
    delivery: str
    amount: float
    _boost: str = field(default="", init=False)

    async def request(self) -> None:
        wanted = ResourceBoostRequest(
            TARGET, "cpu", self.amount, preferred_source=SOURCE, delivery=self.delivery, duration_seconds=3600
        )
        granted = await self.manager.request_boost(wanted)
        if granted is None:
            raise RuntimeError(f"refused: {self.manager.last_refusal}")
        self._boost = granted

    async def release(self) -> None:
        if not await self.manager.release_boost(self._boost):
            raise RuntimeError(f"boost {self._boost} is not known")

    def shows(self, *, lent: bool) -> bool:
        return self.view(lent)


@asynccontextmanager
async def manager_of(stage: Stage) -> AsyncIterator[ResourceBoostManager]:
    """Of the home that GRID_HOME names: a client where a controller runs there, else the engine itself."""
    async with ResourceBoostManager(stage.config) as manager:
        yield manager
