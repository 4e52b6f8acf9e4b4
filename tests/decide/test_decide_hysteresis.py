"""Pressure begins at high and ends at low; in between nothing changes."""

from builders import NOON, amounts
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.decide.monitoring.pressure import Pressed, Threshold, combined, pressure_changes
from distributed_grid.model.snapshots import NodeSnapshot

THRESHOLDS = dict.fromkeys(("cpu", "memory", "gpu"), Threshold(low=0.3, high=0.8))


def snapshot(cpu: float | None, *, name: str = "gpu1", stale: bool = False) -> NodeSnapshot:
    nothing = amounts()
    pressure = None if cpu is None else combined(cpu, 0.1, None)
    return NodeSnapshot(name, f"id-of-{name}", NOON, nothing, nothing, nothing, pressure=pressure, stale=stale)


def reported(*values: float | None) -> list[str]:
    """What is told while the CPU goes through these values."""
    pressed: Pressed = frozenset()
    found = []
    for value in values:
        changes, pressed = pressure_changes([snapshot(value)], pressed, THRESHOLDS)
        found += [change.describe() for change in changes]
    return found


def test_it_is_reported_once_when_it_begins_and_once_when_it_ends() -> None:
    assert reported(0.5, 0.79, 0.8, 0.95, 0.79, 0.31, 0.3, 0.1) == [
        "gpu1 is under pressure: cpu at 80%",
        "gpu1 is no longer under pressure: cpu at 30%",
    ]


def test_what_is_not_measured_changes_nothing() -> None:
    assert reported(0.9, None, None, 0.5) == ["gpu1 is under pressure: cpu at 90%"]


def test_what_is_stale_changes_nothing() -> None:
    changes, pressed = pressure_changes([snapshot(0.1, stale=True)], frozenset({("gpu1", "cpu")}), THRESHOLDS)

    assert not changes
    assert pressed == {("gpu1", "cpu")}


def test_a_node_that_is_gone_is_forgotten_without_a_word() -> None:
    assert pressure_changes([], frozenset({("gpu1", "cpu")}), THRESHOLDS) == ((), frozenset())


@given(st.lists(st.floats(0, 1), max_size=60))
def test_begin_and_end_take_turns_and_values_in_between_never_tell(values: list[float]) -> None:
    pressed: Pressed = frozenset()
    is_high = False
    for value in values:
        changes, pressed = pressure_changes([snapshot(value)], pressed, THRESHOLDS)
        assert len(changes) <= 1
        for change in changes:
            assert change.is_high is not is_high
            assert value >= 0.8 if change.is_high else value <= 0.3
            is_high = change.is_high
        assert (("gpu1", "cpu") in pressed) is is_high
