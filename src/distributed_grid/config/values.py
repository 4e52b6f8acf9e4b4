"""The kinds of value a setting can have: each checks itself and says in plain words what is wrong."""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Annotated, TypeVar

from pydantic import BeforeValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from distributed_grid.errors import InvalidRequest, UnknownResource
from distributed_grid.model.principals import TEAM_PREFIX, check_name, check_team
from distributed_grid.model.resources import BUILT_IN, CPU, GPU, MEMORY, kind_of, units_of
from distributed_grid.model.validators import (
    Number,
    Wrong,
    above_zero,
    amount_or_none,
    flag,
    interval,
    is_plain_word,
    number,
    port,
    shown,
    whole,
    word,
    zero_or_more,
)

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")


def wrong(said: str, **context: object) -> PydanticCustomError:
    """A validation error with exactly this message."""
    return PydanticCustomError("grid", "{said}", {"said": said, **context})


def units(kind: str, amount: Number) -> int:
    """An amount in the model's exact units; unlike a request's amount, it may be zero."""
    return units_of(kind, amount) if amount else 0


def said(check: Callable[[object], T]) -> Callable[[object], T]:
    """Wrap a check of the model as the validator of a setting; the message stays the same."""

    def checked(value: object) -> T:
        try:
            return check(value)
        except Wrong as error:
            raise wrong(str(error)) from None

    return checked


def _count(kind: str) -> Callable[[object], int]:
    return lambda value: whole(amount_or_none(kind, value))


def _amount(kind: str) -> Callable[[object], Number]:
    return partial(amount_or_none, kind)


def _wait(value: object) -> Number:
    return interval(value, zero_allowed=True)


def _fraction(value: object) -> Number:
    found = number(value)
    if not 0 <= found <= 1:
        raise Wrong(f"must be between 0 and 1, not {found}")
    return found


def _text(value: object) -> str:
    if isinstance(value, bool | int | float):
        raise wrong(f'must be text, not {shown(value)}; quotes make it text: "{value}"')
    if not isinstance(value, str):
        raise wrong(f"must be text, not {shown(value)}")
    if not value.strip():
        raise wrong("must not be empty")
    return value


def _node_name(value: object) -> str:
    name = _text(value)
    if not is_plain_word(name):
        raise wrong(f"must not contain spaces or '/', but is {name!r}")
    return name


def _node_owner(value: object) -> str:
    """The user of a token, or a whole team."""
    name = value if isinstance(value, str) else ""
    of_team = name.removeprefix(TEAM_PREFIX)
    try:
        if not of_team:
            raise wrong(f"must be the name of a token's user, or {TEAM_PREFIX}NAME for a team, not {shown(value)}")
        return f"{TEAM_PREFIX}{check_team(of_team)}" if of_team != name else check_name(name)
    except InvalidRequest as error:
        raise wrong(f"{error.message}; name a token's user, or a team as {TEAM_PREFIX}NAME") from None


def _resource_name(value: object) -> str:
    name = _text(value)
    try:
        kind = kind_of(name)
    except UnknownResource:
        raise wrong(f"{name!r} is reserved by Ray; choose another name") from None
    if kind in BUILT_IN:
        field = {CPU: "cpu_count", GPU: "gpu_count", MEMORY: "memory_gb"}[kind]
        raise wrong(f"{name!r} is not a custom resource; set the node's {field} instead")
    return kind


def one_of(options: type[E]) -> BeforeValidator:
    """A word out of a fixed few."""
    return BeforeValidator(said(word(options)))


def _empty_as(nothing: Callable[[], object]) -> BeforeValidator:
    return BeforeValidator(lambda value: nothing() if value is None else value)


# A key with nothing after it (`thresholds:`) is a section that was left empty.
EmptySection = _empty_as(dict)
EmptyList = _empty_as(tuple)

_NotNegative = Annotated[float, Field(ge=0)]
_Whole = Annotated[int, Field(ge=0)]
_AtMostOne = Annotated[float, Field(ge=0, le=1)]
_AboveZero = Annotated[float, Field(gt=0)]
_Length = Annotated[str, Field(pattern=r"^([0-9]+(\.[0-9]+)? ?[smhdw]? ?)+$")]
_NotEmpty = Annotated[str, Field(min_length=1)]
_NodeName = Annotated[str, Field(pattern=r"^[^\s/]+$")]
_Port = Annotated[int, Field(ge=1, le=65535)]

Flag = Annotated[bool, PlainValidator(said(flag), json_schema_input_type=bool)]
Text = Annotated[str, PlainValidator(_text, json_schema_input_type=_NotEmpty)]
NodeNameText = Annotated[str, PlainValidator(_node_name, json_schema_input_type=_NodeName)]
NodeOwner = Annotated[str, PlainValidator(_node_owner, json_schema_input_type=_NotEmpty)]
ResourceName = Annotated[str, PlainValidator(_resource_name, json_schema_input_type=_NotEmpty)]
Count = Annotated[int, PlainValidator(said(_count("custom")), json_schema_input_type=_Whole)]
Port = Annotated[int, PlainValidator(said(port), json_schema_input_type=_Port)]
CpuCount = Annotated[int, PlainValidator(said(_count(CPU)), json_schema_input_type=_Whole)]
GpuCount = Annotated[int, PlainValidator(said(_count(GPU)), json_schema_input_type=_Whole)]
Cpus = Annotated[Number, PlainValidator(said(_amount(CPU)), json_schema_input_type=_NotNegative)]
Gpus = Annotated[Number, PlainValidator(said(_amount(GPU)), json_schema_input_type=_NotNegative)]
Gigabytes = Annotated[Number, PlainValidator(said(_amount(MEMORY)), json_schema_input_type=_NotNegative)]
CustomAmount = Annotated[Number, PlainValidator(said(_amount("custom")), json_schema_input_type=_NotNegative)]
Weight = Annotated[Number, PlainValidator(said(zero_or_more), json_schema_input_type=_NotNegative)]
PerSecond = Annotated[Number, PlainValidator(said(above_zero), json_schema_input_type=_AboveZero)]
Fraction = Annotated[Number, PlainValidator(said(_fraction), json_schema_input_type=_AtMostOne)]
Interval = Annotated[Number, PlainValidator(said(interval), json_schema_input_type=_AboveZero | _Length)]
Wait = Annotated[Number, PlainValidator(said(_wait), json_schema_input_type=_NotNegative | _Length)]
