"""A configuration as it was written: every value keeps its path and its place in the file."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

Steps = tuple[str | int, ...]


class Place(NamedTuple):
    """A position in a file, counted from 1 as editors do."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong, or worth a warning, at one path."""

    path: Steps
    what: str
    place: Place | None = None

    def line(self, file: str | None = None) -> str:
        """`file:line:column: path: what`, as far as known: editors jump to it."""
        where = ":".join(str(part) for part in (file, self.place) if part is not None)
        return ": ".join(part for part in (where, dotted(self.path), self.what) if part)


@dataclass(slots=True)
class Entry:
    """A value (`dict[str, Entry]`, `list[Entry]` or a scalar) with the path and place it was written at."""

    value: object
    path: Steps = ()
    place: Place | None = None
    key_place: Place | None = None

    @property
    def section(self) -> "dict[str, Entry]":
        """The entries of a mapping; of anything else, none."""
        return self.value if isinstance(self.value, dict) else {}

    def child(self, step: str | int) -> "Entry | None":
        if isinstance(self.value, dict):
            found: Entry | None = self.value.get(step)
            return found
        if isinstance(self.value, list) and isinstance(step, int) and step < len(self.value):
            item: Entry = self.value[step]
            return item
        return None

    def find(self, steps: Steps) -> "Entry | None":
        entry: Entry | None = self
        for step in steps:
            entry = entry.child(step) if entry else None
        return entry

    def nearest(self, steps: Steps) -> "tuple[Entry, Steps]":
        """The deepest entry on the way to `steps`, and the steps that are missing below it."""
        entry = self
        for done, step in enumerate(steps):
            child = entry.child(step)
            if child is None:
                return entry, steps[done:]
            entry = child
        return entry, ()

    def plain(self) -> object:
        """The bare data."""
        if isinstance(self.value, dict):
            return {key: entry.plain() for key, entry in self.value.items()}
        if isinstance(self.value, list):
            return [entry.plain() for entry in self.value]
        return self.value


def entry_of(data: object, path: Steps = ()) -> Entry:
    """Entries for data that came without a file."""
    if isinstance(data, dict):
        return Entry({str(key): entry_of(value, (*path, str(key))) for key, value in data.items()}, path)
    if isinstance(data, list | tuple):
        return Entry([entry_of(value, (*path, index)) for index, value in enumerate(data)], path)
    return Entry(data, path)


def dotted(steps: Steps) -> str:
    """`nodes[1].resource_sharing.priority`, as messages and `grid config show` write a path."""
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def leaves(data: object, path: Steps = ()) -> Iterator[tuple[Steps, object]]:
    """Each setting on its own. A list is one setting, unless it holds mappings (as `nodes` does)."""
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from leaves(value, (*path, key))
    elif isinstance(data, list) and data and all(isinstance(item, dict) for item in data):
        for index, item in enumerate(data):
            yield from leaves(item, (*path, index))
    else:
        yield path, data
