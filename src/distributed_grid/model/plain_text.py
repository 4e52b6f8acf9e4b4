"""Text that others wrote, made safe to show: a terminal must take none of it for an order.

Control characters, escapes, marks that turn the direction of writing, and everything else that cannot be seen is
written out (`\\x1b`, `\\u202e`), so that the reader sees that it is there.
"""

import re
from typing import Any, Final

_STYLE_OR_CHARACTER: Final = re.compile(r"\x1b\[[0-9;]*m|.", re.DOTALL)


def plain(text: str, *, keep: str = "") -> str:
    """The text with everything written out that cannot be seen, but for what is in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


def plain_data(data: Any) -> Any:
    """The same for every text in JSON data."""
    if isinstance(data, str):
        return plain(data)
    if isinstance(data, dict):
        return {plain_data(key): plain_data(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain_data(each) for each in data]
    return data


def only_styled(text: str) -> str:
    """Text of grid's own, whose colours stay and nothing else does: for what is put together from many parts."""
    if text.isprintable():
        return text
    pieces = _STYLE_OR_CHARACTER.findall(text)
    return "".join(piece if len(piece) > 1 else plain(piece, keep="\n\t") for piece in pieces)
