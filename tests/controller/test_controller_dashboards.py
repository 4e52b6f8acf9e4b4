"""The dashboard and the alert rules ask for what `/metrics` tells, and for nothing else."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
from every_metric import every_metric
from ruamel.yaml import YAML

from distributed_grid.config import GridConfig

DEPLOY = Path(__file__).parents[2] / "deploy"
FROM_PROMETHEUS = frozenset({"job", "instance"})
# What Grafana puts in.
VARIABLES = {"$__rate_interval": "5m", "$instance": ".*", "$node": ".*", "$job": ".*"}


def exposed() -> dict[str, dict[str, set[str]]]:
    """Every metric with its labels, and the values that these have."""
    found: dict[str, dict[str, set[str]]] = {}
    for family in every_metric():
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found | {"up": {}}


METRICS = exposed()


def dashboard() -> Any:
    return json.loads((DEPLOY / "grafana-dashboard.json").read_text())


def rules() -> list[Any]:
    read: Any = YAML(typ="safe").load(DEPLOY / "prometheus-alerts.yaml")
    return [rule for group in read["groups"] for rule in group["rules"]]


def panels() -> list[Any]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def in_panels() -> Iterator[tuple[str, str, str]]:
    """What each line of each panel is called, its expression and its legend."""
    for panel in panels():
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"], target["legendFormat"]


def parsed(expression: str) -> Any:
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    return promql.parse(expression)


def selectors(expression: Any) -> Iterator[Any]:
    """Every series that is selected somewhere in an expression."""
    if isinstance(expression, promql.VectorSelector):
        yield expression
    parts = ("lhs", "rhs", "expr", "vector_selector", "args")
    for part in (getattr(expression, name) for name in parts if hasattr(expression, name)):
        for one in part if isinstance(part, list) else [part]:
            yield from selectors(one)


def labels_of(expression: Any) -> frozenset[str]:
    """The labels that the result has."""
    match expression:
        case promql.VectorSelector():
            return FROM_PROMETHEUS | METRICS[expression.name].keys()
        case promql.AggregateExpr():
            return frozenset(expression.modifier.labels if expression.modifier else ())
        case promql.BinaryExpr():
            return labels_of(expression.lhs) | labels_of(expression.rhs)
        case promql.Call():
            return frozenset().union(*map(labels_of, expression.args))
        case promql.MatrixSelector():
            return labels_of(expression.vector_selector)
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            return labels_of(expression.expr)
    return frozenset()


EXPRESSIONS = [(f"dashboard: {name}", expression) for name, expression, _ in in_panels()]
EXPRESSIONS += [(f"alert: {rule['alert']}", rule["expr"]) for rule in rules()]


@pytest.mark.parametrize("expression", [e for _, e in EXPRESSIONS], ids=[name for name, _ in EXPRESSIONS])
def test_every_expression_asks_for_metrics_labels_and_values_that_there_are(expression: str) -> None:
    asked = list(selectors(parsed(expression)))

    assert asked
    for selector in asked:
        assert selector.name in METRICS
        labels = METRICS[selector.name]
        for matcher in selector.matchers.matchers:
            assert matcher.name in labels.keys() | FROM_PROMETHEUS, f"{selector.name} has no label {matcher.name}"
            if matcher.name not in FROM_PROMETHEUS and matcher.value != ".*":
                assert set(matcher.value.split("|")) <= labels[matcher.name], f"{selector.name}: {matcher.value}"


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {selector.name for _, expression, _ in in_panels() for selector in selectors(parsed(expression))}
    # Those of the process are Prometheus' usual ones, of which a few are enough; of a histogram the buckets are.
    enough = {name for name in METRICS if name.startswith("grid_controller_process_")}
    enough |= {name for name in METRICS if name.endswith(("_sum", "_count"))}

    assert METRICS.keys() - shown - enough == set()


def test_legends_and_texts_name_labels_that_the_result_has() -> None:
    for name, expression, legend in in_panels():
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= labels_of(parsed(expression)), name
    for rule in rules():
        reported = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", reported)) <= labels_of(parsed(rule["expr"])), rule["alert"]


def test_no_panel_counts_the_leases_of_programs_as_boosts() -> None:
    asked = [s for _, expression, _ in in_panels() for s in selectors(parsed(expression)) if s.name == "grid_boosts"]

    assert asked
    for selector in asked:
        assert [m.value for m in selector.matchers.matchers if m.name == "purpose"] == ["boost"]


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_dashboard_can_be_imported_anywhere() -> None:
    """It has no data source of ours in it, and no number that some Grafana has given it."""
    shown = dashboard()

    assert "id" not in shown
    assert {target["datasource"]["uid"] for panel in panels() for target in panel["targets"]} == {"${datasource}"}
    variables = [variable["name"] for variable in shown["templating"]["list"]]
    asked = {v for _, e, _ in in_panels() for v in re.findall(r"\$(\w+)", e) if not v.startswith("__")}
    assert asked <= set(variables)


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]

    assert len(set(names)) == len(names)
    for rule in rules():
        assert {"summary", "description", "runbook"} == rule["annotations"].keys(), rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_alerts_are_about_the_default_thresholds() -> None:
    (rule,) = [rule for rule in rules() if rule["alert"] == "GridNodeUnderPressure"]
    limits = GridConfig(name="any").resource_sharing.thresholds

    assert {limits.cpu_pressure_high, limits.memory_pressure_high, limits.gpu_pressure_high} == {
        parsed(rule["expr"]).rhs.val
    }


def test_the_sample_shows_a_token_and_loads_the_rules_for_its_job() -> None:
    sample: Any = YAML(typ="safe").load(DEPLOY / "prometheus.yaml")
    (job,) = sample["scrape_configs"]

    assert sample["rule_files"] == ["prometheus-alerts.yaml"]
    assert job["authorization"] == {"type": "Bearer", "credentials_file": "/etc/prometheus/grid.token"}
    jobs = {
        matcher.value
        for rule in rules()
        for selector in selectors(parsed(rule["expr"]))
        for matcher in selector.matchers.matchers
        if matcher.name == "job"
    }
    assert jobs == {job["job_name"]}
    # A rule that forgot the job would be about other clusters' jobs, too.
    assert all('job="' in str(s) for rule in rules() for s in selectors(parsed(rule["expr"])))
