"""What the benchmarks make of their measurements; no cluster needed."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from bench.figures import Limits, Line, Outcome, Samples
from bench.report import as_json, cells, summary, table, write_json

PROMISE = Limits(times_baseline=2.0, below=50.0)


def samples(*values: float) -> Samples:
    return Samples.of(values)


def line(ours: float, baseline: float | None = None, limits: Limits = PROMISE) -> Line:
    return Line("lending", samples(ours), None if baseline is None else samples(baseline), limits)


def outcome(*lines: Line) -> Outcome:
    return Outcome("transfer", "by hand", lines)


def test_one_slow_moment_does_not_move_the_median_but_shows_in_p95() -> None:
    found = samples(*([10.0] * 18), 500.0, 900.0)

    assert found.median == 10.0
    assert found.p95 > 400.0


def test_a_single_measurement_is_its_own_median_and_p95() -> None:
    assert (samples(7.0).median, samples(7.0).p95) == (7.0, 7.0)


def test_measuring_nothing_is_an_error_and_not_a_zero() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        samples()


def test_the_sum_of_two_halves_is_made_round_by_round() -> None:
    request, release = samples(1.0, 100.0, 2.0), samples(50.0, 1.0, 3.0)

    assert request.plus(release).values == (51.0, 101.0, 5.0)
    with pytest.raises(ValueError):
        request.plus(samples(1.0))


def test_the_ratio_is_that_of_the_medians() -> None:
    found = Line("lending", samples(1.0, 30.0, 1000.0), samples(5.0, 15.0, 16.0))

    assert found.ratio == 2.0


def test_the_range_of_the_ratio_holds_it_and_is_the_same_every_time() -> None:
    found = Line("lending", samples(20, 22, 24, 26, 90), samples(10, 11, 12, 13, 14))
    low, high = found.ratio_range

    assert low <= found.ratio <= high
    assert (low, high) == found.ratio_range


def test_samples_that_never_vary_leave_no_doubt_about_the_ratio() -> None:
    assert Line("lending", samples(30, 30, 30), samples(20, 20)).ratio_range == (1.5, 1.5)


@pytest.mark.parametrize(
    ("ours", "baseline", "met"),
    [
        (30.0, 20.0, True),
        (40.0, 20.0, True),  # exactly the promised ratio
        (40.1, 20.0, False),
        (49.9, 49.0, True),
        (50.0, 49.0, False),  # "less than" leaves out the limit itself
        (60.0, 20.0, False),
    ],
)
def test_a_line_meets_its_limits_only_if_it_meets_all_of_them(ours: float, baseline: float, met: bool) -> None:
    assert line(ours, baseline).met is met


def test_a_line_without_limits_only_informs() -> None:
    assert line(1e6, 1.0, Limits()).met is None
    assert line(1e6, None, Limits()).met is None


def test_a_promised_ratio_needs_something_to_compare_with() -> None:
    with pytest.raises(ValueError, match="baseline"):
        line(1.0)


def test_a_baseline_of_nothing_is_never_met() -> None:
    found = line(1.0, 0.0)

    assert found.met is False
    assert as_json([outcome(found)], {})["benchmarks"][0]["lines"][0]["ratio"] is None


def test_an_outcome_names_exactly_the_lines_that_missed() -> None:
    good, bad, silent = line(10.0, 20.0), line(90.0, 20.0), line(90.0, 20.0, Limits())

    assert outcome(good, bad, silent).missed == (bad,)


def test_the_summary_says_which_limits_were_missed() -> None:
    good, bad, silent = line(10.0, 20.0), line(90.0, 20.0), line(90.0, 20.0, Limits())

    assert summary([outcome(good, good)]) == "All 2 limits are met."
    assert summary([outcome(good, bad, silent)]) == "1 of 2 limits are missed: transfer: lending"
    assert summary([outcome(silent)]) == "No limit applies to what was measured."


def test_a_line_shows_figures_promise_and_verdict() -> None:
    found = [str(cell) for cell in cells(Line("lending", samples(30, 30), samples(20, 20), PROMISE))]

    assert found == ["  lending", "30.0 ms", "30.0 ms", "20.0 ms", "1.50x (1.50-1.50)", "≤ 2.0x, < 50 ms", "yes"]


@pytest.mark.parametrize(
    ("times", "shown"), [(2.0, "≤ 2.0x"), (0.4, "≤ 0.4x"), (1 / 1.5, "≤ 0.67x"), (1 / 0.9, "≤ 1.11x")]
)
def test_a_promised_ratio_is_shown_so_that_it_tells_who_keeps_it(times: float, shown: str) -> None:
    assert Limits(times_baseline=times).describe("ms") == shown


def test_what_was_not_measured_or_promised_shows_as_a_dash() -> None:
    found = [str(cell) for cell in cells(Line("no boosts", samples(0.456), unit="CPU s/min"))]

    assert found == ["  no boosts", "0.46 CPU s/min", "-", "-", "-", "-", "-"]


def test_the_table_shows_every_benchmark_with_its_baseline() -> None:
    screen = io.StringIO()
    Console(file=screen, width=160).print(table([outcome(line(90.0, 20.0))]))

    assert "transfer: against by hand" in screen.getvalue()
    assert "MISSED" in screen.getvalue()


def test_the_json_holds_every_single_value_and_the_circumstances(tmp_path: Path) -> None:
    found = Line("lending", samples(1.0, 2.0, 6.0), samples(1.0, 1.0), PROMISE)
    file = tmp_path / "results" / "latest.json"

    write_json(file, as_json([outcome(found)], {"versions": {"ray": "2.60.0"}}))

    written = json.loads(file.read_text())
    assert written["versions"] == {"ray": "2.60.0"}
    (shown,) = written["benchmarks"][0]["lines"]
    assert shown["ours"] == {"median": 2.0, "p95": 5.6, "count": 3, "values": [1.0, 2.0, 6.0]}
    assert shown["ratio"] == 2.0
    assert shown["limits"] == {"times_baseline": 2.0, "below": 50.0}
    assert shown["met"] is True
