"""How sure a place is, and what is learnt from what happened."""

import itertools
import random

import pytest
from builders import amounts, cpu, forecast, node, snapshot

from distributed_grid.decide.scheduler import NodeColumns
from distributed_grid.decide.scheduler.confidence import (
    Calibrator,
    Outcome,
    Predicted,
    StartDelays,
    base_rate_brier,
    brier,
    fitted,
    gets_a_place,
    horizon_of,
    reliability,
    stays_below,
)
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.series import Forecast

HIGH = {"cpu": 0.8, "memory": 0.8, "gpu": 0.8}


def sure(
    of: Node,
    needs: ResourceVector,
    *,
    pressure: float | None = None,
    ahead: Forecast | None = None,
    waiting: ResourceVector | None = None,
) -> float:
    seen = {} if pressure is None else {of.name: snapshot(of, cpu=pressure)}
    columns = NodeColumns.of(NodeTable([of]), snapshots=seen)
    columns.waits_for({} if waiting is None else {of.name: waiting})
    return stays_below(columns, 0, needs, HIGH, {} if ahead is None else {"cpu": ahead})


def test_an_idle_node_stays_calm_and_a_pressed_one_does_not() -> None:
    assert sure(node(cpus=16), cpu(1), pressure=0.05) > 0.9
    assert sure(node(cpus=16), cpu(1), pressure=0.79) < 0.3
    assert sure(node(cpus=16), cpu(1), pressure=0.95) < 0.05


def test_it_falls_with_what_the_task_takes_what_is_spoken_for_and_what_waits() -> None:
    one = node(cpus=16)
    assert sure(one, cpu(1), pressure=0.3) > sure(one, cpu(4), pressure=0.3) > sure(one, cpu(7), pressure=0.3)
    spoken_for = node(cpus=16, used=cpu(12))
    assert sure(one, cpu(2), pressure=0.3) > sure(spoken_for, cpu(2), pressure=0.3)
    assert sure(one, cpu(2), pressure=0.3) > sure(one, cpu(2), pressure=0.3, waiting=cpu(8))


def test_where_nothing_is_measured_what_is_spoken_for_is_taken_for_the_load() -> None:
    assert sure(node(cpus=16, used=cpu(14)), cpu(1)) < 0.2 < 0.8 < sure(node(cpus=16), cpu(1))


def test_a_forecast_counts_with_its_width() -> None:
    one = node(cpus=16)
    assert sure(one, cpu(1), pressure=0.3, ahead=forecast(0.75)) < sure(one, cpu(1), pressure=0.3)
    wide, narrow = (sure(one, cpu(1), pressure=0.4, ahead=forecast(0.4, within=w)) for w in (0.24, 0.1))
    assert wide < narrow


def test_a_kind_that_the_node_has_not_does_not_count() -> None:
    without, idle = (sure(node(cpus=16, gpus=gpus), cpu(1), pressure=0.1) for gpus in (0, 4))
    assert without == pytest.approx(idle, abs=0.01)
    assert sure(node(cpus=16, gpus=4), amounts(cpu=1, gpu=3), pressure=0.1) < sure(node(cpus=16), cpu(1), pressure=0.1)


def test_a_waiting_task_has_a_place_in_time_by_how_long_that_is_expected_to_take() -> None:
    waits = [gets_a_place(60, wait_s=wait) for wait in (5, 30, 60, 120, 600)]
    assert all(sooner > later for sooner, later in itertools.pairwise(waits))
    assert 0 < gets_a_place(60, wait_s=None) < 0.5
    assert gets_a_place(None, wait_s=600) > 0.9


def test_a_task_with_a_place_starts_as_soon_as_the_others_did() -> None:
    assert StartDelays().within(1.0) > 0.9
    slow = StartDelays([2.0] * 30 + [20.0] * 30)
    assert slow.within(1.0) < 0.2 < 0.5 < slow.within(5.0) < 0.7 < 0.9 < slow.within(60.0)


def test_a_node_is_watched_until_the_task_ends_but_no_longer_than_is_remembered() -> None:
    assert (horizon_of(None), horizon_of(20), horizon_of(10**6)) == (300, 20, 3600)


# -- calibration ----------------------------------------------------------------------------------------------


def outcomes(*pairs: tuple[float, bool]) -> list[Outcome]:
    return [Outcome(Predicted(said, said), happened) for said, happened in pairs]


def test_the_scores_are_what_they_are_by_hand() -> None:
    found = outcomes((0.9, True), (0.8, True), (0.6, False), (0.1, False))
    assert brier(found) == pytest.approx((0.01 + 0.04 + 0.36 + 0.01) / 4)
    assert base_rate_brier(found) == pytest.approx(0.25)
    assert [(b.low, b.count, round(b.said, 2), b.happened) for b in reliability(found, bins=2)] == [
        (0.0, 1, 0.1, 0.0),
        (0.5, 3, 0.77, pytest.approx(2 / 3)),
    ]


def test_while_nothing_happened_there_is_no_score_and_the_model_is_believed() -> None:
    fresh = Calibrator()
    assert brier(fresh.outcomes) is base_rate_brier(fresh.outcomes) is None
    assert reliability(fresh.outcomes) == ()
    assert fresh.predict(0.7).said == pytest.approx(0.7)


def test_a_model_that_says_too_much_is_put_right() -> None:
    chance, learnt = random.Random(1), Calibrator()
    says = {0.2: 0.48, 0.5: 0.79, 0.8: 0.94}
    for _ in range(1000):
        truth = chance.choice(list(says))
        learnt.happened(learnt.predict(says[truth]), chance.random() < truth)
    for truth, model in says.items():
        assert learnt.predict(model).said == pytest.approx(truth, abs=0.08)


def test_little_data_moves_it_little_and_more_moves_it_more() -> None:
    wrong = [Outcome(Predicted(0.9, 0.9), False)]
    shifts = [fitted(wrong * count)[1] for count in (1, 5, 50)]
    assert 0 > shifts[0] > shifts[1] > shifts[2]
    assert shifts[0] > -1.0


def test_more_trust_of_the_model_is_never_less_of_ours() -> None:
    upside_down = outcomes(*[(0.9, False), (0.1, True)] * 200)
    learnt = Calibrator(upside_down)
    said = [learnt.predict(model / 20).said for model in range(21)]
    assert said == sorted(said)


def test_only_the_last_outcomes_are_kept() -> None:
    learnt = Calibrator()
    for _ in range(2500):
        learnt.happened(learnt.predict(0.5), True)
    assert len(learnt.outcomes) == 2000
