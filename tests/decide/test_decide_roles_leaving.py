"""When a member that is to go may end."""

import math

import pytest

from distributed_grid.decide.roles.scaling import FINISH_S, may_end


@pytest.mark.parametrize(
    ("counted_at", "calls", "now", "may"),
    [
        (99.0, 0, 102.0, False),  # counted before it was to go: calls may have come since
        (100.5, 0, 102.0, False),  # not all callers knew yet
        (101.0, 0, 102.0, True),
        (101.0, 1, 102.0, False),
        (129.0, 1, 129.9, False),
        (129.0, 1, 130.0, True),  # it has had time enough
        (0.0, 0, 130.0, True),  # calls could not be counted
    ],
)
def test_a_member_ends_once_its_calls_were_counted_to_be_over_or_after_half_a_minute(
    counted_at: float, calls: int, now: float, may: bool
) -> None:
    assert may_end(leaving_since=100.0, counted_at=counted_at, calls=calls, now=now, finish_s=FINISH_S) is may


def test_a_member_that_may_take_as_long_as_it_needs_ends_only_once_its_calls_are_over() -> None:
    for calls, counted_at, may in [(1, 9999.0, False), (0, 0.0, False), (0, 101.0, True)]:
        said = {"leaving_since": 100.0, "counted_at": counted_at, "calls": calls, "now": 9999.0}
        assert may_end(**said, finish_s=math.inf) is may
