"""A lease as the plain, readable object that the boost file holds, and back.

It follows the fields of `Lease` and of what it holds (`model.codec`). `units` and `resources` are exact; `amount` and
`active` repeat them for the reader and must agree.
"""

from itertools import takewhile
from typing import Final

from distributed_grid.model.codec import Codec, as_it_is, decode_plain, own_first
from distributed_grid.model.leases import Lease, LeaseState, Program
from distributed_grid.model.resources import ResourceVector, amount_of

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
_NOT_KEPT: Final = frozenset({"idle", "grown"})
"""Only known from measurements of this process, or from other leases."""
RECLAIMED: Final = "wanted_back"
"""With this key, a lease that is `releasing` is being reclaimed."""
_FIRST_FIELDS: Final = takewhile(lambda name: name != "notice", (each.name for each in own_first(Lease)))
_FIRST_TERMS: Final = ("requester", "idempotency_key")
ALWAYS_THERE: Final = frozenset(
    {"amount", "active", *(_KEYS.get(name, name) for name in (*_FIRST_FIELDS, *_FIRST_TERMS))}
)
"""The keys that the first grid wrote: a file without one of them is damaged. Later ones may be missing."""


def encode_lease(lease: Lease) -> dict[str, object]:
    """The lease as the file holds it; `decode_lease` returns an equal lease, except that a grant comes back
    interrupted, and that no lease is known to be idle."""
    found: dict[str, object] = {}
    for part in _FILE.parts(Lease):
        if part.name in _NOT_KEPT:
            continue
        found[part.key] = part.encode(getattr(lease, part.name))
        if part.name == "kind":
            found["amount"] = amount_of(lease.kind, lease.units)
        elif part.name == "state":
            found |= {"state": lease.state.shown, "active": lease.state is LeaseState.ACTIVE}
            found[RECLAIMED] = lease.is_reclaimed
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
        shown = decode_plain(str, "state", data["state"])
        if shown == LeaseState.GRANTING:
            data = data | {"state": str(LeaseState.INTERRUPTED)}
        elif shown == LeaseState.RELEASING and decode_plain(bool, RECLAIMED, data.get(RECLAIMED, False)):
            data = data | {"state": str(LeaseState.RECLAIMING)}
        lease = _FILE.decode(Lease, {key: value for key, value in data.items() if key not in _NOT_KEPT}, "boost")
        _agrees("amount", data["amount"], amount_of(lease.kind, lease.units))
        _agrees("active", decode_plain(bool, "active", data["active"]), lease.state is LeaseState.ACTIVE)
    except ValueError as error:
        raise ValueError(f"boost {data.get('id')!r}: {error}") from None
    return lease


def _seconds(key: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST_SECONDS:
        return value
    raise ValueError(f"{key} must be a number of seconds, not {value!r}")


def _units(key: str, value: object) -> int:
    units = decode_plain(int, key, value)
    if 0 < units <= _MOST_UNITS:
        return int(units)
    raise ValueError(f"{key} must be a whole number above zero, not {value!r}")


def _resources(key: str, value: object) -> ResourceVector:
    lent = decode_plain(dict, key, value)
    return ResourceVector({kind: _units(f"{key} of {kind}", units) for kind, units in lent.items()})


def _agrees(key: str, value: object, expected: object) -> None:
    if value != expected:
        raise ValueError(f"{key} is {value!r}, but the other fields say {expected!r}")


_FILE: Final = Codec(
    keys=_KEYS,
    of_types={
        int: (as_it_is, _units),
        float: (as_it_is, _seconds),
        ResourceVector: (lambda lent: dict(sorted(lent.items())), _resources),
    },
    never_empty={Lease: {"id", "source", "target", "kind", "team"}, Program: {"id"}},
)
