"""A moment in the past as people write it: how long ago, or when."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from distributed_grid.errors import InvalidRequest

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGO: Final = re.compile(r"(?P<number>\d{1,9}(\.\d{1,6})?) ?(?P<unit>[smhdw])")


def moment(text: str, *, now: datetime) -> datetime:
    """ "2h" is two hours before `now`; "2025-06-01T12:00" is that moment, in UTC if it does not say otherwise."""
    try:
        if ago := _AGO.fullmatch(text.strip().lower()):
            return now - timedelta(seconds=float(ago["number"]) * _SECONDS[ago["unit"]])
        at = datetime.fromisoformat(text.strip())
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequest(
            f"{text!r} is neither a length of time nor a moment",
            try_next="Say how long ago (30s, 15m, 2h, 7d) or when (2025-06-01, 2025-06-01T12:00:00Z).",
        ) from None


def span(seconds: float) -> str:
    """ "29 min": as long as people care."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"
