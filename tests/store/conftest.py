"""A lease with everything that does not matter filled in."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.model.leases import Delivery, Lease, LeaseState
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.resources import ResourceVector
from distributed_grid.store.boost_file import BoostFile, ClusterIdentity

NOON = datetime(2025, 6, 1, 12, 0, 0, 123456, tzinfo=UTC)


@pytest.fixture(scope="session")
def a_lease() -> Callable[..., Lease]:
    def build(id: str = "b1", **changes: Any) -> Lease:
        lease = Lease(
            id=id,
            source="gpu1",
            target="gpu-master",
            kind="cpu",
            units=20_000,
            resources=ResourceVector.of(cpu=2),
            priority=AllocationPriority.NORMAL,
            delivery=Delivery.TRANSFER,
            delivery_reason="the target's hardware can carry it",
            state=LeaseState.ACTIVE,
            allocated_at=NOON,
            expires_at=NOON + timedelta(hours=1),
            duration_s=3600.0,
        )
        return replace(lease, **changes)

    return build


@pytest.fixture(scope="session")
def lab() -> ClusterIdentity:
    return ClusterIdentity("lab", frozenset({"gpu-master", "gpu1"}))


@pytest.fixture
def boosts(tmp_path: Path) -> BoostFile:
    return BoostFile(tmp_path / "resource_boosts.json")
