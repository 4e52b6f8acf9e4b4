"""What an actor finds in its environment: what was chosen, and nothing else of the caller's."""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from distributed_grid.model.roles.checks import Wrong, mapping, texts

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
"""Ranks are each actor's own, and devices are given out by Ray: the caller's would be wrong for all but one."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def allow_list(value: object) -> tuple[str, ...]:
    """Names of variables that are passed on."""
    found = texts(value)
    _check_names(found)
    return found


def additions(value: object) -> dict[str, str]:
    """Variables that are set."""
    found = mapping(value)
    _check_names(found)
    for key, text in found.items():
        if not isinstance(text, str):
            raise Wrong(f'{key} must be text, not {text!r}; quotes make it text: "{text}"')
        if "\0" in text:
            raise Wrong(f"{key} has a NUL in it, which no environment can hold")
    return found


def _check_names(names: Iterable[str]) -> None:
    for one in names:
        if not _NAME.fullmatch(one):
            raise Wrong(f"{one!r} is no name of a variable")
        if one in PROTECTED:
            raise Wrong(f"{one} is set for each actor (ranks by grid, devices by Ray) and cannot be chosen")


def chosen(
    caller: Mapping[str, str], allow: Iterable[str], added: Mapping[str, str], defaults: Mapping[str, str]
) -> dict[str, str]:
    """What is passed on and set: what the caller has of the allow-list, else the default; additions win.

    Never a protected one, though a list that was not checked here may name it: whoever starts the actor sets those.
    """
    passed = {key: caller[key] for key in allow if key in caller}
    return {key: value for key, value in {**defaults, **passed, **added}.items() if key not in PROTECTED}


class EnvProfile(StrEnum):
    """A ready-made choice of variables."""

    NONE = "none"
    DOCUMENTED = "documented"
    """That of the documented API: see `DOCUMENTED_ALLOW`."""


DOCUMENTED_ALLOW: Final = (
    "LOG_LEVEL",
    "NEXRL_USER",
    "EXPERIMENT_PATH",
    "WANDB_HOST",
    "WANDB_KEY",
    "RANK",
    "WORLD_SIZE",
    "CUDA_VISIBLE_DEVICES",
)
"""Names ranks and devices, too; their values are each actor's own all the same."""

DOCUMENTED_DEFAULTS: Final[Mapping[str, str]] = {
    "NEXRL_LAUNCH_MODE": "ray",
    "LOG_LEVEL": "INFO",
    "NEXRL_USER": "",
    "EXPERIMENT_PATH": "",
}


def profile_parts(profile: EnvProfile) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """What a profile lets through, and what it sets where the caller has nothing."""
    return (DOCUMENTED_ALLOW, DOCUMENTED_DEFAULTS) if profile is EnvProfile.DOCUMENTED else ((), {})
