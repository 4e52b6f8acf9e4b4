"""Boosts of several lenders: what three cost compared with one, and whether a thousand leases of four parts slow down
the next request."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from bench.effort import Effort
from bench.figures import Limits, Line, Outcome, Samples
from bench.ours import Boosting
from bench.rounds import Halves, Shows, take_turns
from bench.scale import status_again
from bench.stage import TARGET, Stage, open_stage, say, until
from distributed_grid.client import GridClient
from distributed_grid.model.leases import Delivery, Lease, LeaseState, Share
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.resources import ResourceVector, total
from distributed_grid.orchestration.resource_boost_manager import ResourceBoostManager
from distributed_grid.store.boost_file import BoostFile, ClusterIdentity
from distributed_grid.store.home import GridHome

_NAME: Final = "parts"
_LENDERS: Final = ("gpu1", "gpu2", "gpu3", "gpu4")
_ONE_AND_A_HALF: Final = Limits(times_baseline=1.5)
_THREE: Final = Limits(times_baseline=3.0)
_UNITS: Final = 2
"""Of each part of a standing lease, in ten-thousandths of a CPU: a thousand take a fifth of one from each lender."""
_LAST_DIGIT: Final = 1.5e-4


def _config(share: float) -> str:
    """Each lender lends so many CPUs at most."""
    lender = f"host: 127.0.0.1, role: worker, cpu_count: 2, memory_gb: 2, resource_sharing: {{max_share_cpu: {share}}}"
    lenders = "".join(f"  - {{name: {name}, {lender}}}\n" for name in _LENDERS)
    return (
        f"name: {_NAME}\nembedded: true\nexecution:\n"
        "  resource_sharing: {enabled: true, thresholds: {excess_threshold: 0}}\nnodes:\n"
        f"  - {{name: {TARGET}, host: 127.0.0.1, role: master, cpu_count: 2, memory_gb: 2, "
        f"resource_sharing: {{can_share: false}}}}\n{lenders}"
    )


def run(effort: Effort) -> Outcome:
    return Outcome(
        "boosts of several lenders",
        "the same with one lender, or few leases",
        (*_three_against_one(effort), *_many_against_few(effort)),
    )


def _three_against_one(effort: Effort) -> Iterator[Line]:
    """In turns: one CPU, which any node can lend, and three, of which each node can lend one."""
    with _opened(share=1) as stage:
        for delivery, shows in (("transfer", _totals_show), ("reserve", _free_shows)):
            found = asyncio.run(_in_turns(stage, delivery, shows(stage), effort.rounds))
            three, one = found["three"], found["one"]
            yield Line(f"{delivery}: 3 CPUs of three lenders", three.both, one.both, _ONE_AND_A_HALF)
            yield Line(f"{delivery}: request", three.request, one.request)
            yield Line(f"{delivery}: release", three.release, one.release)


async def _in_turns(stage: Stage, delivery: str, shows: Shows, rounds: int) -> Mapping[str, Halves]:
    async with ResourceBoostManager(stage.config) as manager:
        ways = {"one": Boosting(manager, delivery, 1.0, None), "three": Boosting(manager, delivery, 3.0, None)}
        return await take_turns(ways, shows, rounds)


def _totals_show(stage: Stage) -> Shows:
    """Whether what the target has more is what the lenders have less."""
    before = {name: stage.cpus(name) for name in stage.node_ids}

    def shows(lent: bool) -> bool:
        more = stage.cpus(TARGET) - before[TARGET]
        less = sum(before[name] - stage.cpus(name) for name in _LENDERS)
        return abs(more - less) < _LAST_DIGIT and (more > _LAST_DIGIT) == lent

    return shows


def _free_shows(stage: Stage) -> Shows:
    before = {name: stage.free_cpus(name) for name in _LENDERS}
    known: dict[bool, float] = {}

    def shows(lent: bool) -> bool:
        """The view of a group of three may show its bundles one after the other: look until two looks agree."""
        less = sum(before[name] - stage.free_cpus(name) for name in _LENDERS)
        is_steady, known[lent] = known.get(lent) == less, less
        return is_steady and (less > _LAST_DIGIT) == lent

    return shows


def _many_against_few(effort: Effort) -> Iterator[Line]:
    """Few, many, few again, each in a cluster of its own that begins with these leases."""
    few, many, few_again = (_beside(count, effort) for count in (effort.few, effort.many, effort.few))
    lending = _joined(few[0], few_again[0])
    status = Samples(few[1].values + few_again[1].values)
    leases = f"{effort.many:,} leases of four parts"
    yield Line(f"{leases}: request", many[0].request, lending.request, _THREE)
    yield Line(f"{leases}: request + release", many[0].both, lending.both, _THREE)
    yield Line(f"{leases}: client.boost_status(), one changed", many[1], status, _THREE)


def _joined(one: Halves, other: Halves) -> Halves:
    return Halves(one.requests + other.requests, one.releases + other.releases)


def _beside(count: int, effort: Effort) -> tuple[Halves, Samples]:
    say(f"  beside {count} leases of four parts")
    with _opened(share=2, prepare=lambda home: _keep(home, count)) as stage:
        client = GridClient(stage.home)
        try:
            until(lambda: client.boost_status()["total_active"] == count, what=f"{count} leases are active")
            lent = count * _UNITS * len(_LENDERS) / 10_000
            until(lambda: abs(stage.cpus(TARGET) - 2 - lent) < _LAST_DIGIT, what="all of them are delivered")
            time.sleep(1.0)
            lending = asyncio.run(_lend(stage, effort.calls))
            return lending, status_again(stage, effort.calls)
        finally:
            client.close()


async def _lend(stage: Stage, rounds: int) -> Halves:
    async with ResourceBoostManager(stage.config) as manager:
        ways = {"ours": Boosting(manager, "transfer", 0.01)}
        return (await take_turns(ways, _totals_show(stage), rounds))["ours"]


def _keep(home: GridHome, count: int) -> None:
    """Boosts in the file, as those of a cluster that was stopped: the next start restores them."""
    home.create()
    now = datetime.now(UTC)
    part = ResourceVector({"cpu": _UNITS})
    shares = tuple(Share(name, _UNITS, part, "for the benchmark") for name in _LENDERS)
    leases = tuple(
        Lease(
            id=f"{number:08x}-0000-4000-8000-000000000000",
            source=_LENDERS[0],
            target=TARGET,
            kind="cpu",
            units=_UNITS * len(_LENDERS),
            resources=total([part] * len(_LENDERS)),
            priority=AllocationPriority.NORMAL,
            delivery=Delivery.TRANSFER,
            delivery_reason="for the benchmark",
            state=LeaseState.ACTIVE,
            allocated_at=now,
            expires_at=now + timedelta(days=1),
            duration_s=86_400.0,
            shares=shares,
        )
        for number in range(count)
    )
    BoostFile(home.boosts).save(leases, ClusterIdentity(_NAME, frozenset({TARGET, *_LENDERS})))


@contextmanager
def _opened(share: float, prepare: Callable[[GridHome], object] = GridHome.create) -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="grid-bench-parts-") as folder:
        config = Path(folder) / "parts.yaml"
        config.write_text(_config(share))
        with open_stage(config, prepare) as stage:
            yield stage
