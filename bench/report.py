"""The figures as a table and as JSON."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from bench.figures import Line, Outcome, Samples

_NOTHING = "-"


def table(outcomes: Iterable[Outcome]) -> Table:
    shown = Table(title="Distributed Grid against plain Ray", title_justify="left", header_style="bold")
    shown.add_column("What")
    for column in ("Ours", "p95", "Baseline", "Ratio (95 % range)", "Promised"):
        shown.add_column(column, justify="right")
    shown.add_column("Met?")
    for outcome in outcomes:
        shown.add_section()
        shown.add_row(Text(f"{outcome.name}: against {outcome.baseline}", style="bold"))
        for line in outcome.lines:
            shown.add_row(*cells(line))
    return shown


def cells(line: Line) -> tuple[str | Text, ...]:
    """One line's cells, in the order of the table's columns."""
    return (
        f"  {line.what}",
        _amount(line.ours.median, line.unit),
        _amount(line.ours.p95, line.unit) if len(line.ours.values) > 1 else _NOTHING,
        _amount(line.baseline.median, line.unit) if line.baseline else _NOTHING,
        _ratio(line),
        line.limits.describe(line.unit) or _NOTHING,
        {True: Text("yes", style="green"), False: Text("MISSED", style="bold red"), None: Text(_NOTHING)}[line.met],
    )


def summary(outcomes: Iterable[Outcome]) -> str:
    """Which promises were kept, in a sentence."""
    lines = [(outcome, line) for outcome in outcomes for line in outcome.lines if line.met is not None]
    missed = [f"{outcome.name}: {line.what}" for outcome, line in lines if not line.met]
    if not lines:
        return "No limit applies to what was measured."
    if not missed:
        return f"All {len(lines)} limits are met."
    return f"{len(missed)} of {len(lines)} limits are missed: {'; '.join(missed)}"


def as_json(outcomes: Iterable[Outcome], circumstances: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **circumstances,
        "benchmarks": [
            {
                "name": outcome.name,
                "baseline": outcome.baseline,
                "lines": [_line(line) for line in outcome.lines],
            }
            for outcome in outcomes
        ],
    }


def write_json(path: Path, report: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n")


def _line(line: Line) -> dict[str, Any]:
    bounds = line.ratio_range
    return {
        "what": line.what,
        "unit": line.unit,
        "ours": _samples(line.ours),
        "baseline": _samples(line.baseline) if line.baseline else None,
        "ratio": _rounded(line.ratio),
        "ratio_range": [_rounded(bound) for bound in bounds] if bounds else None,
        "limits": {"times_baseline": line.limits.times_baseline, "below": line.limits.below},
        "met": line.met,
    }


def _samples(samples: Samples) -> dict[str, Any]:
    return {
        "median": _rounded(samples.median),
        "p95": _rounded(samples.p95),
        "count": len(samples.values),
        "values": [_rounded(value) for value in samples.values],
    }


def _rounded(value: float | None) -> float | None:
    """JSON has no infinity, so a ratio to zero is null."""
    return round(value, 4) if value is not None and math.isfinite(value) else None


def _ratio(line: Line) -> str:
    if line.ratio is None:
        return _NOTHING
    bounds = line.ratio_range
    return f"{line.ratio:.2f}x" + (f" ({bounds[0]:.2f}-{bounds[1]:.2f})" if bounds else "")


def _amount(value: float, unit: str) -> str:
    digits = 0 if value >= 100 else 1 if value >= 1 else 2
    return f"{value:.{digits}f} {unit}"
