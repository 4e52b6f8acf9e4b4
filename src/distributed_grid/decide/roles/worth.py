"""How bad it is to lack something: one number for unlike kinds."""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from distributed_grid.decide.roles.room import Units
from distributed_grid.model.resources import CPU, GPU, MEMORY, scale

_WEIGHTS: Final = {GPU: 1000.0, CPU: 1.0, MEMORY: 0.125}
"""Of one device, core or GB; of a custom resource, as of a hundred cores."""


def worth(amounts: Mapping[str, int]) -> float:
    return sum(_each(kind) * units for kind, units in amounts.items())


def worth_by_node(lacking: Mapping[str, Units]) -> NDArray[np.float64]:
    """The same for amounts on every node."""
    parts = [column * _each(kind) for kind, column in lacking.items()]
    found: NDArray[np.float64] = np.sum(parts, axis=0, dtype=np.float64) if parts else np.zeros(1)
    return found


def _each(kind: str) -> float:
    return _WEIGHTS.get(kind, 100.0) / scale(kind)
