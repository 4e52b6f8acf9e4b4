"""A node's last hour as a curve, where it is heading, what is expected, and how good such forecasts were."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from distributed_grid.cli.bars import curve, percent
from distributed_grid.cli.canvas import Canvas
from distributed_grid.cli.columns import Column, Form, fit, fitted_table
from distributed_grid.cli.tables import bold
from distributed_grid.model.instants import parse_instant
from distributed_grid.model.resources import CPU, GPU, MEMORY
from distributed_grid.model.since import span

_KINDS: Final = (CPU, MEMORY, GPU)
_WINDOW_S: Final = 3600.0
_WIDTHS: Final = (40, 30, 24, 16, 10)


def outlook_lines(node: Mapping[str, Any], canvas: Canvas) -> list[str]:
    kinds = [kind for kind in _KINDS if any(value is not None for value in node["history"]["series"].get(kind, ()))]
    if not kinds:
        return [f"{bold('Last hour:')} nothing was measured yet"]
    hour = {kind: _last_hour(node["history"], kind, max(_WIDTHS)) for kind in kinds}
    latest = [_latest(node, kind) for kind in kinds]
    ahead = next((one["horizon_seconds"] for kind in kinds if (one := node["forecast"][kind])), None)
    table: dict[str, Column] = {
        "kind": Column.of("Measured", kinds),
        "hour": Column(
            tuple(Form("Last hour", [curve(hour[kind], width, canvas.blocks) for kind in kinds]) for width in _WIDTHS)
        ),
        "now": Column.of("Now", latest, right=True),
        **{
            window: Column.of(f"{window}/min", [_slope(node["trends"][kind].get(window)) for kind in kinds], right=True)
            for window in node["trends"][kinds[0]]
        },
    }
    if ahead is not None:
        table["ahead"] = Column.of(f"In {span(ahead)}", [_expected(node["forecast"][kind]) for kind in kinds])
    fitted = fit(table, ("hour",) * (len(_WIDTHS) - 1), canvas)
    return [fitted_table(fitted), *_accuracies(node, kinds, canvas)]


def _last_hour(history: Mapping[str, Any], kind: str, points: int) -> list[float | None]:
    """In equal parts of the hour that ends with the newest sample: as far to the right as it is new."""
    times = [parse_instant(at).timestamp() for at in history["times"]]
    parts: list[list[float]] = [[] for _ in range(points)]
    for at, value in zip(times, history["series"][kind], strict=True):
        place = int((at - times[-1] + _WINDOW_S) / _WINDOW_S * points)
        if value is not None and 0 <= place <= points:
            parts[min(place, points - 1)].append(value)
    return [sum(part) / len(part) if part else None for part in parts]


def _latest(node: Mapping[str, Any], kind: str) -> str:
    return percent(node["pressure"][kind]) if node["state"] == "ok" and node["pressure"] else "-"


def _slope(trend: Mapping[str, Any] | None) -> str:
    """In percent of the whole, a minute."""
    if trend is None or trend["per_minute"] is None:
        return "-"
    value = trend["per_minute"] * 100
    return "0%" if abs(value) < 0.05 else f"{value:+.1f}%"


def _expected(forecast: Mapping[str, Any] | None) -> str:
    if forecast is None:
        return "-"
    return f"{percent(forecast['value'])} ({percent(forecast['low'])} to {percent(forecast['high'])})"


def _accuracies(node: Mapping[str, Any], kinds: list[str], canvas: Canvas) -> list[str]:
    """How such forecasts went so far."""
    told: dict[str, list[str]] = defaultdict(list)
    for kind in kinds:
        if (forecast := node["forecast"][kind]) is not None:
            told[_accuracy(forecast)].append(kind)
    return [
        line
        for text, about in told.items()
        for line in canvas.wrapped(f"{', '.join(about)}: {text}", indent="  ", first="")
    ]


def _accuracy(forecast: Mapping[str, Any]) -> str:
    found = forecast["accuracy"]
    if found is None:
        return "no forecast has come due yet, so nobody knows how good they are"
    told = (
        f"{found['checked']} forecasts at {span(found['horizon_s'])} were off by {found['error'] * 100:.1f}% on "
        f"average (as now: {found['error_of_now'] * 100:.1f}%)"
    )
    if found["covered"] is None:
        return told
    return f"{told}; {percent(found['covered'])} came inside the {percent(forecast['confidence'])} interval"
