"""What `python -m bench` knows; no cluster needed."""

from bench.__main__ import NAMES, benchmarks


def test_every_benchmark_can_be_chosen_by_its_name_and_does_something() -> None:
    found = benchmarks()

    assert set(found) == set(NAMES)
    assert all(one.run or one.without_controller or one.alone for one in found.values())
