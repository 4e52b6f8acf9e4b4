"""The environment of an actor: the chosen variables, and nothing else from the caller."""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from distributed_grid.model.roles.checks import Wrong, mapping, texts
from distributed_grid.model.validators import is_variable

PROTECTED: Final = frozenset(
    {
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "REPLICA_INDEX",
        "MASTER_ADDR",
        "MASTER_PORT",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "ONEAPI_DEVICE_SELECTOR",
        "NEURON_RT_VISIBLE_CORES",
        "ASCEND_RT_VISIBLE_DEVICES",
        "TPU_VISIBLE_CHIPS",
    }
)
"""Each actor has its own rank, and Ray assigns devices: the caller's values would be wrong for all actors but one."""

_PATTERN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_*?]*")


def allow_list(value: object) -> tuple[str, ...]:
    """Names of variables to pass on, or patterns of names as in a shell: `SWANLAB_*`."""
    found = texts(value)
    for one in found:
        if not _PATTERN.fullmatch(one):
            raise Wrong(f"{one!r} is neither a variable name nor a pattern such as WANDB_*")
        _check_not_protected(one)
    return found


def additions(value: object) -> dict[str, str]:
    """Variables to set."""
    given = mapping(value)
    _check_names(given)
    found: dict[str, str] = {}
    for key, text in given.items():
        if not isinstance(text, str):
            raise Wrong(f'{key} must be text, not {text!r}; quotes make it text: "{text}"')
        if "\0" in text:
            raise Wrong(f"{key} contains a NUL character, which environment variables cannot")
        found[key] = text
    return found


def _check_names(names: Iterable[str]) -> None:
    for one in names:
        if not is_variable(one):
            raise Wrong(f"{one!r} is not a valid variable name")
        _check_not_protected(one)


def _check_not_protected(name: str) -> None:
    if name in PROTECTED:
        raise Wrong(f"{name} is set for each actor (ranks by grid, devices by Ray) and cannot be chosen")


def chosen(
    caller: Mapping[str, str], allow: Iterable[str], added: Mapping[str, str], defaults: Mapping[str, str]
) -> dict[str, str]:
    """The variables to pass on and set: for each allowed name the caller's value, else the default; additions win.

    Protected variables are never included, even if a pattern matches them: the code that starts the actor sets them.
    """
    patterns = list(allow)
    passed = {key: value for key, value in caller.items() if any(fnmatchcase(key, one) for one in patterns)}
    return {key: value for key, value in {**defaults, **passed, **added}.items() if key not in PROTECTED}


class EnvProfile(StrEnum):
    """A predefined choice of variables."""

    NONE = "none"
    DOCUMENTED = "documented"
    """The documented API's choice: see `DOCUMENTED_ALLOW`."""


DOCUMENTED_ALLOW: Final = (
    "LOG_LEVEL",
    "NEXRL_USER",
    "EXPERIMENT_PATH",
    "WANDB_HOST",
    "WANDB_KEY",
    "LLM_JUDGE_*",
    "SWANLAB_*",
    "LOG_STREAM",
    "RANK",
    "WORLD_SIZE",
    "CUDA_VISIBLE_DEVICES",
)
"""It names ranks and devices, too; their values are still each actor's own."""

DOCUMENTED_DEFAULTS: Final[Mapping[str, str]] = {
    "NEXRL_LAUNCH_MODE": "ray",
    "LOG_LEVEL": "INFO",
    "NEXRL_USER": "",
    "EXPERIMENT_PATH": "",
}


def profile_parts(profile: EnvProfile) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """The names that a profile passes on, and its defaults for those that the caller does not have."""
    return (DOCUMENTED_ALLOW, DOCUMENTED_DEFAULTS) if profile is EnvProfile.DOCUMENTED else ((), {})
