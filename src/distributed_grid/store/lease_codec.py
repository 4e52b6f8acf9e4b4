"""A lease as the plain, readable object that the boost file holds, and back.

The codec follows the fields of `Lease` and of what it holds: a new field needs nothing here, and a file without it
gives the field's default. `units` and `resources` are exact; `amount` and `active` repeat them for the reader and must
agree.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache, partial
from itertools import takewhile
from types import NoneType
from typing import Any, Final, get_args, get_origin, get_type_hints

from distributed_grid.model.leases import Lease, LeaseState, Program
from distributed_grid.model.resources import ResourceVector, amount_of


def _own_first(of: Any) -> "list[Field[object]]":
    """The fields in the order of the file: what identifies an object is defined in its own class."""
    inherited = {each.name for base in of.__bases__ if is_dataclass(base) for each in fields(base)}
    return sorted(fields(of), key=lambda each: each.name in inherited)


_MOST_UNITS: Final = 2**63 - 1
_MOST_SECONDS: Final = 1e12
_KEYS: Final = {
    "source": "source_node",
    "target": "target_node",
    "kind": "resource_type",
    "duration_s": "duration_seconds",
    "grace_s": "grace_seconds",
    "held_by": "placement_group",
}
"""Where the key in the file is not the field's name."""
_NEVER_EMPTY: Final = {Lease: {"id", "source", "target", "kind", "team"}, Program: {"id"}}
WANTED_BACK: Final = "wanted_back"
"""With this key, a lease that is `releasing` is being reclaimed."""
_FIRST_FIELDS: Final = takewhile(lambda name: name != "notice", (each.name for each in _own_first(Lease)))
_FIRST_TERMS: Final = ("requester", "idempotency_key")
ALWAYS_THERE: Final = frozenset(
    {"amount", "active", *(_KEYS.get(name, name) for name in (*_FIRST_FIELDS, *_FIRST_TERMS))}
)
"""The keys that the first grid wrote: a file without one of them is damaged. Later ones may be missing."""
_TYPES: Final = {str: "text", int: "a whole number", bool: "true or false", list: "a list", dict: "an object"}


def encode_lease(lease: Lease) -> dict[str, object]:
    """What goes into the file; `decode_lease` gives an equal lease back, except that a grant comes back interrupted."""
    found: dict[str, object] = {}
    for part in _parts(Lease):
        found[part.key] = part.encode(getattr(lease, part.name))
        if part.name == "kind":
            found["amount"] = amount_of(lease.kind, lease.units)
        elif part.name == "state":
            found |= {"state": lease.state.shown, "active": lease.state is LeaseState.ACTIVE}
            found[WANTED_BACK] = lease.wanted_back
    return found


def decode_lease(data: object) -> Lease:
    """The lease that `data` describes; a `ValueError` names the boost and what is wrong with it.

    Keys that are not known are ignored, so that a later grid may add some. No request completes the grants of a file.
    """
    if not isinstance(data, dict):
        raise ValueError(f"a boost must be an object, not {data!r}")
    try:
        if missing := sorted(ALWAYS_THERE - data.keys()):
            raise ValueError(f"{missing[0]} is missing")
        shown = _plain(str, "state", data["state"])
        if shown == LeaseState.GRANTING:
            data = data | {"state": str(LeaseState.INTERRUPTED)}
        elif shown == LeaseState.RELEASING and _plain(bool, WANTED_BACK, data.get(WANTED_BACK, False)):
            data = data | {"state": str(LeaseState.RECLAIMING)}
        lease: Lease = _decode_object(Lease, "boost", data)
        _agrees("amount", data["amount"], amount_of(lease.kind, lease.units))
        _agrees("active", _plain(bool, "active", data["active"]), lease.state is LeaseState.ACTIVE)
    except ValueError as error:
        raise ValueError(f"boost {data.get('id')!r}: {error}") from None
    return lease


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


# -- by type ---------------------------------------------------------------------------------------------------

_Encode = Callable[[Any], object]
_Decode = Callable[[str, object], Any]
"""From a key, for messages, and its value."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One field of a dataclass, and how it goes into the file."""

    name: str
    key: str
    encode: _Encode
    decode: _Decode
    is_needed: bool


@cache
def _parts(of: Any) -> tuple[_Part, ...]:
    hints = get_type_hints(of)
    return tuple(_part(of, each, hints[each.name]) for each in _own_first(of))


def _part(of: type, each: "Field[object]", hint: Any) -> _Part:
    encode, decode = _codec(hint)
    if each.name in _NEVER_EMPTY.get(of, ()):
        decode = _name
    is_needed = each.default is MISSING and each.default_factory is MISSING
    return _Part(each.name, _KEYS.get(each.name, each.name), encode, decode, is_needed)


def _codec(hint: Any) -> tuple[_Encode, _Decode]:
    inner = [each for each in get_args(hint) if each is not NoneType and each is not ...]
    if get_origin(hint) is tuple:
        encode, decode = _codec(inner[0])
        return (lambda items: [encode(item) for item in items]), partial(_items, decode, texts=inner[0] is str)
    if NoneType in get_args(hint):
        encode, decode = _codec(inner[0])
        return (
            lambda value: None if value is None else encode(value),
            lambda key, value: None if value is None else decode(key, value),
        )
    if hint is ResourceVector:
        return (lambda lent: dict(sorted(lent.items()))), _resources
    if is_dataclass(hint) and isinstance(hint, type):
        return _encode_object, partial(_decode_object, hint)
    if hint is datetime:
        return encode_instant, _instant
    if issubclass(hint, StrEnum):
        return str, partial(_choice, hint)
    return _same, {int: _units, float: _seconds}.get(hint, partial(_plain, hint))


def _same(value: object) -> object:
    return value


def _encode_object(value: Any) -> dict[str, object]:
    return {part.key: part.encode(getattr(value, part.name)) for part in _parts(value.__class__)}


def _decode_object(of: type, key: str, value: object) -> Any:
    data: Mapping[str, object] = _plain(dict, key, value)
    found = {}
    for part in _parts(of):
        if part.key in data:
            found[part.name] = part.decode(part.key, data[part.key])
        elif part.is_needed:
            raise ValueError(f"{part.key} is missing")
    return of(**found)


def _plain(of: type, key: str, value: object) -> Any:
    if type(value) is of:  # not isinstance: JSON's true is no number, though Python's is
        return value
    raise ValueError(f"{key} must be {_TYPES[of]}, not {value!r}")


def _name(key: str, value: object) -> str:
    if name := _plain(str, key, value):
        return str(name)
    raise ValueError(f"{key} is empty")


def _items(decode: _Decode, key: str, value: object, *, texts: bool) -> tuple[object, ...]:
    items = _plain(list, key, value)
    if texts and not all(isinstance(item, str) for item in items):
        raise ValueError(f"{key} must be a list of texts, not {items!r}")
    return tuple(decode(key, item) for item in items)


def _choice(of: type[StrEnum], key: str, value: object) -> StrEnum:
    try:
        return of(_plain(str, key, value))
    except ValueError:
        raise ValueError(f"{key} must be one of {', '.join(of)}, not {value!r}") from None


def _instant(key: str, value: object) -> datetime:
    return decode_instant(_plain(str, key, value))


def _seconds(key: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST_SECONDS:
        return value
    raise ValueError(f"{key} must be a number of seconds, not {value!r}")


def _units(key: str, value: object) -> int:
    units = _plain(int, key, value)
    if 0 < units <= _MOST_UNITS:
        return int(units)
    raise ValueError(f"{key} must be a whole number above zero, not {value!r}")


def _resources(key: str, value: object) -> ResourceVector:
    lent = _plain(dict, key, value)
    return ResourceVector({kind: _units(f"{key} of {kind}", units) for kind, units in lent.items()})


def _agrees(key: str, value: object, expected: object) -> None:
    if value != expected:
        raise ValueError(f"{key} is {value!r}, but the other fields say {expected!r}")
