from collections.abc import Iterator

import pytest
from served_grid import ServedGrid


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGrid]:
    """One controller for a module, on loopback."""
    grid = ServedGrid(tmp_path_factory.mktemp("served"))
    yield grid
    grid.close()


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGrid]:
    """One for a single test, which may leave anything in it."""
    grid = ServedGrid(tmp_path_factory.mktemp("fresh"))
    yield grid
    grid.close()
