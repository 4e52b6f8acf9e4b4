"""A lease as the plain, readable object that the boost file holds, and back.

`units` and `resources` are exact; `amount` and `active` repeat them for the reader and must agree.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, TypeVar

from distributed_grid.model.endings import Claimant, EndCause, Ending
from distributed_grid.model.leases import Cause, Delivery, Lease, LeaseState, Notice, OnGraceEnd, Program, Purpose
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.resources import ResourceVector, amount_of
from distributed_grid.model.teams import DEFAULT_TEAM

_T = TypeVar("_T")
_E = TypeVar("_E", bound=StrEnum)

_MOST_UNITS: Final = 2**63 - 1
_MOST_SECONDS: Final = 1e12
ADDED_LATER: Final[Mapping[str, object]] = {
    "team": DEFAULT_TEAM,
    "cause": Cause.ASKED.value,
    "wanted_back": False,
    "reclaim_hook": None,
    "notice": None,
    "checkpointed_at": None,
    "purpose": Purpose.BOOST.value,
    "label": "",
    "ends_with": None,
    "ending": None,
    "programs": [],
}
_NAMES: Final = {str: "text", int: "a whole number", bool: "true or false", list: "a list", dict: "an object"}


def encode_lease(lease: Lease) -> dict[str, object]:
    """What goes into the file; `decode_lease` gives an equal lease back."""
    return {
        "id": lease.id,
        "source_node": lease.source,
        "target_node": lease.target,
        "resource_type": lease.kind,
        "amount": amount_of(lease.kind, lease.units),
        "units": lease.units,
        "resources": dict(sorted(lease.resources.items())),
        "priority": lease.priority.value,
        "delivery": lease.delivery.value,
        "delivery_reason": lease.delivery_reason,
        "state": lease.state.value,
        "active": lease.state is LeaseState.ACTIVE,
        "allocated_at": encode_instant(lease.allocated_at),
        "expires_at": encode_instant(lease.expires_at),
        "duration_seconds": lease.duration_s,
        "grace_seconds": lease.grace_s,
        "on_grace_end": lease.on_grace_end.value,
        "requester": lease.requester,
        "idempotency_key": lease.idempotency_key,
        "placement_group": lease.placement_group,
        "release_reason": lease.release_reason,
        "release_asked_at": _encode_maybe(lease.release_asked_at),
        "warnings": list(lease.warnings),
        "team": lease.team,
        "cause": lease.cause.value,
        "wanted_back": lease.wanted_back,
        "reclaim_hook": lease.reclaim_hook,
        "notice": None if lease.notice is None else _encode_notice(lease.notice),
        "checkpointed_at": _encode_maybe(lease.checkpointed_at),
        "purpose": lease.purpose.value,
        "label": lease.label,
        "ends_with": lease.ends_with,
        "ending": None if lease.ending is None else _encode_ending(lease.ending),
        "programs": [
            {"id": program.id, "label": program.label, "until": encode_instant(program.until)}
            for program in lease.programs
        ],
    }


def _encode_ending(ending: Ending) -> dict[str, object]:
    claimant = ending.claimant
    return {
        "cause": ending.cause.value,
        "by": ending.by,
        "claimant": None
        if claimant is None
        else {
            "request_id": claimant.request_id,
            "requester": claimant.requester,
            "team": claimant.team,
            "priority": claimant.priority.value,
            "wants": claimant.wants,
        },
    }


def _encode_notice(notice: Notice) -> dict[str, object]:
    return {
        "units": notice.units,
        "reason": notice.reason,
        "asked_at": encode_instant(notice.asked_at),
        "deadline": encode_instant(notice.deadline),
    }


def _encode_maybe(at: datetime | None) -> str | None:
    return None if at is None else encode_instant(at)


def decode_lease(data: object) -> Lease:
    """The lease that `data` describes; a `ValueError` names the boost and what is wrong with it.

    Every key of `encode_lease` must be there, except those that the first grid did not write. Others are ignored, so
    that a later grid may add some.
    """
    if not isinstance(data, dict):
        raise ValueError(f"a boost must be an object, not {data!r}")
    try:
        return _lease({**ADDED_LATER, **data})
    except ValueError as error:
        raise ValueError(f"boost {data.get('id')!r}: {error}") from None


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


def _lease(data: Mapping[str, object]) -> Lease:
    kind, units = _name(data, "resource_type"), _units("units", _get(data, "units", int))
    state = _choice(data, "state", LeaseState)
    _agrees("amount", _value(data, "amount"), amount_of(kind, units))
    _agrees("active", _get(data, "active", bool), state is LeaseState.ACTIVE)
    return Lease(
        id=_name(data, "id"),
        source=_name(data, "source_node"),
        target=_name(data, "target_node"),
        kind=kind,
        units=units,
        resources=_resources(data),
        priority=_choice(data, "priority", AllocationPriority),
        delivery=_choice(data, "delivery", Delivery),
        delivery_reason=_get(data, "delivery_reason", str),
        state=state,
        allocated_at=decode_instant(_get(data, "allocated_at", str)),
        expires_at=decode_instant(_get(data, "expires_at", str)),
        duration_s=_seconds(data, "duration_seconds"),
        grace_s=_seconds(data, "grace_seconds"),
        on_grace_end=_choice(data, "on_grace_end", OnGraceEnd),
        requester=_get(data, "requester", str),
        idempotency_key=_text_or_none(data, "idempotency_key"),
        placement_group=_text_or_none(data, "placement_group"),
        release_reason=_text_or_none(data, "release_reason"),
        release_asked_at=_instant_or_none(data, "release_asked_at"),
        warnings=_texts(data, "warnings"),
        team=_name(data, "team"),
        cause=_choice(data, "cause", Cause),
        wanted_back=_get(data, "wanted_back", bool),
        reclaim_hook=_text_or_none(data, "reclaim_hook"),
        notice=None if data["notice"] is None else _notice(_get(data, "notice", dict)),
        checkpointed_at=_instant_or_none(data, "checkpointed_at"),
        purpose=_choice(data, "purpose", Purpose),
        label=_get(data, "label", str),
        ends_with=_text_or_none(data, "ends_with"),
        ending=None if data["ending"] is None else _ending(_get(data, "ending", dict)),
        programs=tuple(_program(each) for each in _get(data, "programs", list)),
    )


def _ending(data: Mapping[str, object]) -> Ending:
    claimant = None if _value(data, "claimant") is None else _get(data, "claimant", dict)
    return Ending(
        cause=_choice(data, "cause", EndCause),
        by=_get(data, "by", str),
        claimant=None if claimant is None else _claimant(claimant),
    )


def _claimant(data: Mapping[str, object]) -> Claimant:
    return Claimant(
        request_id=_get(data, "request_id", str),
        requester=_get(data, "requester", str),
        team=_get(data, "team", str),
        priority=_choice(data, "priority", AllocationPriority),
        wants=_get(data, "wants", str),
    )


def _program(data: object) -> Program:
    if not isinstance(data, dict):
        raise ValueError(f"a program must be an object, not {data!r}")
    return Program(_name(data, "id"), _get(data, "label", str), decode_instant(_get(data, "until", str)))


def _notice(data: Mapping[str, object]) -> Notice:
    return Notice(
        units=_units("units", _get(data, "units", int)),
        reason=_get(data, "reason", str),
        asked_at=decode_instant(_get(data, "asked_at", str)),
        deadline=decode_instant(_get(data, "deadline", str)),
    )


def _instant_or_none(data: Mapping[str, object], key: str) -> datetime | None:
    return None if (at := _text_or_none(data, key)) is None else decode_instant(at)


def _value(data: Mapping[str, object], key: str) -> object:
    if key not in data:
        raise ValueError(f"{key} is missing")
    return data[key]


def _get(data: Mapping[str, object], key: str, of: type[_T]) -> _T:
    value = _value(data, key)
    if type(value) is of:  # not isinstance: JSON's true is no number, though Python's is
        return value
    raise ValueError(f"{key} must be {_NAMES[of]}, not {value!r}")


def _name(data: Mapping[str, object], key: str) -> str:
    if name := _get(data, key, str):
        return name
    raise ValueError(f"{key} is empty")


def _text_or_none(data: Mapping[str, object], key: str) -> str | None:
    return None if _value(data, key) is None else _get(data, key, str)


def _texts(data: Mapping[str, object], key: str) -> tuple[str, ...]:
    texts = _get(data, key, list)
    if all(isinstance(text, str) for text in texts):
        return tuple(texts)
    raise ValueError(f"{key} must be a list of texts, not {texts!r}")


def _choice(data: Mapping[str, object], key: str, of: type[_E]) -> _E:
    value = _get(data, key, str)
    try:
        return of(value)
    except ValueError:
        raise ValueError(f"{key} must be one of {', '.join(of)}, not {value!r}") from None


def _seconds(data: Mapping[str, object], key: str) -> float:
    value = _value(data, key)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST_SECONDS:
        return value
    raise ValueError(f"{key} must be a number of seconds, not {value!r}")


def _units(key: str, value: object) -> int:
    if type(value) is int and 0 < value <= _MOST_UNITS:
        return value
    raise ValueError(f"{key} must be a whole number above zero, not {value!r}")


def _resources(data: Mapping[str, object]) -> ResourceVector:
    lent = _get(data, "resources", dict)
    return ResourceVector({kind: _units(f"resources of {kind}", units) for kind, units in lent.items()})


def _agrees(key: str, value: object, expected: object) -> None:
    if value != expected:
        raise ValueError(f"{key} is {value!r} where the rest says {expected!r}")
