"""Keys that grid does not know: kept, not used, and said so, since most of them are typing mistakes."""

from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel

from distributed_grid.config.entries import Entry, Problem, Steps
from distributed_grid.config.spelling import is_section, other_spellings
from distributed_grid.config.values import did_you_mean


def unknown_keys(model: type[BaseModel], root: Entry) -> list[Problem]:
    """A warning for each, in file order. Expects entries in one spelling."""
    found = list(_in_section(model, root, ()))
    return sorted(found, key=lambda problem: problem.place or (0, 0))


def _in_section(model: type[BaseModel] | None, entry: Entry, path: Steps) -> Iterable[Problem]:
    if not isinstance(entry.value, dict):
        return
    fields = model.model_fields if model else {}
    known = [*fields, *other_spellings().get(path, ())]
    for key, child in entry.value.items():
        if key in fields:
            nested = _model_in(fields[key].annotation)
            if nested and isinstance(child.value, list):
                for index, item in enumerate(child.value):
                    yield from _in_section(nested, item, (*path, key, index))
            elif nested:
                yield from _in_section(nested, child, (*path, key))
        elif is_section((*path, key)):
            yield from _in_section(None, child, (*path, key))
        else:
            said = f"unknown key {key!r} (kept, not used){did_you_mean(key, known)}"
            yield Problem(child.path, said, child.key_place)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of a section, or of a list's items."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part))), None)
