"""low < normal < high < critical, however it is written."""

import pytest

from distributed_grid.errors import InvalidRequest
from distributed_grid.model.policies import AllocationPriority


def test_priorities_have_an_order() -> None:
    by_rank = sorted(AllocationPriority, key=lambda p: p.rank)
    assert [str(p) for p in by_rank] == ["low", "normal", "high", "critical"]


@pytest.mark.parametrize("written", ["high", "HIGH", "High", AllocationPriority.HIGH])
def test_a_priority_is_read_in_any_case(written: str) -> None:
    assert AllocationPriority.parse(written) is AllocationPriority.HIGH


@pytest.mark.parametrize("nonsense", ["", "urgent", "1", None])
def test_an_unknown_priority_is_refused_and_told_which_there_are(nonsense: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        AllocationPriority.parse(nonsense)
    assert "low, normal, high, critical" in str(caught.value.try_next)
