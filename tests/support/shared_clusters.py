"""One cluster for all modules that want the same: starting one takes longer than most tests."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

if TYPE_CHECKING:
    from live_grid import LiveGrid


@dataclass(frozen=True)
class ClusterShape:
    """The cluster that a module asks for."""

    config: str | None
    """The packaged one if none is given."""
    with_faults: bool
    """Its processes obey the orders in the file `orders`."""
    env: frozenset[tuple[str, str]] = frozenset()
    """What its processes find in their environment besides."""

    @classmethod
    def of(cls, module: Any) -> "ClusterShape":
        return cls(
            getattr(module, "CONFIG", None),
            getattr(module, "WITH_FAULTS", False),
            frozenset(getattr(module, "ENV", {}).items()),
        )


class SharedClusters:
    """The one that is up; it ends when another is wanted, so there are never two."""

    def __init__(self) -> None:
        self._live: LiveGrid | None = None
        self._shape: ClusterShape | None = None

    def get(self, shape: ClusterShape, folder: Callable[[], Path]) -> "LiveGrid":
        if self._live is not None and self._shape == shape:
            return self._live
        from live_grid import LiveGrid  # most tests need no Ray

        self.end()
        live = LiveGrid(folder(), shape.config)
        live.env |= dict(shape.env)
        if shape.with_faults:
            live.env["GRID_FAULTS"] = str(live.orders)
        self._live, self._shape = live, shape
        live.start()
        return live

    def end(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()


def scopes(names: Iterable[str]) -> dict[str, str]:
    """Which tests run in one process: those of modules whose `CONFIG` is the same shape, and otherwise a module's.

    It reads the modules' text, because the process that hands out tests imports none of them.
    """
    modules: dict[str, list[str]] = {}
    for name in names:
        modules.setdefault(name.partition("::")[0], []).append(name)
    tests_of: Counter[str] = Counter()
    found: dict[str, str] = {}
    for module, tests in modules.items():
        shape = _SHAPE.search(_text_of(module))
        scope = f"{shape[1]} {tests_of[shape[1]] // _LARGEST_SCOPE}" if shape else module
        tests_of[shape[1] if shape else module] += len(tests)
        found |= dict.fromkeys(tests, scope)
    return found


@cache
def _text_of(module: str) -> str:
    return (_ROOT / module).read_text()


_LESS_URGENT = 5
_ROOT = Path(__file__).parents[2]
_SHAPE = re.compile(r"^CONFIG = ([A-Z_]+)$", re.MULTILINE)
_LARGEST_SCOPE = 75
"""More tests than about that are worth a second cluster of the same shape: the other processes would wait for them."""


class ByCluster(LoadScopeScheduling):
    """Hands out to one process what shares a cluster.

    The tests on clusters come first (`arrange`), and mostly wait. Of several processes, the last one gets no cluster:
    it begins at the other end, with the tests that only compute, and uses what the others leave (`yield_to_clusters`).
    """

    def _split_scope(self, nodeid: str) -> str:
        return self._scopes[nodeid]

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self._only_computes(node):
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if self._only_computes(node) and all(scope in self._on_clusters for scope in self.workqueue):
            node.shutdown()
        else:
            super()._reschedule(node)

    def _only_computes(self, node: WorkerController) -> bool:
        both = self._on_clusters and len(self._on_clusters) < len(set(self._scopes.values()))
        return bool(both) and is_last(node.gateway.id, self.numnodes)

    @cached_property
    def _on_clusters(self) -> set[str]:
        return {scope for name, scope in self._scopes.items() if "mark.cluster" in _text_of(name.partition("::")[0])}

    @cached_property
    def _scopes(self) -> dict[str, str]:
        return scopes(self.collection or ())


def is_last(process: str, count: int) -> bool:
    """Whether it is the last of several processes, by the name that xdist gives it."""
    return count > 1 and process == f"gw{count - 1}"


def yield_to_clusters(environ: Mapping[str, str], items: Iterable[pytest.Item]) -> None:
    """The process that gets no cluster leaves the cores to clusters, which have deadlines, whenever they want them."""
    kinds = {item.get_closest_marker("cluster") is None for item in items}
    process, count = environ.get("PYTEST_XDIST_WORKER", ""), int(environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    if len(kinds) == 2 and is_last(process, count):
        os.nice(_LESS_URGENT)


def arrange(items: list[pytest.Item]) -> None:
    """Order the tests so that few clusters start.

    Tests on clusters come first, the largest groups ahead: they last longest, and the others run while they wait. In a
    group those come last that need a cluster of their own, or that change the one they share.
    """
    scope_of = scopes(item.nodeid for item in items)
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(scope_of[item.nodeid], []).append(item)
    for group in groups.values():
        group.sort(key=lambda item: (not shares(item), _changes_its_cluster(item)))
    in_order = sorted(groups.values(), key=lambda group: -len(group) if group[0].get_closest_marker("cluster") else 0)
    items[:] = [item for group in in_order for item in group]


def _changes_its_cluster(item: pytest.Item) -> bool:
    module = item.getparent(pytest.Module)
    return getattr(module and module.obj, "CHANGES_ITS_CLUSTER", False)


def shares(item: pytest.Item) -> bool:
    """Whether it uses the fixture `grid` of all, not one of its module."""
    found = getattr(item, "_fixtureinfo").name2fixturedefs.get("grid", ())  # noqa: B009
    return bool(found) and not found[-1].baseid.endswith(".py")
