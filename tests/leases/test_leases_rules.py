"""The rules in force: what the configuration says, what was set since, and what is foreseen."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from builders import ask
from whole_grid import WholeGrid

from distributed_grid.controller.monitoring_routes import nodes_dict
from distributed_grid.errors import NoCapacity
from distributed_grid.leases.reclaim import cordon
from distributed_grid.leases.rules import numbers, rules_for, rules_of_one_look
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.resources import scale
from distributed_grid.model.roles.plan import live_inventory
from distributed_grid.model.series import Accuracy, Forecast

pytestmark = pytest.mark.filterwarnings("ignore")

CHECKED = Accuracy(900.0, 50, 0.05, 0.06, 0.9)


def expecting(lab: WholeGrid, low_for: str, *, enough_history: bool = True) -> list[float]:
    """Every node but this one is expected to be busy at the end of a lease; the horizons that were asked for."""
    asked: list[float] = []

    def forecast(node: str, kind: str, horizon_s: float) -> Forecast:
        asked.append(horizon_s)
        value = 0.1 if node == low_for else 0.7
        low, high = (max(0.0, value - 0.1), value + 0.1) if enough_history else (0.0, 1.0)
        return Forecast(0.0, horizon_s, value, low, high, accuracy=CHECKED, enough_history=enough_history)

    lab.parts.forecast = forecast
    return asked


def test_predictive_lends_what_the_lender_will_not_need_before_the_lease_ends(
    make_grid: Callable[..., WholeGrid],
) -> None:
    lab = make_grid(policy="predictive")
    asked = expecting(lab, "c")
    lease = lab.run(lab.service.request(ask("b", amount=3, duration_s=900.0)))
    assert lease.source == "c"  # of its 4 CPUs it may need 0.8
    assert set(asked) == {900.0}
    with pytest.raises(NoCapacity) as refused:
        lab.run(lab.service.request(ask("b", amount=2, source="a")))
    assert "policy predictive keeps 3.2 CPUs free for the node's own work" in " ".join(refused.value.because)


def test_before_enough_forecasts_were_checked_as_much_is_kept_as_balanced_would_above_what_is_expected(
    make_grid: Callable[..., WholeGrid],
) -> None:
    lab = make_grid(policy="predictive", thresholds={"excess_threshold": 0.2})
    expecting(lab, "c", enough_history=False)
    headroom = rules_for(lab.parts, ask("b")).headroom
    assert headroom.foreseen["a", "cpu"] == pytest.approx(0.9)
    assert headroom.foreseen["c", "cpu"] == pytest.approx(0.3)


def test_where_nothing_is_measured_predictive_keeps_what_balanced_keeps(make_grid: Callable[..., WholeGrid]) -> None:
    lab = make_grid(policy="predictive", thresholds={"excess_threshold": 0.2})
    headroom = rules_for(lab.parts, ask("b")).headroom
    assert (headroom.of_base, dict(headroom.foreseen)) == (0.2, {})


def test_in_one_look_what_lasts_about_as_long_is_foreseen_once(make_grid: Callable[..., WholeGrid]) -> None:
    lab = make_grid(policy="predictive")
    asked = expecting(lab, "c")
    rules = rules_of_one_look(lab.parts)
    for duration_s in (3600.0, 3650.0, 86_400.0, 600.0):
        rules(ask("b", duration_s=duration_s))
    assert set(asked) == {3600.0, 600.0}


def test_the_configuration_goes_before_the_policys_numbers(make_grid: Callable[..., WholeGrid]) -> None:
    lab = make_grid(min_hold_seconds=7, thresholds={"excess_threshold": 0.4})
    assert (numbers(lab.parts).min_hold_s, numbers(lab.parts).headroom_of_base) == (7.0, 0.4)


def test_planners_are_told_what_the_next_request_would_be_lent(make_grid: Callable[..., WholeGrid]) -> None:
    lab = make_grid(thresholds={"excess_threshold": 0.25})
    known = live_inventory(nodes_dict(lab.engine, lab.run(lab.parts.look())))
    assert known["a"].lends["cpu"] == 3 * scale("cpu")

    with pytest.raises(NoCapacity):
        lab.run(lab.service.request(ask("b", amount=4, source="a")))
    lab.run(lab.service.request(ask("b", amount=3, source="a")))

    after = live_inventory(nodes_dict(lab.engine, lab.run(lab.parts.look())))
    assert after["a"].lends["cpu"] == 0
    lab.run(cordon(lab.parts, "c"))
    assert "c is cordoned" in live_inventory(nodes_dict(lab.engine, lab.run(lab.parts.look())))["c"].closed


def test_a_node_without_recent_measurements_is_closed_to_planners_whether_capacity_is_leased_or_not(
    make_grid: Callable[..., WholeGrid],
) -> None:
    for enabled in (True, False):
        lab = make_grid(enabled=enabled)
        seen = lab.run(lab.parts.look())
        silent = NodeTable(replace(one, silent="its probe stopped") for one in seen.values())
        said = live_inventory(nodes_dict(lab.engine, silent))["a"].closed
        assert said == "no recent measurement: its probe stopped"
