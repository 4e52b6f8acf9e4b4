"""One cluster for all modules that want the same: starting one takes longer than most tests."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
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

    def get(self, wish: Wish, folder: Callable[[], Path]) -> "LiveGrid":
        if self._live is not None and self._is == wish:
            return self._live
        from live_grid import LiveGrid  # most tests need no Ray

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


def arrange(items: list[pytest.Item]) -> None:
    """Order the tests so that few clusters start, and tell xdist which of them belong into one process.

    Tests on clusters come first, the largest groups ahead: they last longest, and the others run while they wait. A
    module that says `CHANGES_ITS_CLUSTER` comes after those with which it shares one.
    """
    alone: dict[str, list[pytest.Item]] = {}
    others: dict[str, list[pytest.Item]] = {}
    shared: dict[Wish, dict[str, list[pytest.Item]]] = {}
    for item in items:
        module = _module(item)
        if not item.get_closest_marker("cluster"):
            group = others
        elif shares(item):
            group = shared.setdefault(Wish.of(module.obj), {})
        else:
            group = alone
        group.setdefault(module.nodeid, []).append(item)
    clustered = [*alone.values(), *(group for modules in shared.values() for group in _together(modules.values()))]
    items.clear()
    for number, tests in enumerate([*sorted(clustered, key=len, reverse=True), *others.values()]):
        for item in tests:
            item.add_marker(pytest.mark.xdist_group(str(number)))
        items.extend(tests)


_LARGEST_GROUP = 60
"""More tests than that are worth a second cluster of the same shape: otherwise the other processes wait for them."""


def _module(item: pytest.Item) -> pytest.Module:
    module = item.getparent(pytest.Module)
    assert module is not None
    return module


def _together(modules: Iterable[list[pytest.Item]]) -> list[list[pytest.Item]]:
    """The tests that run on one cluster."""
    groups: list[list[pytest.Item]] = [[]]
    for tests in sorted(modules, key=lambda tests: getattr(_module(tests[0]).obj, "CHANGES_ITS_CLUSTER", False)):
        if groups[-1] and len(groups[-1]) + len(tests) > _LARGEST_GROUP:
            groups.append([])
        groups[-1].extend(tests)
    return groups


def shares(item: pytest.Item) -> bool:
    """Whether it uses the fixture `grid` of all, not one of its module."""
    found = getattr(item, "_fixtureinfo").name2fixturedefs.get("grid", ())  # noqa: B009
    return bool(found) and not found[-1].baseid.endswith(".py")
