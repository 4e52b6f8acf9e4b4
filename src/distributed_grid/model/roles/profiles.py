"""Well-known roles of reinforcement learning and of the documented API, with their defaults."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from distributed_grid.errors import InvalidRole
from distributed_grid.model.roles.environment import EnvProfile
from distributed_grid.model.roles.spec import ConcurrencyOf, FailurePolicy, RoleSpec

COLOCATED_CONCURRENCY: Final = 10
"""Concurrent calls of an actor that hosts several roles, in the documented API."""

PROFILES: Final[Mapping[str, Mapping[str, float]]] = {
    # Mostly waits for answers of models.
    "rollout_worker": {"cpus": 1, "gpus": 0, "max_concurrency": 100},
    # One step after another.
    "trainer_self_hosted": {"cpus": 4, "gpus": 1, "max_concurrency": 1},
    "trainer_remote_api": {"cpus": 1, "gpus": 0, "max_concurrency": 10},
    # All workers write to it at the same time.
    "trajectory_pool": {"cpus": 1, "gpus": 0, "max_concurrency": 100},
    "data_loader": {"cpus": 1, "gpus": 0, "max_concurrency": 10},
    "weight_sync_controller": {"cpus": 1, "gpus": 0, "max_concurrency": 10},
    "validator": {"cpus": 1, "gpus": 0, "max_concurrency": 10},
}


def profile_named(name: str) -> Mapping[str, float]:
    if name not in PROFILES:
        raise InvalidRole(f"There is no profile {name!r}", try_next=f"Use one of {', '.join(PROFILES)}, or none.")
    return PROFILES[name]


def from_profile(profile: str, role: str | Enum | None = None, **changes: Any) -> RoleSpec:
    """`from_profile("trainer_self_hosted", "trainer", cls=Trainer, count=4)`. The default name is the profile's."""
    return RoleSpec(profile if role is None else role, **{**profile_named(profile), **changes})


class NexRLRole(Enum):
    """The roles of the framework of the documented API. Custom names work as well."""

    ROLLOUT_WORKER = "rollout_worker"
    TRAINER = "trainer"
    TRAJECTORY_POOL = "trajectory_pool"
    WEIGHT_SYNC_CONTROLLER = "weight_sync_controller"
    DATA_LOADER = "data_loader"
    VALIDATE_DATALOADER = "validate_dataloader"
    VALIDATOR = "validator"


_STANDALONE: Final[Mapping[str, float]] = {"cpus": 1, "gpus": 0, "max_concurrency": 100}
"""Also for a trainer: its `run()` may block, and `stop()` must still get through. A profile can override this."""
_COLOCATED: Final[Mapping[str, object]] = {
    "cpus": 1,
    "gpus": 0,
    "max_concurrency": COLOCATED_CONCURRENCY,
    "concurrency_of": ConcurrencyOf.PROCESS,
}
_EVERY_ROLE: Final[Mapping[str, object]] = {
    "env_profile": EnvProfile.DOCUMENTED,
    # As with a plain Ray actor: it is not restarted by itself, since it would have lost its state, and its end does
    # not end the others.
    "failure_policy": FailurePolicy.CONTINUE,
    "max_restarts": 0,
    "startup_deadline_seconds": 600.0,
}


def documented_fields(*, colocated: bool, **said: Any) -> dict[str, Any]:
    """Fields of a `RoleSpec`: the documented API's defaults, overridden by `said`.

    A role of a colocation group that sets its own `max_concurrency` does not share that of its actor.
    """
    own = {"concurrency_of": ConcurrencyOf.ROLE} if "max_concurrency" in said else {}
    return {**_EVERY_ROLE, **(_COLOCATED if colocated else _STANDALONE), **own, **said}


def role_text(role: object) -> str:
    """A role as text: any text, or a member of any Enum. The member's value is used if it is text."""
    if isinstance(role, Enum):
        role = role.value if isinstance(role.value, str) else role.name
    if not isinstance(role, str) or not role:
        raise InvalidRole(f"A role is text or a member of an Enum, not {role!r}")
    return role


def as_name(text: str) -> str:
    """Text as a name: ASCII, without spaces, '/' and '+'."""
    plain = text.encode("ascii", "backslashreplace").decode()
    return "".join("_" if one in "/+" or one.isspace() or not one.isprintable() else one for one in plain)
