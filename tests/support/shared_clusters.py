"""One cluster for all modules that want the same: starting one takes longer than most tests."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from live_grid import LiveGrid


@dataclass(frozen=True)
class Wish:
    """What a module says that its cluster is to be."""

    config: str | None
    """The packaged one if none is given."""
    with_faults: bool
    """Its processes obey the orders in the file `orders`."""
    env: frozenset[tuple[str, str]] = frozenset()
    """What its processes find in their environment besides."""

    @classmethod
    def of(cls, module: Any) -> "Wish":
        return cls(
            getattr(module, "CONFIG", None),
            getattr(module, "WITH_FAULTS", False),
            frozenset(getattr(module, "ENV", {}).items()),
        )


class SharedClusters:
    """The one that is up; it ends when another is wanted, so there are never two."""

    def __init__(self) -> None:
        self._live: LiveGrid | None = None
        self._is: Wish | None = None

    def get(self, wish: Wish, folder: Callable[[], Path]) -> LiveGrid:
        if self._live is not None and self._is == wish:
            return self._live
        self.end()
        live = LiveGrid(folder(), wish.config)
        live.env |= dict(wish.env)
        if wish.with_faults:
            live.env["GRID_FAULTS"] = str(live.orders)
        self._live, self._is = live, wish
        live.start()
        return live

    def end(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()


def neighbours(items: list[pytest.Item]) -> None:
    """Bring tests together that can share a cluster; otherwise the order stays.

    A module that says `CHANGES_ITS_CLUSTER` comes after the others.
    """
    places: dict[Any, int] = {}

    def place(item: pytest.Item) -> tuple[int, bool]:
        module = item.getparent(pytest.Module)
        assert module is not None
        key = Wish.of(module.obj) if shares(item) else module.nodeid
        return places.setdefault(key, len(places)), getattr(module.obj, "CHANGES_ITS_CLUSTER", False)

    items.sort(key=place)


def shares(item: pytest.Item) -> bool:
    """Whether it uses the fixture `grid` of all, not one of its module."""
    found = getattr(item, "_fixtureinfo").name2fixturedefs.get("grid", ())  # noqa: B009
    return bool(found) and not found[-1].baseid.endswith(".py")
