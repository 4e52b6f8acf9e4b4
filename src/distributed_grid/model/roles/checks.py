"""Checks of the values in roles: each returns the value in its normal form, or raises an error that says what is wrong.

A role collects all of its problems before it raises, so every check here raises the same small error.
"""

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from enum import Enum
from typing import Final, TypeVar

from distributed_grid.errors import GridError, InvalidRole
from distributed_grid.model import validators
from distributed_grid.model.resources import BUILT_IN, MEMORY, is_given_out, kind_of, scale, unit_label, units_of
from distributed_grid.model.validators import Wrong as Wrong
from distributed_grid.model.validators import amount_or_none, interval, is_plain_word
from distributed_grid.model.validators import shown as shown
from distributed_grid.model.validators import word as word

T = TypeVar("T")
Steps = tuple[str | int, ...]

_LONGEST_NAME: Final = 100


class Problems:
    """All problems, each with its place."""

    def __init__(self) -> None:
        self.found: list[tuple[Steps, str]] = []

    def checked(self, field: str, check: Callable[[object], T], value: object, otherwise: T) -> T:
        """The value as `check` returns it. If it is wrong, the problem is recorded and `otherwise` is used instead."""
        try:
            return check(value)
        except Wrong as wrong:
            self.add((field,), str(wrong))
        except InvalidRole as error:  # from a nested value that has checked itself
            for path, said in error.problems or (((), error.message),):
                self.add((field, *path), said)
        except GridError as error:
            self.add((field,), error.message)
        return otherwise

    def add(self, path: Steps, said: str) -> None:
        self.found.append((path, said))

    def complain(self, about: str, try_next: str | None = None) -> None:
        """Raise if there are problems."""
        if not self.found:
            return
        lines = [": ".join([".".join(map(str, path)), said]) if path else said for path, said in self.found]
        error = InvalidRole(f"{about} is invalid", because=lines, try_next=try_next)
        error.problems = tuple(self.found)
        raise error


def name(value: object) -> str:
    """A word from an open set; members of any Enum are fine, too."""
    if isinstance(value, Enum):
        value = value.value if isinstance(value.value, str) else value.name
    if not isinstance(value, str) or not value:
        raise Wrong(f"must be a name, not {shown(value)}")
    if len(value) > _LONGEST_NAME:
        raise Wrong(f"must have at most {_LONGEST_NAME} characters, not {len(value)}")
    if not is_plain_word(value):
        raise Wrong(f"must not contain spaces or '/', but is {value!r}")
    if not value.isascii():
        raise Wrong(f"must contain only ASCII characters, as Ray requires, but is {value!r}")
    return value


def role_name(value: object) -> str:
    """A name that stays recognisable next to others, as the names of the roles in one process are shown."""
    found = name(value)
    if "+" in found:
        raise Wrong(f"must not contain '+', which joins roles that share a process, but is {found!r}")
    return found


def name_or_none(value: object) -> str | None:
    return None if value is None else name(value)


def whole(least: int, most: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        found = validators.whole(value)
        if not least <= found <= most:
            raise Wrong(f"must be from {least} to {most}, not {found}")
        return found

    return check


def or_none(check: Callable[[object], T]) -> Callable[[object], T | None]:
    return lambda value: None if value is None else check(value)


def seconds(value: object) -> float:
    return float(interval(value))


def seconds_or_zero(value: object) -> float:
    return float(interval(value, zero_allowed=True))


def amount(kind: str) -> Callable[[object], float | int]:
    """An amount that Ray can count exactly; zero is allowed."""

    def check(value: object) -> float | int:
        found = amount_or_none(kind, value)
        if not found:
            return 0
        units = units_of(kind, found)
        if kind != MEMORY and Decimal(str(value)) * scale(kind) != units:
            raise Wrong(f"Ray counts in ten-thousandths; use {units / scale(kind):g} instead of {value}")
        if not is_given_out(kind, units):
            raise Wrong(f"must be a fraction of one GPU, or whole GPUs, not {value} {unit_label(kind)}")
        return found

    return check


def custom_amounts(value: object) -> dict[str, float | int]:
    found: dict[str, float | int] = {}
    for key, given in mapping(value).items():
        kind = kind_of(key)
        if kind in BUILT_IN:
            raise Wrong(f"{key!r} is not a custom resource; it has its own field")
        try:
            found[kind] = amount(kind)(given)
        except Wrong as wrong:
            raise Wrong(f"{key}: {wrong}") from None
    return {kind: given for kind, given in found.items() if given}


def texts(value: object) -> tuple[str, ...]:
    """A list of words. A single word is refused, since its letters would be taken for the list."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise Wrong(f"must be a list, not {shown(value)}")
    found = tuple(value)
    for one in found:
        if not isinstance(one, str) or not one.strip():
            raise Wrong(f"must be a list of words, but {shown(one)} is not a word")
    return tuple(dict.fromkeys(found))


def mapping(value: object) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise Wrong(f"must be a mapping, not {shown(value)}")
    for key in value:
        if not isinstance(key, str):
            raise Wrong(f"its keys must be text, not {shown(key)}")
    return dict(value)
