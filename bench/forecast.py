"""`python -m bench.forecast --data DIR`: how accurate forecasts are on load curves from real pod lists.

A curve is the load of the whole cluster, or of one of several nodes over which the pods are spread at random. The first
half of each curve is for learning only. In every minute of the second half, a forecast is made and later compared.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from bench.backtest import Score, backtest
from bench.load_curves import Pods, made_up_pods, read_pods
from bench.report import write_json
from distributed_grid.model.series import Series
from distributed_grid.monitoring.forecasting import FORECASTERS, forecaster_maker


@dataclass(frozen=True, slots=True)
class Curve:
    pods: str
    nodes: int
    """The number of nodes over which the pods were spread; 1: the whole cluster."""
    seed: int
    node: int
    kind: str
    series: Series


@dataclass(frozen=True, slots=True)
class Result:
    pods: str
    nodes: int
    seed: int
    node: int
    kind: str
    score: Score


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder with pod lists.")
@click.option("--horizon", default=900.0, show_default=True, help="Seconds to look ahead.")
@click.option("--interval", default=10.0, show_default=True, help="Seconds between samples.")
@click.option("--forecaster", "name", default="built-in", show_default=True, type=click.Choice(list(FORECASTERS)))
@click.option("--nodes", multiple=True, type=int, default=(1, 4, 16), show_default=True)
@click.option("--seed", "seeds", multiple=True, type=int, default=(1, 2), show_default=True)
@click.option("--at-most", default=4, show_default=True, help="Nodes looked at for each seed.")
@click.option("--part", default="second", type=click.Choice(["first", "second"]), help="Which half to look at.")
@click.option("--json", "json_file", default="bench-results/forecast.json", type=click.Path(path_type=Path))
def main(
    data: Path | None, horizon: float, interval: float, name: str, nodes: tuple[int, ...], seeds: tuple[int, ...],
    at_most: int, part: str, json_file: Path,
) -> None:  # fmt: skip
    """Back-test a forecaster on load curves from pod lists; without --data on made-up ones."""
    lists = dict(_lists(data))
    curves = list(_curves(lists, nodes, seeds, at_most, interval, first_half=part == "first"))
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as workers:
        results = list(workers.map(partial(_judge, name=name, horizon_s=horizon), curves))
    Console(width=None if sys.stdout.isatty() else 140).print(_table(results, name, horizon))
    report = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "forecaster": name, "interval_s": interval}
    write_json(json_file, report | {"curves": [asdict(result) for result in results]})


def _lists(folder: Path | None) -> Iterator[tuple[str, Pods]]:
    """The lists that have times, without duplicates: lists that differ only in other columns give equal curves."""
    if folder is None:
        yield "made-up", made_up_pods(days=30, seed=0)
        return
    seen: list[tuple[str, Pods]] = []
    for path in sorted(folder.glob("*pod_list*.csv")):
        short, pods = path.stem.rpartition("_")[2], read_pods(path)
        if pods is None:
            print(f"{short}: has no times", file=sys.stderr)
        elif twin := next((other for other, known in seen if _equal(known, pods)), None):
            print(f"{short}: the same curves as {twin}", file=sys.stderr)
        else:
            seen.append((short, pods))
            yield short, pods


def _equal(one: Pods, other: Pods) -> bool:
    pairs = [(one.came, other.came), (one.went, other.went), *((one.asked[k], other.asked[k]) for k in one.asked)]
    return all(np.array_equal(a, b) for a, b in pairs)


def _curves(
    lists: dict[str, Pods],
    nodes: Iterable[int],
    seeds: Iterable[int],
    at_most: int,
    interval_s: float,
    *,
    first_half: bool,
) -> Iterator[Curve]:
    for name, pods in lists.items():
        start, end = pods.busy_from(), float(pods.came.max())
        if first_half:
            end = (start + end) / 2
        for count in nodes:
            for seed in list(seeds) if count > 1 else [0]:
                for node, part in enumerate(pods.spread_over(count, seed)[:at_most]):
                    for kind in part.asked:
                        series = part.load(kind, start=start, end=end, interval_s=interval_s)
                        yield Curve(name, count, seed, node, kind, series)


def _judge(curve: Curve, name: str, horizon_s: float) -> Result:
    times = curve.series.times
    middle = float((times[0] + times[-1]) / 2)
    score = backtest(forecaster_maker(name)((horizon_s,)), curve.series, horizon_s, since=middle)
    if score is None:
        raise SystemExit("the curves are shorter than the horizon")
    return Result(curve.pods, curve.nodes, curve.seed, curve.node, curve.kind, score)


def _table(results: list[Result], name: str, horizon_s: float) -> Table:
    shown = Table(title=f"{name}, {horizon_s / 60:g} min ahead", title_justify="left", header_style="bold")
    for column in ("Pods", "Seen by", "Resource"):
        shown.add_column(column)
    for column in ("Curves", "Changed", "Error", "Same as now", "Ratio", "Better on", "Covered", "Width"):
        shown.add_column(column, justify="right")
    for pods, nodes, kind in dict.fromkeys((r.pods, r.nodes, r.kind) for r in results):
        scores = [r.score for r in results if (r.pods, r.nodes, r.kind) == (pods, nodes, kind)]
        error, of_now = (float(np.mean([getattr(s, what) for s in scores])) for what in ("error", "error_of_now"))
        covered = [score.covered for score in scores]
        shown.add_row(
            pods,
            "the cluster" if nodes == 1 else f"one of {nodes} nodes",
            kind,
            str(len(scores)),
            f"{np.mean([score.changed for score in scores]):.0%}",
            f"{error:.4f}",
            f"{of_now:.4f}",
            f"{error / of_now:.3f}" if of_now else "-",
            f"{sum(score.ratio < 1 for score in scores)} of {len(scores)}",
            f"{np.mean(covered):.3f} ({min(covered):.3f}-{max(covered):.3f})",
            f"{np.mean([score.width for score in scores]):.3f}",
        )
    return shown


if __name__ == "__main__":
    main()
