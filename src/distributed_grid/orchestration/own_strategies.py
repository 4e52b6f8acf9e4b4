"""Strategies that others bring along: a package names them as entry points, and the controller knows them."""

from importlib.metadata import entry_points
from typing import Final

from distributed_grid.decide.scheduling import register_strategy
from distributed_grid.orchestration.logs import logger

GROUP: Final = "distributed_grid.strategies"

log = logger()


def load_strategies() -> tuple[str, ...]:
    """Register what is installed here; the names. One that cannot be loaded is told, and left out."""
    found = []
    for entry in entry_points(group=GROUP):
        try:
            register_strategy(entry.name)(entry.load())
        except Exception as error:  # noqa: BLE001 - somebody else's code
            log.error("a strategy could not be loaded", name=entry.name, value=entry.value, error=repr(error))
        else:
            found.append(entry.name)
    return tuple(found)
