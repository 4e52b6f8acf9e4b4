"""From entries to a model: normalises spellings, reports conflicts, and names every mistake at its place."""

from typing import Final, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from distributed_grid.config.entries import Entry, Problem, Steps, dotted
from distributed_grid.model.validators import shown


class Spelling(NamedTuple):
    """Another way to write a setting."""

    other: Steps
    name: Steps


_SHARING: Final = "resource_sharing"

SPELLINGS: Final = (
    Spelling(("cluster_name",), ("name",)),
    Spelling(("cluster", "name"), ("name",)),
    Spelling(("execution", _SHARING), (_SHARING,)),
    # Below, `resource_sharing` is already in its one place.
    Spelling((_SHARING, "rebalance_interval"), (_SHARING, "rebalance_interval_seconds")),
    *(
        Spelling(
            (_SHARING, "pressure_thresholds", kind, level),
            (_SHARING, "thresholds", f"{kind}_pressure_{level}"),
        )
        for kind in ("cpu", "memory", "gpu")
        for level in ("high", "low")
    ),
)


def other_spellings() -> dict[Steps, list[str]]:
    """The keys that each section understands besides its settings' names."""
    known: dict[Steps, list[str]] = {}
    for spelling in SPELLINGS:
        for depth, step in enumerate(spelling.other):
            keys = known.setdefault(spelling.other[:depth], [])
            if str(step) not in keys:
                keys.append(str(step))
    return known


def is_section(path: Steps) -> bool:
    """True for a section that exists only in another spelling, such as `execution`."""
    return any(path == s.other[: len(path)] != s.name[: len(path)] and len(path) < len(s.other) for s in SPELLINGS)


def use_one_spelling(root: Entry) -> list[Problem]:
    """Rewrite the tree in place. Entries keep the path and place under which they were written."""
    problems: list[Problem] = []
    for spelling in SPELLINGS:
        problems += _move(root, spelling)
        _drop_empty_sections(root, spelling.other[:-1])
    return list(dict.fromkeys(problems))


def _move(root: Entry, spelling: Spelling) -> list[Problem]:
    for depth in range(1, len(spelling.other)):
        section = root.find(spelling.other[:depth])
        if section is None or section.value is None:
            return []
        if not isinstance(section.value, dict):
            # A section that the model knows is reported by the model.
            said = f"must be a mapping, not {shown(section.value)}"
            return [Problem(section.path, said, section.place)] if is_section(spelling.other[:depth]) else []
    holder, moved = root.find(spelling.other[:-1]), root.find(spelling.other)
    if holder is None or moved is None:
        return []
    target = _section_for(root, spelling.name[:-1], like=holder)
    if target is None:
        return []
    del holder.section[str(spelling.other[-1])]
    return _put(target.section, str(spelling.name[-1]), moved)


def _section_for(root: Entry, path: Steps, like: Entry) -> Entry | None:
    """The section at `path`, made if it is missing; None if something else is there."""
    section = root
    for step in path:
        child = section.child(step)
        if child is None or child.value is None:
            child = section.section[str(step)] = Entry({}, like.path, like.place)
        if not isinstance(child.value, dict):
            return None
        section = child
    return section


def _drop_empty_sections(root: Entry, path: Steps) -> None:
    """Drop sections of another spelling that are empty, from the start or after their entries moved."""
    for depth in range(len(path), 0, -1):
        holder, section = root.find(path[: depth - 1]), root.find(path[:depth])
        if holder and section and section.value in (None, {}) and is_section(path[:depth]):
            del holder.section[str(path[depth - 1])]


def _put(section: dict[str, Entry], key: str, moved: Entry) -> list[Problem]:
    present = section.get(key)
    if present is None or present.value is None:
        section[key] = moved
        return []
    if moved.value is None or _same(present.plain(), moved.plain()):
        return []
    if isinstance(present.value, dict) and isinstance(moved.value, dict):
        return [problem for name, entry in moved.value.items() for problem in _put(present.value, name, entry)]
    first, second = sorted((present, moved), key=lambda entry: entry.place or (0, 0))
    there = f" at {first.place}" if first.place else ""
    given = f"{_brief(first)} given as {dotted(first.path)}{there}"
    said = f"{_brief(second)} differs from {given}; keep one of them"
    return [Problem(second.path, said, second.place)]


def _same(one: object, other: object) -> bool:
    """Equal also in kind: true is not 1, though Python thinks so."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)


def _brief(entry: Entry) -> str:
    return shown(entry.plain())


M = TypeVar("M", bound=BaseModel)

_EXPECTED = {
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
}


def check(model: type[M], root: Entry) -> tuple[M | None, list[Problem]]:
    """The model that the entries describe, or everything wrong with them. `root` is left in one spelling."""
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
    value: object = found["input"]
    if found["type"] == "missing":
        return "is missing"
    if expected := _EXPECTED.get(found["type"]):
        return f"must be {expected}, not {shown(value)}"
    return str(found["msg"])
