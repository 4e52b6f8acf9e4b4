"""`python -m bench`: start a cluster, measure, report, end the cluster."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console

from bench.effort import FULL, QUICK, Effort
from bench.figures import Outcome
from bench.report import as_json, summary, table, write_json
from distributed_grid.cli.output import explain
from distributed_grid.cluster.end_signals import EndRequested, EndSignals
from distributed_grid.errors import GridError

if TYPE_CHECKING:
    from bench.stage import Stage

_Run = Callable[["Stage", Effort], Outcome]

_ON_A_CLUSTER: Final = (
    "transfer",
    "reserve",
    "status",
    "scale",
    "idle",
    "lender",
    "collecting",
    "role_runs",
    "hostile",
    "probe",
)
NAMES: Final = (*_ON_A_CLUSTER, "decisions", "scheduling", "roles", "run", "parts", "rivals")


@dataclass(frozen=True, slots=True)
class _Benchmark:
    run: _Run | None = None
    without_controller: _Run | None = None
    """The same in library mode, or a benchmark that a controller would disturb."""
    alone: Callable[[Effort], Outcome] | None = None
    """A benchmark that any other cluster would disturb; it starts its own."""


@click.command()
@click.option("--quick", is_flag=True, help="Fewer rounds and boosts: to see that it works, not for the record.")
@click.option(
    "--json",
    "json_file",
    default="bench-results/latest.json",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the figures go.",
)
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="Just this one; may be given several times.")
@click.option("--strict", is_flag=True, help="Exit with 1 if a limit is missed.")
def main(quick: bool, json_file: Path, only: tuple[str, ...], strict: bool) -> None:
    """Measure what grid costs, against the same done by hand with Ray."""
    try:
        with EndSignals(may_insist=False):  # a second Ctrl-C would leave half a cluster behind
            outcomes = _measure(QUICK if quick else FULL, only or NAMES, json_file)
    except GridError as error:
        explain(error, as_json=False)
        sys.exit(error.exit_code)
    except EndRequested as request:
        print("Stopped; the cluster has been ended.", file=sys.stderr)
        sys.exit(128 + request.number)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table(outcomes))
    console.print(summary(outcomes), f"\nAll values: {json_file}", sep="", highlight=False)
    sys.exit(1 if strict and any(outcome.missed for outcome in outcomes) else 0)


def _measure(effort: Effort, names: tuple[str, ...], json_file: Path) -> list[Outcome]:
    load = os.getloadavg()
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # errors at the end of the cluster are expected
    from bench.circumstances import circumstances  # imported late: these import ray, which is slow
    from bench.stage import open_stage, say

    chosen = {name: benchmark for name, benchmark in benchmarks().items() if name in names}
    outcomes = []
    for name, benchmark in chosen.items():
        if benchmark.alone:
            say(f"{name} ...")
            outcomes.append(benchmark.alone(effort))
    if any(benchmark.run or benchmark.without_controller for benchmark in chosen.values()):
        with open_stage() as stage:
            outcomes += _measure_on(stage, chosen, effort)
    write_json(json_file, as_json(outcomes, circumstances(effort, load)))
    return outcomes


def _measure_on(stage: "Stage", chosen: Mapping[str, _Benchmark], effort: Effort) -> Iterator[Outcome]:
    from bench.stage import say

    for name, benchmark in chosen.items():
        if benchmark.run:
            say(f"{name} ...")
            yield benchmark.run(stage, effort)
    if any(benchmark.without_controller for benchmark in chosen.values()):
        stage.take_grid_out()
    for name, benchmark in chosen.items():
        if benchmark.without_controller:
            say(f"{name}, without a controller ...")
            yield benchmark.without_controller(stage, effort)


def benchmarks() -> dict[str, _Benchmark]:
    from bench import (
        collecting,
        decisions,
        hostile,
        idle,
        lender,
        parts,
        probe,
        reserve,
        rivals,
        role_runs,
        roles,
        running,
        scale,
        scheduling,
        status,
        transfer,
    )

    return {
        "transfer": _Benchmark(transfer.comparison.run, transfer.comparison.run_as_library),
        "reserve": _Benchmark(reserve.comparison.run, reserve.comparison.run_as_library),
        "status": _Benchmark(status.run),
        "scale": _Benchmark(scale.run),
        "idle": _Benchmark(idle.run),
        "lender": _Benchmark(lender.run),
        "collecting": _Benchmark(collecting.run),
        "role_runs": _Benchmark(role_runs.run),
        "hostile": _Benchmark(hostile.run),
        "decisions": _Benchmark(decisions.run),
        "scheduling": _Benchmark(scheduling.run),
        "roles": _Benchmark(alone=partial(roles.run, None)),
        # A controller would call the same probes.
        "probe": _Benchmark(without_controller=probe.run),
        "run": _Benchmark(alone=running.run),
        "parts": _Benchmark(alone=parts.run),
        "rivals": _Benchmark(alone=rivals.run),
    }


if __name__ == "__main__":
    main()
