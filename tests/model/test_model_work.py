"""What a program does in its lease, summed up."""

import pytest

from distributed_grid.model.work import Work, together


@pytest.mark.parametrize(
    ("unplaced", "held", "in_use", "waits"),
    [
        (1, 2.0, 2.0, True),
        (1, 3.0, 2.0, True),  # an actor has just begun
        (0, 2.0, 2.0, False),
        (1, 1.0, 2.0, False),  # a task runs, and will end
        (1, 0.0, 0.0, False),  # nothing runs yet
    ],
)
def test_work_waits_for_itself_if_its_own_actors_hold_all_that_is_in_use(
    unplaced: int, held: float, in_use: float, waits: bool
) -> None:
    parts = [Work(unplaced=unplaced, held_by_actors=held / 2), Work(held_by_actors=held / 2)]

    assert together(parts, in_use).waits_for_its_actors is waits
