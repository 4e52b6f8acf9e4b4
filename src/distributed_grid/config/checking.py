"""Entries to a model, with every mistake put in words and in its place."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from distributed_grid.config.entries import Entry, Problem, Steps
from distributed_grid.config.spelling import use_one_spelling
from distributed_grid.config.values import shown

M = TypeVar("M", bound=BaseModel)

_EXPECTED = {
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
}


def check(model: type[M], root: Entry) -> tuple[M | None, list[Problem]]:
    """The model that the entries describe, or all that is wrong with them. `root` is left in one spelling."""
    problems = use_one_spelling(root)
    config: M | None = None
    try:
        config = model.model_validate(root.plain())
    except ValidationError as error:
        problems += [_problem(found, root) for found in error.errors(include_url=False)]
    return (None if problems else config), problems


def _problem(found: ErrorDetails, root: Entry) -> Problem:
    steps: Steps = found["loc"]
    is_key = steps[-1:] == ("[key]",)
    entry, missing = root.nearest(steps[:-1] if is_key else steps)
    beside = found.get("ctx", {}).get("beside")
    if missing and beside and (sibling := entry.child(beside)):
        entry, missing = sibling, ()
    return Problem((*entry.path, *missing), _said(found), entry.key_place if is_key else entry.place)


def _said(found: ErrorDetails) -> str:
    value: Any = found["input"]
    if found["type"] == "missing":
        return "is missing"
    if expected := _EXPECTED.get(found["type"]):
        return f"must be {expected}, not {shown(value)}"
    return str(found["msg"])
