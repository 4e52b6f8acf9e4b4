"""Times as people read them: on their own clock, and how far away."""

from datetime import UTC, datetime

from distributed_grid.model.instants import parse_instant
from distributed_grid.model.since import span


def clock(at: str) -> str:
    """ "14:05:09", with the date where it is not today."""
    local = parse_instant(at).astimezone()
    same_day = local.date() == datetime.now(UTC).astimezone().date()
    return local.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M")


def distance(at: str, now: datetime | None = None) -> str:
    """ "in 29 min", "12 s ago"."""
    left = (parse_instant(at) - (now or datetime.now(UTC))).total_seconds()
    return f"in {span(left)}" if left >= 0 else f"{span(-left)} ago"
