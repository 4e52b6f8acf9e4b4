"""Boost state on disk, for those who want to read it from Python."""

from pathlib import Path
from typing import Any

from distributed_grid.orchestration.boost_view import boost_dict
from distributed_grid.store.boost_file import BoostFile
from distributed_grid.store.home import GridHome

__all__ = ["ResourceBoostPersistence"]


class ResourceBoostPersistence:
    """Reads `resource_boosts.json`. It has one writer, the controller, so this never writes it."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path else GridHome.find().boosts

    def load_boosts(self) -> list[dict[str, Any]]:
        """Every boost on disk, as `grid boost status --json` shows it."""
        return [boost_dict(lease) for lease in BoostFile(self.path).load().leases]
