"""Which parts of a process's environment and command line may be shown or copied."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from distributed_grid.errors import InvalidRequest
from distributed_grid.model.validators import is_variable

ALLOWED: Final = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ"}
    | {"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONWARNINGS", "PYTHONUTF8"}
    | {"PYTHONIOENCODING", "PYTHONFAULTHANDLER", "PYTHONNOUSERSITE", "PYTHONOPTIMIZE"}
    | {"VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "LD_LIBRARY_PATH", "CUDA_HOME", "JAVA_HOME"}
    | {"OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMEXPR_MAX_THREADS", "VECLIB_MAXIMUM_THREADS"}
)
"""Copied to the other node without `--env`, like all names that start with one of `ALLOWED_BEGINNINGS`."""
ALLOWED_BEGINNINGS: Final = ("LC_", "OMP_", "MKL_")

HIDDEN: Final = "***"
_SECRET: Final = re.compile(
    r"token|key|secret|passw|passphrase|pwd$|credential|cookie|private|auth|(^|[_-])pat$|dsn", re.IGNORECASE
)
_IN_TEXT: Final = re.compile(r"(?<=://)[^/@\s]+(?=@)|(?<=Bearer )\S+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ChosenEnvironment:
    """The environment of a process on the other node."""

    copied: tuple[str, ...]
    """Names whose values come from the old environment."""
    given: Mapping[str, str] = field(default_factory=dict)
    left_behind: tuple[str, ...] = ()
    """Names in the old environment that are not copied."""


def looks_secret(name: str) -> bool:
    """Whether a variable or an option is likely to hold a secret."""
    return _SECRET.search(name) is not None


def choose_environment(has: Iterable[str], named: Sequence[str] = ()) -> ChosenEnvironment:
    """The allowed variables, and those that `--env` names: `NAME` is copied, `NAME=VALUE` is new.

    A variable that looks like a secret is copied only if `--env` names it.
    """
    known = set(has)
    given: dict[str, str] = {}
    wanted: set[str] = set()
    for number, one in enumerate(named, start=1):
        name, is_given, value = one.partition("=")
        if not is_variable(name) or "\0" in value:
            raise InvalidRequest(
                f"--env argument {number} does not start with a variable name",  # not shown: it may be a value
                try_next="Use --env NAME or --env NAME=VALUE.",
            )
        if is_given:
            given[name] = value
        elif name in known:
            wanted.add(name)
        else:
            raise InvalidRequest(
                f"The process has no {name} in its environment", try_next=f"Set its value: --env {name}=VALUE"
            )
    copied = {name for name in known if _is_allowed(name)} | wanted
    return ChosenEnvironment(
        copied=tuple(sorted(copied - given.keys())),
        given=given,
        left_behind=tuple(sorted(known - copied - given.keys())),
    )


def _is_allowed(name: str) -> bool:
    return name in ALLOWED or (name.startswith(ALLOWED_BEGINNINGS) and not looks_secret(name))


def shown_command(command: Sequence[str]) -> tuple[str, ...]:
    """A command line with likely secrets hidden: `--token abc`, `API_KEY=abc`, `https://me:abc@host`."""
    shown: list[str] = []
    hide_next = False
    for part in command:
        name, is_given, _ = part.partition("=")
        is_option = part.startswith("-")
        if hide_next and not is_option:
            shown.append(HIDDEN)
        elif is_given and looks_secret(name):
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(_IN_TEXT.sub(HIDDEN, part))
        hide_next = is_option and not is_given and looks_secret(name)
    return tuple(shown)
