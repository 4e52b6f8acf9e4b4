"""Distributed Grid: lend and borrow capacity between the nodes of one live Ray cluster.

import distributed_grid as grid

async with grid.lease(cpus=4, target="gpu-master") as lease:

    @lease.remote
    def work(part): ...
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed_grid.orchestration.program_lease import ProgramLease

__version__ = "0.1.0"
__all__ = ["__version__", "lease"]


def lease(**wanted: Any) -> "ProgramLease":
    """Capacity for an `async with` block: cpus, gpus, memory (GB), target, source, priority, duration, wait."""
    from distributed_grid.orchestration.program_lease import ProgramLease

    return ProgramLease(**wanted)
