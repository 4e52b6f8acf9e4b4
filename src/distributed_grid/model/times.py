"""Instants and durations as text: ISO 8601 in UTC, and as people write and read them.

Data, and sentences inside data, have instants in UTC (`instant`, `stamp`, `minute`). A person reads them in the zone of
the own machine, which is named each time (`clock`, `local_times`).
"""

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from distributed_grid.errors import InvalidRequest


def instant(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def stamp(at: datetime) -> str:
    """ "2025-06-01T12:00:03Z": an instant within a sentence."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def minute(at: datetime) -> str:
    """ "2025-06-01T12:00Z": an estimate within a sentence."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ")


def parse_instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


_IN_A_SENTENCE: Final = re.compile(r"(?<![\w./:=-])\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(?:\.\d+)?)?Z(?![\w/-])")


def clock(at: datetime, *, now: datetime, seconds: bool = True) -> str:
    """ "14:05:09 CEST": in the zone of this machine, with the date and no seconds if it is not today."""
    here = at.astimezone()
    if here.date() != now.astimezone().date():
        return here.strftime("%Y-%m-%d %H:%M %Z")
    return here.strftime("%H:%M:%S %Z" if seconds else "%H:%M %Z")


def local_times(text: str, *, now: datetime) -> str:
    """The text with the instants that `stamp` or `minute` wrote as `clock` shows them.

    A text that is nothing but an instant stays as it is.
    """

    def shown(found: re.Match[str]) -> str:
        try:
            return clock(parse_instant(found[0]), now=now, seconds=found[1] is not None)
        except (ValueError, OverflowError):
            return found[0]

    return text if _IN_A_SENTENCE.fullmatch(text) else _IN_A_SENTENCE.sub(shown, text)


LENGTHS: Final = "90 (seconds), 30m, 1h30m or 2d"
"""How lengths of time are written, for messages."""
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ?([smhdw]) ?")
_BARE_SECONDS: Final = re.compile(r"\d{1,6}(\.\d{1,6})?")
"""More digits are a date: 20250601."""


def moment(text: str, *, now: datetime, zone: tzinfo | None = UTC) -> datetime:
    """ "2h" is two hours before `now`, "90" is 90 seconds; "2025-06-01T12:00" is that moment.

    `zone`: that of a moment without an offset; None is that of this machine.
    """
    try:
        written = text.strip()
        if (ago := float(written) if _BARE_SECONDS.fullmatch(written) else length(written)) is not None:
            return now - timedelta(seconds=ago)
        at = datetime.fromisoformat(written)
        return (at if at.tzinfo else at.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequest(
            f"{text!r} is neither a length of time nor a moment",
            try_next=f"Give a length of time ({LENGTHS}) or a moment (2025-06-01, 2025-06-01T12:00:00Z).",
        ) from None


def length(text: str) -> float | None:
    """The seconds in "2h" or "1h30m"; None if it is not a length of time with units, the largest first."""
    parts, rest = [], text.strip().lower()
    while found := _PART.match(rest):
        parts.append((float(found[1]), _SECONDS[found[2]]))
        rest = rest[found.end() :]
    units = [unit for _, unit in parts]
    if rest or not parts or units != sorted(set(units), reverse=True):
        return None
    return sum(number * unit for number, unit in parts)


def span(seconds: float) -> str:
    """ "29 min": as precise as people need."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"
