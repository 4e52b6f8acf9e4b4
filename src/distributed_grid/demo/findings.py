"""A claim, what was really seen, and whether the two agree."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")

_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Finding:
    """One claim after it was checked; all texts are for people."""

    claim: str
    holds: bool
    seen: str
    expected: str


def check(
    claim: str,
    look: Callable[[], T],
    expected: T,
    *,
    within_s: float = 0.0,
    describe: Callable[[T], str] = str,
) -> Finding:
    """Look until it is as expected or the time is up. The last look decides, whatever came before."""
    seen = last_look(look, lambda found: found == expected, within_s)
    return Finding(claim, seen == expected, describe(seen), describe(expected))


def last_look(look: Callable[[], T], good: Callable[[T], bool], within_s: float) -> T:
    """Look again and again until `good`, at most for that long; what was seen last."""
    deadline = time.monotonic() + within_s
    while not good(seen := look()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return seen
