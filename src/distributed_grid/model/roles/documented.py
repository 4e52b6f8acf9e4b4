"""The roles of the documented API, and what each has there unless somebody says otherwise."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from distributed_grid.errors import InvalidRole
from distributed_grid.model.roles.environment import EnvProfile
from distributed_grid.model.roles.profiles import COLOCATED_CONCURRENCY
from distributed_grid.model.roles.spec import ConcurrencyOf, FailurePolicy


class NexRLRole(Enum):
    """The roles that the framework of the documented API has. Names of your own will do as well."""

    ROLLOUT_WORKER = "rollout_worker"
    TRAINER = "trainer"
    TRAJECTORY_POOL = "trajectory_pool"
    WEIGHT_SYNC_CONTROLLER = "weight_sync_controller"
    DATA_LOADER = "data_loader"
    VALIDATE_DATALOADER = "validate_dataloader"
    VALIDATOR = "validator"


_STANDALONE: Final[Mapping[str, Any]] = {"cpus": 1, "gpus": 0, "max_concurrency": 100}
"""Also of a trainer: its `run()` may block, and `stop()` must still get through. Profiles say otherwise where asked."""
_COLOCATED: Final[Mapping[str, Any]] = {
    "cpus": 1,
    "gpus": 0,
    "max_concurrency": COLOCATED_CONCURRENCY,
    "concurrency_of": ConcurrencyOf.PROCESS,
}
_EVERY_ROLE: Final[Mapping[str, Any]] = {
    "env_profile": EnvProfile.DOCUMENTED,
    # As with a plain Ray actor: it does not come back by itself, for it would not know what it was told meanwhile, and
    # its end is no end of the others.
    "failure_policy": FailurePolicy.CONTINUE,
    "max_restarts": 0,
    "startup_deadline_seconds": 600.0,
}


def documented_fields(*, colocated: bool, **said: Any) -> dict[str, Any]:
    """Fields of a `RoleSpec`: what a role has in the documented API where nothing else was `said`.

    A role of a colocation group that says its own `max_concurrency` does not share that of its actor.
    """
    own = {"concurrency_of": ConcurrencyOf.ROLE} if "max_concurrency" in said else {}
    return {**_EVERY_ROLE, **(_COLOCATED if colocated else _STANDALONE), **own, **said}


def role_text(role: object) -> str:
    """A role as text: any word or words, or a member of any Enum, whose value is used if that is text."""
    if isinstance(role, Enum):
        role = role.value if isinstance(role.value, str) else role.name
    if not isinstance(role, str) or not role:
        raise InvalidRole(f"A role is text or a member of an Enum, not {role!r}")
    return role


def as_name(text: str) -> str:
    """Text as a name: ASCII, without spaces, '/' and '+'."""
    plain = text.encode("ascii", "backslashreplace").decode()
    return "".join("_" if one in "/+" or one.isspace() or not one.isprintable() else one for one in plain)
