"""Reads small kernel files with as little effort as Python allows: each reading needs hundreds."""

import os
from collections.abc import Callable

Read = Callable[[str], str | None]
"""The text of a file, or None if it is missing or unreadable."""


def read_text(path: str) -> str | None:
    """The text of a kernel file; None if it is missing or not permitted."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(descriptor, 65536):
            parts.append(part)
        return b"".join(parts).decode(errors="replace")
    except OSError:  # the process ended while its file was read
        return None
    finally:
        os.close(descriptor)


def numbers(text: str | None) -> dict[str, int]:
    """The values of lines like `name 12` or `name: 12 kB`, with kB converted to bytes."""
    found = {}
    for line in (text or "").splitlines():
        words = line.replace(":", " ").split()
        if len(words) > 1 and words[1].isdigit():
            found[words[0]] = int(words[1]) * (1024 if words[2:3] == ["kB"] else 1)
    return found
