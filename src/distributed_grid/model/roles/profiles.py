"""The well-known roles of reinforcement learning, with what each needs unless somebody says otherwise."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from distributed_grid.errors import InvalidRole
from distributed_grid.model.roles.spec import RoleSpec

COLOCATED_CONCURRENCY: Final = 10
"""Calls at a time of an actor that hosts several roles, in the documented API."""

PROFILES: Final[Mapping[str, Mapping[str, Any]]] = {
    # Waits for answers of models most of its time.
    "rollout_worker": {"cpus": 1, "gpus": 0, "max_concurrency": 100},
    # One step after the other.
    "trainer_self_hosted": {"cpus": 4, "gpus": 1, "max_concurrency": 1},
    "trainer_remote_api": {"cpus": 1, "gpus": 0, "max_concurrency": 10},
    # All workers put something into it at the same time.
    "trajectory_pool": {"cpus": 1, "gpus": 0, "max_concurrency": 100},
    "data_loader": {"cpus": 1, "gpus": 0, "max_concurrency": 10},
    "weight_sync_controller": {"cpus": 1, "gpus": 0, "max_concurrency": 10},
    "validator": {"cpus": 1, "gpus": 0, "max_concurrency": 10},
}


def profile_named(name: str) -> Mapping[str, Any]:
    if name not in PROFILES:
        raise InvalidRole(f"There is no profile {name!r}", try_next=f"Use one of {', '.join(PROFILES)}, or none.")
    return PROFILES[name]


def from_profile(profile: str, role: str | Enum | None = None, **changes: Any) -> RoleSpec:
    """`from_profile("trainer_self_hosted", "trainer", cls=Trainer, count=4)`; without a name, it has the profile's."""
    return RoleSpec(profile if role is None else role, **{**profile_named(profile), **changes})
