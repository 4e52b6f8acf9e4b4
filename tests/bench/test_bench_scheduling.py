"""The nodes that are only numbers, on which what is said of places is measured."""

from dataclasses import replace

import pytest

from bench.effort import QUICK
from bench.placements import VirtualPlacements
from bench.scheduling import run
from distributed_grid.decide.scheduler.confidence import base_rate, base_rate_brier, brier, reliability


@pytest.mark.parametrize("seed", [0, 3])
def test_what_is_said_of_places_is_better_than_always_saying_the_base_rate(seed: int) -> None:
    found = VirtualPlacements(seed=seed).run(800)
    said, always = brier(found), base_rate_brier(found)

    assert said is not None and always is not None
    assert 0.2 < (base_rate(found) or 0) < 0.9, "it is neither always so nor never"
    assert said < 0.8 * always
    reported = [one.happened for one in reliability(found, bins=3)]
    assert reported == sorted(reported), "of what was said to be likelier, more happened"


def test_the_same_seed_gives_the_same_placements() -> None:
    assert VirtualPlacements(seed=1).run(50) == VirtualPlacements(seed=1).run(50)


def test_all_that_is_promised_is_measured() -> None:
    found = run(None, replace(QUICK, decisions=100, sizes=(5, 6, 10), placements=30))

    assert [bool(line.limits.describe(line.unit)) for line in found.lines] == [*[True] * 7, *[False] * 3, True, False]
