"""YAML text as entries.

The file is composed, not constructed: YAML's own nodes know the place of every key and value (including those that
come in through an alias or a merge key), and nothing stops at the first duplicate key.
"""

from typing import Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from distributed_grid.config.entries import Entry, Place, Problem, Steps

_TAG: Final = "tag:yaml.org,2002:"
_DEEPEST: Final = 50
_MOST_VALUES: Final = 100_000
"""Aliases of aliases can make a small file enormous; no real cluster needs more than this."""


class _TooMuch(Exception):
    """The file unfolds without end, or nearly so."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.what)
        self.problem = problem


def read_tree(text: str, needs: str = "nodes") -> tuple[Entry | None, list[Problem]]:
    """The file's entries, and everything wrong with its YAML. None if the file holds no mapping.

    `needs`: the key that such a file has at least.
    """
    try:
        root = _compose(text)
        if root is None or _is_empty(root):
            return None, [_at_top(f"the file is empty; it needs at least `{needs}:`")]
        if not isinstance(root, MappingNode):
            kind = "a list" if isinstance(root, SequenceNode) else "a single value"
            return None, [_at_top(f"must be a mapping such as `{needs}: [...]`, not {kind}", _start(root))]
        reader = _Reader()
        return reader.entry(root, ()), reader.problems
    except MarkedYAMLError as error:
        return None, [_syntax(error)]
    except ReaderError as error:
        said = f"the character {error.character!r} is not allowed"
        return None, [Problem(("syntax",), said, place_at(text, error.position))]
    except YAMLError as error:
        return None, [Problem(("syntax",), str(error), Place(1, 1))]
    except RecursionError:
        return None, [_at_top("is nested too deeply")]
    except _TooMuch as error:
        return None, [error.problem]


def place_at(text: str, offset: int) -> Place:
    before = text[:offset]
    return Place(before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)


def _compose(text: str) -> Node | None:
    yaml = YAML(typ="safe", pure=True)
    yaml.composer.warn_double_anchors = False  # YAML allows an anchor to be redefined
    node: Node | None = yaml.compose(text)
    return node


class _Reader:
    """Turns YAML nodes into entries and collects what is wrong on the way."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._scalars = YAML(typ="safe", pure=True).constructor
        self._count = 0

    def entry(self, node: Node, path: Steps, key_place: Place | None = None) -> Entry:
        place = key_place if key_place and _is_empty(node) else _start(node)
        self._count += 1
        if len(path) > _DEEPEST:
            raise _TooMuch(Problem(path[:3], "is nested too deeply, or contains itself", place))
        if self._count > _MOST_VALUES:
            raise _TooMuch(Problem(path[:3], f"aliases unfold to more than {_MOST_VALUES:,} values", place))
        return Entry(self._value(node, path), path, place, key_place)

    def _value(self, node: Node, path: Steps) -> object:
        known = ("map",) if isinstance(node, MappingNode) else ("seq",) if isinstance(node, SequenceNode) else _SCALARS
        if _kind(node) not in known:
            self._wrong(path, f"the tag {_shown_tag(node)} is not known here; write the plain value", node)
            return None
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self.entry(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: MappingNode, path: Steps) -> dict[str, Entry]:
        own: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        for key, value in node.value:
            if _kind(key) == "merge":
                for name, entry in self._merged(value, path).items():
                    merged.setdefault(name, entry)
            elif not isinstance(key, ScalarNode):
                self._wrong(path, "a key must be a single word, not a list or a mapping", key)
            elif key.value in own:
                first = own[key.value].key_place
                self._wrong((*path, key.value), f"the key {key.value!r} is given twice, first at {first}", key)
            else:
                own[key.value] = self.entry(value, (*path, key.value), _start(key))
        return own | {name: entry for name, entry in merged.items() if name not in own}

    def _merged(self, node: Node, path: Steps) -> dict[str, Entry]:
        """The entries that `<<:` brings in: of a list of mappings, the earlier ones win."""
        sources = node.value if isinstance(node, SequenceNode) else [node]
        found: dict[str, Entry] = {}
        for source in sources:
            if not isinstance(source, MappingNode):
                self._wrong((*path, "<<"), "must name a mapping, such as <<: *anchor", source)
                continue
            for name, entry in self.entry(source, path).section.items():
                found.setdefault(name, entry)
        return found

    def _scalar(self, node: Node, path: Steps) -> object:
        kind = _kind(node)
        if kind in _AS_TEXT:
            return node.value
        if kind == "null":
            return None
        try:
            return getattr(self._scalars, f"construct_yaml_{kind}")(node)
        except (ValueError, KeyError, IndexError):
            shown = node.value if len(node.value) <= 20 else f"{node.value[:20]}..."
            self._wrong(path, f"{shown!r} cannot be read as a YAML {kind}", node)
            return None

    def _wrong(self, path: Steps, what: str, node: Node) -> None:
        self.problems.append(Problem(path, what, _start(node)))


_AS_TEXT: Final = ("str", "timestamp", "value", "merge")
_SCALARS: Final = (*_AS_TEXT, "null", "bool", "int", "float")


def _kind(node: Node) -> str:
    return str(node.tag).removeprefix(_TAG)


def _shown_tag(node: Node) -> str:
    tag = str(node.tag)
    return f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag


def _is_empty(node: Node) -> bool:
    return isinstance(node, ScalarNode) and _kind(node) == "null" and not node.value


def _start(node: Node) -> Place:
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)


def _at_top(what: str, place: Place | None = None) -> Problem:
    return Problem(("top level",), what, place or Place(1, 1))


def _syntax(error: MarkedYAMLError) -> Problem:
    said = str(error.problem)
    if "'\\t'" in said:
        said += " (YAML is indented with spaces, not tabs)"
    if error.context and error.context_mark:
        begun = Place(error.context_mark.line + 1, error.context_mark.column + 1)
        said += f" ({error.context} that begins at {begun})"
    mark = error.problem_mark or error.context_mark
    return Problem(("syntax",), said, Place(mark.line + 1, mark.column + 1) if mark else Place(1, 1))
