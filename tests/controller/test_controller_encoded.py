"""Answers that are the fields of a dataclass, encoded: the class and the answer's definition say the same.

mypy sees only a cast at these places, so a field that one of the two lacks would not be noticed there.
"""

import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Final, get_args, get_origin, get_type_hints

import pytest
from typing_extensions import is_typeddict

import distributed_grid
from distributed_grid.model.leases import SHOWN, Lease
from distributed_grid.model.scheduling import Placement, SchedulingDecision
from distributed_grid.model.series import Accuracy
from distributed_grid.model.snapshots import Pressure, Reading
from distributed_grid.model.work import Driver, Work
from distributed_grid.wire.boosts import BoostTerms, JobsWork, RayDriver
from distributed_grid.wire.nodes import ForecastAccuracy, Measured, NodePressure
from distributed_grid.wire.scheduling import TaskDecision, TaskPlacement

FIRST_PLACE: Final = {
    name: get_type_hints(Placement)[name] | None
    for name in ("node", "delivery", "lease_id", "boost_id", "placement_group")
}
ENCODED: Final[Mapping[type, dict[str, object]]] = {
    BoostTerms: {name: get_type_hints(Lease)[name] for name in SHOWN},
    ForecastAccuracy: get_type_hints(Accuracy),
    JobsWork: {**get_type_hints(Work), "waits_for_its_actors": bool},
    Measured: {name: hint for name, hint in get_type_hints(Reading).items() if name != "workers"},
    NodePressure: get_type_hints(Pressure),
    RayDriver: get_type_hints(Driver),
    TaskDecision: {**get_type_hints(SchedulingDecision), **FIRST_PLACE},
    TaskPlacement: get_type_hints(Placement),
}


def shape(hint: object) -> object:
    """What JSON of this type looks like. Plain data compares equal if its type has the same keys and values."""
    if is_typeddict(hint) or is_dataclass(hint):
        return {name: shape(each) for name, each in get_type_hints(hint).items()}
    inner = [each for each in get_args(hint) if each is not ...]
    if get_origin(hint) in (tuple, list):
        return [shape(inner[0])]
    if get_origin(hint) in (Mapping, dict):
        return {"each": shape(inner[1])}
    if NoneType in inner:
        return ("or null", *(shape(each) for each in inner if each is not NoneType))
    assert isinstance(hint, type), hint
    return str if issubclass(hint, datetime | StrEnum) else hint


@pytest.mark.parametrize("definition", ENCODED, ids=lambda each: each.__name__)
def test_an_answer_has_the_keys_and_types_of_what_is_encoded(definition: type) -> None:
    assert shape(definition) == {name: shape(hint) for name, hint in ENCODED[definition].items()}


def test_no_other_answer_is_encoded_unchecked() -> None:
    sources = [path.read_text() for path in Path(distributed_grid.__file__).parent.rglob("*.py")]
    casts = [name for text in sources for name in re.findall(r'cast\(\s*"(?:list\[)?(\w+)\]?", [^\n]*encode\(', text)]

    assert {*casts, "BoostTerms"} == {definition.__name__ for definition in ENCODED}
