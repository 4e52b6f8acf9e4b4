"""Text from outside, made safe to show: a terminal must not interpret any of it.

Control characters, escapes, direction marks and all other invisible characters are written out (`\\x1b`, `\\u202e`), so
that the reader sees that they are there.
"""

import re
from typing import Final, TypeVar, cast

T = TypeVar("T")

_STYLE_OR_CHARACTER: Final = re.compile(r"\x1b\[[0-9;]*m|.", re.DOTALL)


def plain(text: str, *, keep: str = "") -> str:
    """The text with all invisible characters written out, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


def plain_data(data: T) -> T:
    """`plain` for every text in JSON data."""
    return cast(T, _plain_data(data))


def _plain_data(data: object) -> object:
    if isinstance(data, str):
        return plain(data)
    if isinstance(data, dict):
        return {_plain_data(key): _plain_data(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain_data(each) for each in data]
    return data


def only_styled(text: str) -> str:
    """Grid's own text, made of many parts: its colours stay, all other invisible characters are written out."""
    if text.isprintable():
        return text
    pieces = _STYLE_OR_CHARACTER.findall(text)
    return "".join(piece if len(piece) > 1 else plain(piece, keep="\n\t") for piece in pieces)
