"""A moment in the past as people write it."""

from datetime import UTC, datetime, timedelta

import pytest

from distributed_grid.errors import InvalidRequest
from distributed_grid.model.times import LENGTHS, length, moment

NOON = datetime(2025, 6, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("0s", NOON),
        ("0", NOON),
        ("90", NOON - timedelta(seconds=90)),
        (" 1.5 ", NOON - timedelta(seconds=1.5)),
        ("604800", NOON - timedelta(days=7)),
        ("30s", NOON - timedelta(seconds=30)),
        ("15m", NOON - timedelta(minutes=15)),
        ("2h", NOON - timedelta(hours=2)),
        ("1.5 h", NOON - timedelta(minutes=90)),
        ("7d", NOON - timedelta(days=7)),
        ("2W", NOON - timedelta(weeks=2)),
        ("2025-05-31", datetime(2025, 5, 31, tzinfo=UTC)),
        ("20250531", datetime(2025, 5, 31, tzinfo=UTC)),
        ("2025-06-01T10:00", datetime(2025, 6, 1, 10, tzinfo=UTC)),
        ("2025-06-01T10:00:00Z", datetime(2025, 6, 1, 10, tzinfo=UTC)),
        ("2025-06-01T12:00:00+02:00", datetime(2025, 6, 1, 10, tzinfo=UTC)),
    ],
)
def test_how_long_ago_or_when(text: str, at: datetime) -> None:
    assert moment(text, now=NOON) == at


@pytest.mark.parametrize(
    "text", ["", "h", "-2h", "2 fortnights", "yesterday", "999999999w", "2025-13-01", "20251301", "-90", "nan"]
)
def test_anything_else_says_what_can_be_said(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        moment(text, now=NOON)
    assert LENGTHS in (caught.value.try_next or "")


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("12h", 43200), (" 1.5 D ", 129600), ("2w", 1209600), ("30", None), ("h", None)]
)
def test_a_length_of_time_has_a_unit(text: str, seconds: float | None) -> None:
    assert length(text) == seconds
