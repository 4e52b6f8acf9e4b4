"""Instants as text: ISO 8601 in UTC, to the millisecond."""

from datetime import datetime


def instant(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_instant(text: str) -> datetime:
    return datetime.fromisoformat(text)
