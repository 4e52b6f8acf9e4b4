"""What may be asked of a run, and how far it is: over tables of records."""

from typing import Any

import pytest
from role_runs import a_member, a_role, a_run

from distributed_grid.decide.roles.runs import Reached, counts_for, reached, short_run
from distributed_grid.errors import GridError, InvalidRequest, RoleNotFound, RoleRunOver
from distributed_grid.model.roles.runs import merged

WORKER = "rollout_worker"


def seen(wanted: int, states: str, pending_command: dict[str, Any] | None = None, **role: Any) -> dict[str, Any]:
    """A run with one role, a letter for each member: u(p), s(tarting), g(one)."""
    names = {"u": "up", "s": "starting", "g": "gone"}
    members = [a_member(WORKER, rank, state=names[letter]) for rank, letter in enumerate(states)]
    return a_run(roles=[a_role(WORKER, 1, 8, up=states.count("u"), **role) | {"wanted": wanted}], members=members) | {
        "pending_command": pending_command
    }


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (seen(3, "uuu"), Reached("rollout_worker: 3 of 3 up", done=True)),
        (seen(3, "uus"), Reached("rollout_worker: 2 of 3 up")),
        (seen(3, "uu"), Reached("rollout_worker: 2 of 3 up", stuck=True)),
        (seen(3, "uuug"), Reached("rollout_worker: 3 of 3 up", done=True)),
        (seen(3, "uuuu"), Reached("rollout_worker: 4 of 3 up")),
        (seen(2, "uu"), Reached("rollout_worker: the run wants 2, not 3", stuck=True)),
        (
            seen(2, "uu", scaling="2 wait, below 4"),
            Reached("rollout_worker: the run wants 2, not 3 (2 wait, below 4)", stuck=True),
        ),
        (
            seen(2, "uu", {"counts": {WORKER: 3}, "down": False, "at": "now"}),
            Reached("rollout_worker: 3 requested; the run has not read the request yet"),
        ),
        (
            seen(3, "uuu", {"counts": {"other": 3}, "down": False, "at": "now"}),
            Reached("rollout_worker: 3 of 3 up", True),
        ),
    ],
)
def test_how_far_a_role_is_on_its_way_to_three(run: dict[str, Any], found: Reached) -> None:
    assert reached(run, WORKER, 3) == found


def test_a_count_within_the_range_is_commanded() -> None:
    assert counts_for(a_run(), WORKER, 4) == {WORKER: 4}
    assert counts_for(a_run(), "trainer", 1) == {"trainer": 1}, "what it has already is no mistake"


@pytest.mark.parametrize(
    ("run", "role", "count", "error"),
    [
        (a_run(), "nobody", 1, RoleNotFound),
        (a_run(), WORKER, 5, InvalidRequest),
        (a_run(), WORKER, 1, InvalidRequest),
        (a_run(), "trainer", 0, InvalidRequest),
        (a_run(state="stopping"), WORKER, 3, RoleRunOver),
        (a_run(state="failed", why="no more"), WORKER, 3, RoleRunOver),
    ],
)
def test_a_command_that_cannot_be_carried_out_says_why(
    run: dict[str, Any], role: str, count: int, error: type[GridError]
) -> None:
    with pytest.raises(error):
        counts_for(run, role, count)


def test_a_run_in_short_has_the_sums_of_its_roles() -> None:
    short = short_run(a_run(roles=[a_role("a", 4, up=1), a_role("b", 2)]))

    assert (short["up"], short["wanted"]) == (3, 6)


def test_without_commands_there_is_none_to_take() -> None:
    assert merged([]) is None
