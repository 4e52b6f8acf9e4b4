"""Which Ray is new enough, and versions as numbers to compare."""

import re
from typing import Final

OLDEST_RAY: Final = "2.55"
"""The first that can change a running node's resources."""


def is_new_enough(ray: str | None) -> bool:
    """Whether grid works with that version of Ray; with none at all it does not."""
    return ray is not None and numbers(ray) >= numbers(OLDEST_RAY)


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers: 3.0.0.dev0 is (3, 0, 0)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
