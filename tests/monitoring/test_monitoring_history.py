"""An hour of every node: what came, what did not, and what it takes to keep."""

import math

import numpy as np
import pytest

from distributed_grid.model.nodes import NodeName
from distributed_grid.model.series import Series
from distributed_grid.monitoring.history import SERIES, History

A, B = NodeName("a"), NodeName("b")


def values(series: Series) -> list[float | None]:
    return [None if math.isnan(value) else round(float(value), 3) for value in series.values]


def test_what_was_recorded_comes_back_in_order() -> None:
    history = History(10.0)

    for n in range(4):
        history.record(100.0 + 10 * n, {A: {"cpu": n / 10, "memory": 0.5}})

    assert history.of(A, "cpu").times.tolist() == [100.0, 110.0, 120.0, 130.0]
    assert values(history.of(A, "cpu")) == [0.0, 0.1, 0.2, 0.3]
    assert history.of(A, "cpu").latest == pytest.approx(0.3)
    assert values(history.of(A, "gpu")) == [None] * 4


def test_the_oldest_gives_way() -> None:
    history = History(10.0, window_s=30.0)

    for n in range(10):
        history.record(10.0 * n, {A: {"cpu": n / 10}})

    assert history.of(A, "cpu").times.tolist() == [60.0, 70.0, 80.0, 90.0]
    assert values(history.of(A, "cpu")) == [0.6, 0.7, 0.8, 0.9]


def test_gaps_stay_gaps() -> None:
    history = History(10.0)
    history.record(0.0, {A: {"cpu": 0.4}, B: {"cpu": 0.4}})
    history.record(10.0, {B: {"cpu": 0.4}})
    history.record(20.0, {A: {"cpu": None}})
    history.record(60.0, {A: {"cpu": 0.6}})

    assert values(history.of(A, "cpu")) == [0.4, None, None, 0.6]
    assert history.of(A, "cpu").known().times.tolist() == [0.0, 60.0]
    assert history.of(A, "cpu").in_buckets(6, until=60.0, window_s=60.0) == [
        pytest.approx(0.4), None, None, None, None, pytest.approx(0.6),
    ]  # fmt: skip


def test_a_node_that_came_later_has_no_past() -> None:
    history = History(10.0)
    history.record(0.0, {A: {"cpu": 0.4}})
    history.record(10.0, {A: {"cpu": 0.4}, B: {"cpu": 0.2}})

    assert values(history.of(B, "cpu")) == [None, 0.2]


def test_a_node_that_is_gone_leaves_nothing_to_its_namesake_or_to_others() -> None:
    history = History(10.0)
    history.record(0.0, {A: {"cpu": 0.4}, B: {"cpu": 0.9}})

    history.forget(A)
    assert history.nodes == (B,)
    assert history.of(A, "cpu").latest is None
    history.record(10.0, {NodeName("c"): {"cpu": 0.1}, A: {"cpu": 0.2}})

    assert values(history.of(NodeName("c"), "cpu")) == [None, 0.1]
    assert values(history.of(A, "cpu")) == [None, 0.2]
    assert values(history.of(B, "cpu")) == [0.9, None]
    history.keep_only([B])
    assert history.nodes == (B,)


def test_a_time_that_repeats_corrects_the_look_before() -> None:
    history = History(10.0)
    history.record(0.0, {A: {"cpu": 0.1}, B: {"cpu": 0.5}})
    history.record(0.0, {A: {"cpu": 0.2}})

    assert values(history.of(A, "cpu")) == [0.2]
    assert values(history.of(B, "cpu")) == [0.5]


def test_a_clock_that_is_set_back_moves_the_past_along() -> None:
    history = History(10.0)
    for n in range(31):
        history.record(10_000.0 + 10 * n, {A: {"cpu": 0.1 + 0.001 * n}})

    for n in range(31, 41):  # an hour back
        history.record(10_000.0 - 3600 + 10 * n, {A: {"cpu": 0.1 + 0.001 * n}})

    found = history.of(A, "cpu")
    assert np.all(np.diff(found.times) == 10.0)
    assert found.times[-1] == 10_000.0 - 3600 + 400
    slope = history.trends("cpu", now=float(found.times[-1]))[A]["5m"]
    assert slope.per_minute == pytest.approx(0.006, rel=1e-3)
    assert slope.covered == 1.0


def test_any_order_of_times_leaves_rising_ones() -> None:
    chance = np.random.default_rng(1)
    history = History(10.0, window_s=300.0)

    for at in chance.integers(-500, 500, 400):
        history.record(float(at), {A: {"cpu": 0.5}})
        assert np.all(np.diff(history.of(A, "cpu").times) > 0)


def test_trends_of_all_nodes_at_once() -> None:
    history = History(10.0)
    for n in range(361):
        history.record(10.0 * n, {A: {"cpu": 0.1 + 0.001 * n}} | ({B: {"cpu": 0.5}} if n > 300 else {}))

    found = history.trends("cpu", now=3600.0)

    assert found[A]["1h"].per_minute == pytest.approx(0.006, rel=1e-3)
    assert found[B]["5m"].per_minute == pytest.approx(0.0)
    assert found[B]["1h"].per_minute is None
    assert found[B]["1h"].covered == pytest.approx(60 / 360)


def test_curves_of_all_nodes_at_once_are_those_of_each() -> None:
    history, chance = History(10.0, window_s=3600.0), np.random.default_rng(4)
    for n in range(400):
        there = {node: {"cpu": float(chance.random())} for node in (A, B) if chance.random() < 0.6}
        history.record(10.0 * n + float(chance.random()), there if not 100 < n < 250 else {})

    for count, until, window_s in ((30, 4000.0, 3600.0), (7, 3990.0, 600.0), (720, 4100.0, 3600.0), (3, 1.0, 60.0)):
        together = history.in_buckets("cpu", count, until=until, window_s=window_s)
        for node in (A, B):
            alone = history.of(node, "cpu").in_buckets(count, until=until, window_s=window_s)
            assert together[node] == [None if value is None else pytest.approx(value) for value in alone]
    assert History(10.0).in_buckets("cpu", 3, until=0.0, window_s=60.0) == {}


def test_a_thousand_nodes_are_a_few_megabytes() -> None:
    history = History(10.0)
    sample = dict.fromkeys(SERIES, 0.5)
    many = {NodeName(f"n{n}"): sample for n in range(1000)}

    for n in range(3):
        history.record(10.0 * n, many)

    assert len(history.nodes) == 1000
    assert history.nbytes < 12e6
    before = history.nbytes
    for n in range(3, 1000):
        history.record(10.0 * n, {A: sample})
        history.keep_only([A])
    assert history.nbytes == before


# -- from before ---------------------------------------------------------------------------------------------


def recorded(count: int = 361, every: float = 10.0) -> History:
    history = History(every)
    for n in range(count):
        history.record(every * n, {A: {"cpu": 0.001 * n}} | ({B: {"cpu": 0.5}} if n % 2 else {}))
    return history


def test_what_was_recorded_goes_on_in_another_process() -> None:
    before, after = recorded(), History(10.0)

    after.restore(before.recorded(), now=3605.0)
    after.record(3610.0, {A: {"cpu": 0.361}, B: {"cpu": 0.5}})
    before.record(3610.0, {A: {"cpu": 0.361}, B: {"cpu": 0.5}})

    for node in (A, B):
        assert after.of(node, "cpu").times.tolist() == before.of(node, "cpu").times.tolist()
        assert values(after.of(node, "cpu")) == values(before.of(node, "cpu"))
    assert after.trends("cpu", now=3610.0) == before.trends("cpu", now=3610.0)


def test_only_the_last_hour_comes_back_and_nothing_that_is_yet_to_come() -> None:
    after = History(10.0)
    after.restore(recorded().recorded(), now=3600.0 + 1800.0)
    assert after.of(A, "cpu").times.tolist() == [10.0 * n for n in range(180, 361)]

    early = History(10.0)  # the clock was set back meanwhile
    early.restore(recorded().recorded(), now=1000.0)
    assert early.of(A, "cpu").times.tolist() == [10.0 * n for n in range(101)]


def test_an_hour_at_a_shorter_interval_is_still_an_hour() -> None:
    after = History(60.0)
    after.restore(recorded().recorded(), now=3600.0)
    assert after.of(A, "cpu").times.tolist() == [60.0 * n for n in range(61)]


def test_series_that_are_not_known_any_more_are_passed_over() -> None:
    after = History(10.0, series=("memory", "cpu"))
    after.restore(recorded(3).recorded(), now=30.0)
    assert values(after.of(A, "cpu")) == [0.0, 0.001, 0.002]
    assert values(after.of(A, "memory")) == [None] * 3
