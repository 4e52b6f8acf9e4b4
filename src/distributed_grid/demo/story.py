"""The story: a job that is too big for its node, and what lending does about it."""

import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import ray
from ray import cloudpickle

from distributed_grid.cli.output import quantity
from distributed_grid.decide.monitoring.naming import NAME_LABEL
from distributed_grid.demo.commands import Grid
from distributed_grid.demo.ray_view import Amounts, RayView
from distributed_grid.demo.show import Checked, Show, check, last_look
from distributed_grid.errors import GridError
from distributed_grid.model.resources import CPU, GPU, ResourceVector, amount_of, scale
from distributed_grid.sdk.boosts import ResourceBoost

TARGET: Final = "gpu-master"
EXTRA_CPUS: Final = 2
SHORT_S: Final = 5
_AT_MOST_S: Final = "120"
"""How long the other boosts last at most, even if the demo dies."""

# Bounds, not expectations: on a busy machine a Ray worker takes seconds to start.
_TASK_S: Final = 30.0
_VIEW_S: Final = 10.0

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # for `_where_am_i`: workers have no grid


def _where_am_i() -> dict[str, Any]:
    """The demo's task: where it runs, and what Ray gave it. It travels by value, so it uses only what it imports."""
    import ray

    context = ray.get_runtime_context()
    return {
        "node_id": context.get_node_id(),
        "resources": dict(context.get_assigned_resources()),
        "gpus": [str(gpu) for gpu in ray.get_gpu_ids()],
    }


class Story:
    """Six steps on one cluster; each leaves the cluster as it found it, except for what the next step needs."""

    def __init__(self, view: RayView, grid: Grid, show: Show) -> None:
        self._view, self._grid, self._show = view, grid, show
        self._base = view.bases()
        self._needs = float(amount_of(CPU, self._base[TARGET][CPU])) + EXTRA_CPUS
        self._job: Any = None
        self.checks: list[Checked] = []

    def play(self) -> list[Checked]:
        """All steps in order. A refused command ends the story and counts as a failed claim."""
        try:
            for title, step in self.steps():
                self._show.step(title)
                step()
        except GridError as error:
            self._found(Checked("The command is carried out", False, error.message, "no error"))
        finally:
            with suppress(GridError):  # if the cluster is gone, there is nothing to release
                self._grid.release_what_is_left()
        return self.checks

    def steps(self) -> list[tuple[str, Callable[[], None]]]:
        return [
            ("What the nodes have", self.base_capacity),
            (f"A job that is too big for {TARGET}", self.a_job_waits),
            (f"{EXTRA_CPUS} CPUs move to {TARGET}, and the job runs there", self.a_boost_lets_it_run),
            (f"A GPU for {TARGET}, reserved on a node that has one", self.a_gpu_is_reserved),
            (f"A boost of {SHORT_S} s ends by itself", self.a_short_boost_expires),
            ("Everything is back where it was", self.all_is_back),
        ]

    def base_capacity(self) -> None:
        self._show.nodes(self._base)
        self._show.aside("Raylets on one machine: the amounts are given to Ray, and are not its hardware.")
        self._check("Every node offers what it started with", self._view.totals, self._base, say=cpus_and_gpus)

    def a_job_waits(self) -> None:
        self._show.say(f"A plain Ray task asks for {self._needs:g} CPUs on {TARGET}, and nowhere else.")
        self._job = _task(num_cpus=self._needs, label_selector={NAME_LABEL: TARGET})
        self._check(
            "It is pending: no node can run it",
            lambda: (_is_done(self._job), self._view.waits_for(self._needs, TARGET)),
            (False, 1),
            within_s=_VIEW_S,
            say=lambda seen: (
                f"{'finished' if seen[0] else 'not started'}; "
                f"{seen[1]} pending demand for {self._needs:g} CPUs on {TARGET}"
            ),
        )

    def a_boost_lets_it_run(self) -> None:
        boost = self._request(TARGET, CPU, str(EXTRA_CPUS), "--duration", _AT_MOST_S)
        self._check(
            f"The capacity itself has moved: +{EXTRA_CPUS} on {TARGET}, -{EXTRA_CPUS} on {boost.source_node}",
            self._view.totals,
            self._moved(boost.source_node, EXTRA_CPUS),
            within_s=_VIEW_S,
            say=cpus,
        )
        self._check(
            f"The waiting job ran by itself, on {TARGET}, with {self._needs:g} CPUs",
            lambda: self._ran(self._job, "CPU"),
            (TARGET, self._needs),
            say=lambda seen: f"ran on {seen[0]} with {seen[1]:g} CPUs",
        )
        self._give_back(boost)
        self._check("They are returned", self._view.totals, self._base, within_s=_VIEW_S, say=cpus)

    def a_gpu_is_reserved(self) -> None:
        boost = self._request(TARGET, GPU, "1", "--duration", _AT_MOST_S)
        lender, group = boost.source_node, str(boost.placement_group_id)
        self._check(
            f"Its placement group is on the lender, {lender}",
            lambda: self._view.nodes_of_group(group),
            [lender],
            say=lambda seen: f"group {group[:8]} is on {', '.join(seen)}",
        )
        self._check(
            "No other program gets that GPU meanwhile",
            lambda: self._view.free()[lender][GPU],
            self._base[lender][GPU] - scale(GPU),
            within_s=_VIEW_S,
            say=lambda seen: f"{amount_of(GPU, seen)} GPUs of {lender} are free outside of the group",
        )
        self._check(
            f"A task with num_gpus=1 in that group ran on {lender}",
            lambda: self._ran(_task(**boost.options(num_gpus=1)), "GPU"),
            (lender, 1.0),
            say=lambda seen: f"ran on {seen[0]} with {seen[1]:g} GPU",
        )
        self._give_back(boost)
        self._check(
            "The reservation is gone, and the GPU is free again",
            lambda: (self._view.grid_groups(), self._view.free()),
            ([], self._base),
            within_s=_VIEW_S,
            say=lambda seen: f"{len(seen[0])} groups of grid; free {cpus_and_gpus(seen[1])}",
        )

    def a_short_boost_expires(self) -> None:
        boost = self._request(TARGET, CPU, "1", "--duration", str(SHORT_S))
        self._check(
            "It is there, and the command that asked for it has ended",
            self._view.totals,
            self._moved(boost.source_node, 1),
            within_s=SHORT_S / 2,
            say=cpus,
        )
        with self._show.waiting("No client does anything ..."):
            seen = last_look(self._view.totals, lambda totals: totals == self._base, SHORT_S + _VIEW_S)
        late_s = (datetime.now(UTC) - boost.expires_at).total_seconds()
        self._found(
            Checked(
                f"When its {SHORT_S} s were over it was returned, and no client had to ask",
                seen == self._base and late_s >= 0,
                f"{cpus(seen)}, {SHORT_S + late_s:.1f} s after the grant",
                f"{cpus(self._base)}, at least {SHORT_S} s after the grant",
            )
        )
        self._grid.forget(boost.boost_id)

    def all_is_back(self) -> None:
        raw = {name: {k: v for k, v in node.base.items() if v} for name, node in self._view.nodes().items()}
        self._check(
            "Every resource of every node is exactly at its base",
            self._view.raw_totals,
            raw,
            within_s=_VIEW_S,
            say=lambda seen: f"{sum(map(len, seen.values()))} resources on {len(seen)} nodes, {_differ(seen, raw)}",
        )
        self._check(
            "All of it is free, and no reservation and no boost is left",
            lambda: (self._view.free(), self._view.grid_groups(), self._grid.status()["boosts"]),
            (self._base, [], []),
            within_s=_VIEW_S,
            say=lambda seen: f"free {cpus_and_gpus(seen[0])}; {len(seen[1])} groups; grid lists {len(seen[2])} boosts",
        )

    # -- what the steps are made of ---------------------------------------------------------------------------

    def _request(self, *words: str) -> ResourceBoost:
        self._show.command("boost", "request", *words)
        boost = ResourceBoost.from_dict(self._grid.request(*words))
        what = quantity(boost.resource_type, boost.amount)
        self._show.aside(f"{what} from {boost.source_node} ({boost.delivery_reason})")
        return boost

    def _give_back(self, boost: ResourceBoost) -> None:
        self._show.command("boost", "release", boost.boost_id[:8])
        self._grid.release(boost.boost_id)

    def _moved(self, source: str, amount: int) -> Amounts:
        lent = ResourceVector.of(cpu=amount)
        return self._base | {TARGET: self._base[TARGET] + lent, source: self._base[source] - lent}

    def _ran(self, task: Any, resource: str) -> tuple[str, float]:
        """The node where a task ran and what Ray gave it; no node if it has not run within the bound."""
        try:
            answer = ray.get(task, timeout=_TASK_S)
        except ray.exceptions.RayError as error:
            return f"no node ({type(error).__name__} after at most {_TASK_S:.0f} s)", 0.0
        return self._view.name_of(answer["node_id"]), float(answer["resources"].get(resource, 0.0))

    def _check(self, claim: str, look: Callable[[], Any], expected: Any, *, within_s: float = 0.0, say: Any) -> None:
        self._found(check(claim, look, expected, within_s=within_s, describe=say))

    def _found(self, checked: Checked) -> None:
        self.checks.append(checked)
        self._show.checked(checked)


def _task(**options: Any) -> Any:
    return ray.remote(_where_am_i).options(max_retries=0, **options).remote()


def _is_done(task: Any) -> bool:
    return bool(ray.wait([task], timeout=0)[0])


def cpus(amounts: Amounts) -> str:
    return "CPUs " + ", ".join(f"{name} {amount_of(CPU, has[CPU])}" for name, has in amounts.items())


def cpus_and_gpus(amounts: Amounts) -> str:
    """ "gpu-master 4, gpu1 8 + 1 GPU": short enough for one line."""

    def one(has: ResourceVector) -> str:
        gpus = amount_of(GPU, has[GPU])
        return f"{amount_of(CPU, has[CPU])}" + (f" + {gpus} GPU" if gpus else "")

    return "CPUs " + ", ".join(f"{name} {one(has)}" for name, has in amounts.items())


def _differ(seen: dict[str, dict[str, float]], base: dict[str, dict[str, float]]) -> str:
    wrong = [
        f"{node} {kind}: {seen.get(node, {}).get(kind, 0):g}, not {base.get(node, {}).get(kind, 0):g}"
        for node in sorted({*seen, *base})
        for kind in sorted({*seen.get(node, {}), *base.get(node, {})})
        if seen.get(node, {}).get(kind, 0) != base.get(node, {}).get(kind, 0)
    ]
    return "; ".join(wrong) or "none differs"
