"""Checks of single values: each returns the value in its normal form, or says what is wrong with it.

The command, the API, the Python classes, the configuration and the controller all use these, so a mistake has one
wording everywhere. A value of a request raises `InvalidRequest`. A setting of the configuration or of a role raises
`Wrong`, since these collect all problems before they report them. Kinds and amounts of a request are checked in
`model.resources`.
"""

import math
import re
from collections.abc import Callable, Mapping
from enum import Enum, StrEnum
from functools import cache
from typing import Any, Final, TypeGuard, TypeVar

from distributed_grid.errors import InvalidAmount, InvalidDuration, InvalidRequest, did_you_mean
from distributed_grid.model.plain_text import plain
from distributed_grid.model.resources import units_of
from distributed_grid.model.times import LENGTHS, length, span

E = TypeVar("E", bound=StrEnum)
Number = int | float

LONGEST_S: Final = 366 * 24 * 3600.0
LONGEST_GRANT_WAIT_S: Final = 24 * 3600.0
"""For a caller that waits until its request is granted."""
LONGEST_RETURN_WAIT_S: Final = 3600.0
"""For a caller that waits until capacity is returned."""
LONGEST_LABEL: Final = 200
_LONGEST_TEXT: Final = 200
_ID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
_TASK_ID: Final = re.compile(r"[0-9A-Za-z._:-]*")
_RAY_PROCESS: Final = re.compile(r"[0-9a-fA-F]{56}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def one_of(what: str, options: type[E], value: object) -> E:
    """A word out of a fixed few, or `InvalidRequest`."""
    if (found := _among(options, value)) is None:
        raise InvalidRequest(f"Unknown {what}: {value!r}", try_next=f"Use one of: {', '.join(options)}.")
    return found


def _among(options: type[E], value: object) -> E | None:
    """The option that a value names, in upper or lower case, with '_' or '-'."""
    found: E | None = _by_name(options).get(_plain_name(value))
    return found


@cache
def _by_name(options: type[StrEnum]) -> dict[str, Any]:
    return {_plain_name(option): option for option in options}


def _plain_name(word: object) -> str:
    return str(word.value if isinstance(word, Enum) else word).lower().replace("-", "_")


def seconds(what: str, value: object, *, zero_allowed: bool = False, longest_s: float = LONGEST_S) -> float:
    """A length of time in seconds: a number, or text such as "90", "30m", "1h30m", "2d"; else `InvalidDuration`."""
    try:
        number = _seconds_in(str(value))
    except ValueError:
        raise InvalidDuration(f"The {what} must be a length of time such as {LENGTHS}, not {value!r}") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise InvalidDuration(f"The {what} must be a finite number of seconds, not {value}")
    if number < 0 or (number == 0 and not zero_allowed):
        raise InvalidDuration(f"The {what} must be {'zero or more' if zero_allowed else 'above zero'}, not {value}")
    if number > longest_s:
        most = "a year" if longest_s == LONGEST_S else span(longest_s)
        raise InvalidDuration(f"The {what} must be at most {most} ({longest_s:.0f} s), not {value}")
    return number


NEVER_S: Final = 0.0


def seconds_or_never(what: str, value: object) -> float:
    """A length of time in seconds as above, or `NEVER_S` for the word "never"."""
    return NEVER_S if value == "never" else seconds(what, value)


def _seconds_in(text: str) -> float:
    with_units = length(text)
    return float(text) if with_units is None else with_units


def waiting_time(value: object, longest_s: float = LONGEST_S) -> float:
    """How long to wait, in seconds, or `InvalidDuration`; zero means not to wait."""
    return seconds("wait", value, zero_allowed=True, longest_s=longest_s)


def grace_period(value: object, longest_s: float) -> float:
    """A grace period in seconds, or `InvalidDuration`: other teams may have to wait until it ends."""
    grace_s = seconds("grace period", value, zero_allowed=True)
    if grace_s > longest_s:
        raise InvalidDuration(
            f"The grace period must be at most {longest_s:g} s, not {grace_s:g} s",
            because=["teams may have to wait for these grace periods before they get their guarantees"],
            try_next="Ask for less; resource_sharing.max_grace_seconds in the configuration is the limit.",
        )
    return grace_s


def label(value: str) -> str:
    """A holder's name for its lease or program: safe to show, and cut to a length that lists can carry."""
    return plain(value)[:LONGEST_LABEL]


def is_whole(value: object, least: int, most: int) -> TypeGuard[int]:
    """Whether it is a whole number from `least` to `most`; True is none, though Python counts it as one."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_id(text: str) -> bool:
    """Whether a boost, a request or a program may have this id; a shortened one may, too."""
    return _ID.fullmatch(text) is not None


def task_id(value: object) -> str:
    """A task's id; empty if none is given."""
    found = short_text("task id", value)
    if _TASK_ID.fullmatch(found) is None:
        raise InvalidRequest(f"Task id {found!r} contains invalid characters; use letters, digits and . _ : -")
    return found


def ray_process(worker_id: str) -> str:
    """The id of a Ray worker or driver."""
    if not _RAY_PROCESS.fullmatch(worker_id):
        raise InvalidRequest(
            f"{worker_id[:80]!r} is not the id of a Ray process",
            try_next="Give what ray.get_runtime_context().get_worker_id() returns in the process that holds the boost.",
        )
    return worker_id.lower()


def short_text(what: str, value: object) -> str:
    """A name or a tag in one line."""
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT or not value.isprintable():
        raise InvalidRequest(f"The {what} must be a short text, not {value!r:.80}")
    return value.strip()


def is_plain_word(text: str) -> bool:
    """Whether a node, a role or a run may have this name: it is part of paths and of lists of words."""
    return bool(text) and "/" not in text and text.isprintable() and not any(letter.isspace() for letter in text)


def is_variable(text: str) -> bool:
    """Whether an environment variable may have this name."""
    return _VARIABLE.fullmatch(text) is not None


# -- settings ---------------------------------------------------------------------------------------------------


class Wrong(ValueError):
    """A problem with one value, as a text that follows its name."""


def shown(value: object) -> str:
    """A value as a message names it."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else repr(value)


def number(value: object) -> Number:
    """A finite number; whole ones become `int`, so that 4 and 4.0 are the same setting."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Wrong(f"must be a number, not {shown(value)}")
    if isinstance(value, int):
        return int(value)
    if not math.isfinite(value):
        raise Wrong(f"must be a finite number, not {value}")
    return int(value) if value.is_integer() else float(value)


def zero_or_more(value: object) -> Number:
    found = number(value)
    if found < 0:
        raise Wrong(f"must be zero or more, not {found}")
    return found


def above_zero(value: object) -> Number:
    found = number(value)
    if found <= 0:
        raise Wrong(f"must be above zero, not {found}")
    return found


def whole(value: object) -> int:
    """A whole number: 4.0 is one, 4.5 is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Wrong(f"must be a whole number, not {shown(value)}")
    found = number(value)
    if not isinstance(found, int):
        raise Wrong(f"must be a whole number, not {found}")
    return found


def amount_or_none(kind: str, value: object) -> Number:
    """An amount that may be zero, unlike that of a request."""
    found = zero_or_more(value)
    try:
        if found:
            units_of(kind, found)
    except InvalidAmount as error:
        raise Wrong(error.message) from None
    return found


def interval(value: object, *, zero_allowed: bool = False) -> Number:
    """A length of time in seconds: a number, or text as in a request."""
    if isinstance(value, str):
        try:
            value = _seconds_in(value)
        except ValueError:
            raise Wrong(f"must be a length of time such as {LENGTHS}, not {shown(value)}") from None
    found = zero_or_more(value) if zero_allowed else above_zero(value)
    if found > LONGEST_S:
        raise Wrong(f"must be at most a year ({LONGEST_S:.0f} seconds), not {found}")
    return found


def word(options: type[E]) -> Callable[[object], E]:
    """A check for a word out of a fixed few."""

    def check(value: object) -> E:
        if (found := _among(options, value)) is None:
            hint = did_you_mean(value, map(str, options)) if isinstance(value, str) else ""
            raise Wrong(f"must be one of {', '.join(options)}, not {shown(value)}{hint}")
        return found

    return check


def port(value: object) -> int:
    if not is_whole(value, 1, 65535):
        raise Wrong(f"must be a port number from 1 to 65535, not {shown(value)}")
    return value


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise Wrong(f"must be true or false, not {shown(value)}")
    return value
