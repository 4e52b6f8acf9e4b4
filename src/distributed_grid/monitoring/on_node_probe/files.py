"""Small files of the kernel, read with as little effort as Python allows: there are hundreds in each reading."""

import os
from collections.abc import Callable

Read = Callable[[str], str | None]
"""The text of a file, or None if there is none that may be read."""


def read_text(path: str) -> str | None:
    """The text of a file of the kernel; None if it is not there, or not for us."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(descriptor, 65536):
            parts.append(part)
        return b"".join(parts).decode(errors="replace")
    except OSError:  # a process that ends while it is read
        return None
    finally:
        os.close(descriptor)


def numbers(text: str | None) -> dict[str, int]:
    """What lines like `name 12` or `name: 12 kB` say; kB become bytes."""
    found = {}
    for line in (text or "").splitlines():
        words = line.replace(":", " ").split()
        if len(words) > 1 and words[1].isdigit():
            found[words[0]] = int(words[1]) * (1024 if words[2:3] == ["kB"] else 1)
    return found
