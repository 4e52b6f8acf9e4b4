"""Frozen dataclasses as plain data, and back. Both follow the fields and their types, so no field is ever left out.

A new field needs nothing here: data without it gives the field's default, and keys that are not known are ignored.
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from types import NoneType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")

Encode = Callable[[Any], object]
Decode = Callable[[str, object], Any]
"""From a key, for messages, and its value."""

_TYPES: Final = {str: "text", int: "a whole number", bool: "true or false", list: "a list", dict: "an object"}


def encode_instant(at: datetime) -> str:
    """ISO 8601 in UTC, to the microsecond."""
    if at.tzinfo is None:
        raise ValueError(f"{at.isoformat()} has no time zone")
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def decode_instant(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is not None:
            return at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not an ISO 8601 time") from None
    raise ValueError(f"{text!r} has no time zone")


def decode_plain(of: type, key: str, value: object) -> Any:
    """The value as it is, if it has this type."""
    if type(value) is of:  # not isinstance: JSON's true is no number, though Python's is
        return value
    raise ValueError(f"{key} must be {_TYPES[of]}, not {value!r}")


def decode_number(key: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise ValueError(f"{key} must be a number, not {value!r}")


def as_it_is(value: object) -> object:
    return value


@dataclass(frozen=True, slots=True)
class _Part:
    """One field of a dataclass, and how it becomes plain."""

    name: str
    key: str
    encode: Encode
    decode: Decode
    is_needed: bool


@dataclass(frozen=True, slots=True)
class Codec:
    keys: Mapping[str, str] = field(default_factory=dict)
    """Where the key is not the field's name."""
    of_types: Mapping[object, tuple[Encode, Decode]] = field(default_factory=dict)
    """For types that this data limits more, or writes otherwise."""
    never_empty: Mapping[type, AbstractSet[str]] = field(default_factory=dict)
    """Texts that must not be empty."""
    _parts: dict[type, tuple[_Part, ...]] = field(default_factory=dict)

    def encode(self, value: Any) -> dict[str, object]:
        return {part.key: part.encode(getattr(value, part.name)) for part in self.parts(value.__class__)}

    def decode(self, of: type[T], data: object, what: str = "it") -> T:
        """The object that `data` describes; a `ValueError` says which key is wrong, and why."""
        found: T = self._object(of, what, data)
        return found

    def parts(self, of: Any) -> tuple[_Part, ...]:
        if of not in self._parts:
            hints = get_type_hints(of)
            self._parts[of] = tuple(self._part(of, each, hints[each.name]) for each in own_first(of))
        return self._parts[of]

    def _part(self, of: type, each: "Field[object]", hint: Any) -> _Part:
        encode, decode = self._codec(hint)
        if each.name in self.never_empty.get(of, ()):
            decode = _not_empty
        is_needed = each.default is MISSING and each.default_factory is MISSING
        return _Part(each.name, self.keys.get(each.name, each.name), encode, decode, is_needed)

    def _codec(self, hint: Any) -> tuple[Encode, Decode]:
        inner = [each for each in get_args(hint) if each is not NoneType and each is not ...]
        if get_origin(hint) is tuple:
            encode, decode = self._codec(inner[0])
            return (lambda items: [encode(item) for item in items]), partial(_items, decode, texts=inner[0] is str)
        if get_origin(hint) is Mapping:
            encode, decode = self._codec(inner[1])
            return (lambda table: {key: encode(value) for key, value in table.items()}), partial(_table, decode)
        if NoneType in get_args(hint):
            encode, decode = self._codec(inner[0])
            return (
                lambda value: None if value is None else encode(value),
                lambda key, value: None if value is None else decode(key, value),
            )
        if hint in self.of_types:
            return self.of_types[hint]
        if is_dataclass(hint) and isinstance(hint, type):
            return self.encode, partial(self._object, hint)
        if hint is datetime:
            return encode_instant, lambda key, value: decode_instant(decode_plain(str, key, value))
        if issubclass(hint, StrEnum):
            return str, partial(_choice, hint)
        return as_it_is, decode_number if hint is float else partial(decode_plain, hint)

    def _object(self, of: Any, key: str, value: object) -> Any:
        data: Mapping[str, object] = decode_plain(dict, key, value)
        found = {}
        for part in self.parts(of):
            if part.key in data:
                found[part.name] = part.decode(part.key, data[part.key])
            elif part.is_needed:
                raise ValueError(f"{part.key} is missing")
        return of(**found)


def own_first(of: Any) -> "list[Field[object]]":
    """The fields in their order as data: what identifies an object is defined in its own class."""
    inherited = {each.name for base in of.__bases__ if is_dataclass(base) for each in fields(base)}
    return sorted(fields(of), key=lambda each: each.name in inherited)


def _not_empty(key: str, value: object) -> str:
    if text := decode_plain(str, key, value):
        return str(text)
    raise ValueError(f"{key} is empty")


def _items(decode: Decode, key: str, value: object, *, texts: bool) -> tuple[object, ...]:
    items = value if isinstance(value, tuple) else decode_plain(list, key, value)
    if texts and not all(isinstance(item, str) for item in items):
        raise ValueError(f"{key} must be a list of texts, not {items!r}")
    return tuple(decode(key, item) for item in items)


def _table(decode: Decode, key: str, value: object) -> dict[str, object]:
    table = decode_plain(dict, key, value)
    return {name: decode(f"{key} of {name}", each) for name, each in table.items()}


def _choice(of: type[StrEnum], key: str, value: object) -> StrEnum:
    try:
        return of(value)  # type: ignore[arg-type] # of what is no text, the enumeration says the same
    except ValueError:
        raise ValueError(f"{key} must be one of {', '.join(of)}, not {value!r}") from None


PLAIN: Final = Codec()
"""The fields' own names and values."""
ANSWERS: Final = Codec(of_types={float: (lambda value: round(value, 4), decode_number)})
"""As answers show measurements: with the digits that mean something."""
