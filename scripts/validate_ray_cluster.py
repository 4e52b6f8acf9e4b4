#!/usr/bin/env python3
"""Validate a Ray cluster: every node by what it really does, not by what it says.

    python scripts/validate_ray_cluster.py [--address HOST:PORT] [--json]

Each node runs a task, gives room to a placement group, passes an object on to the next node, and must offer what
it started with, less what it has lent, plus what it has borrowed. Nothing is left behind.

Exit code 0: all is well. 5: no cluster. 9: something is wrong; stderr says what.
"""

import json
import os
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import click
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from rich.console import Console
from rich.table import Table

from distributed_grid.cli.output import explain, is_a_terminal, json_option, say
from distributed_grid.client import GridClient
from distributed_grid.client.whereabouts import NO_CLUSTER
from distributed_grid.demo.ray_view import RayView, driver_of
from distributed_grid.demo.show import last_look
from distributed_grid.errors import CheckFailed, GridError, NoCluster
from distributed_grid.execution.capacity import BORROWED, LENT
from distributed_grid.execution.processes import on
from distributed_grid.model.resources import BUILT_IN, CPU, ResourceVector, amount_of, describe, scale

PATIENCE_S: Final = 30.0
SETTLES_S: Final = 5.0
OBJECT_BYTES: Final = 1_000_000  # above what Ray sends along with a reply: it has to go through the object stores
CHECKS: Final = ("task", "group", "objects", "totals")
AMOUNTS: Final = ("base", "total", "free", "lent", "borrowed")


@dataclass
class NodeReport:
    """One node as Ray shows it, and for every check whether it passed (None: it did not apply)."""

    name: str
    node_id: str
    is_head: bool
    base: ResourceVector
    total: ResourceVector
    free: ResourceVector
    lent: ResourceVector
    borrowed: ResourceVector
    checks: dict[str, bool | None] = field(default_factory=lambda: dict.fromkeys(CHECKS))
    problems: list[str] = field(default_factory=list)

    def note(self, check: str, problem: str | None) -> None:
        self.checks[check] = problem is None
        if problem is not None:
            self.problems.append(f"{self.name}: {problem}")

    def to_dict(self) -> dict[str, Any]:
        plain = {"name": self.name, "node_id": self.node_id, "is_head": self.is_head, "checks": self.checks}
        return plain | {part: getattr(self, part).to_amounts() for part in AMOUNTS}


def look(view: RayView) -> list[NodeReport]:
    """Every node now. What is lent and borrowed is read from grid's marker resources on the nodes."""
    totals, free = view.raw_totals(), view.free()
    return [
        NodeReport(
            name,
            node.node_id,
            node.is_head,
            base=ResourceVector.from_ray(node.base),
            total=ResourceVector.from_ray(totals[name]),
            free=free[name],
            lent=marked(totals[name], LENT),
            borrowed=marked(totals[name], BORROWED),
        )
        for name, node in view.nodes().items()
    ]


def marked(total: Mapping[str, float], prefix: str) -> ResourceVector:
    kinds = {name.removeprefix(prefix): amount for name, amount in total.items() if name.startswith(prefix)}
    return ResourceVector({kind: round(amount * scale(kind)) for kind, amount in kinds.items()})


def check_tasks(nodes: list[NodeReport]) -> None:
    """A task that needs no CPU, pinned: even a full node must run it."""
    asked = {node.name: on(node.node_id, node_id_here) for node in nodes}
    for node in nodes:
        found, problem = outcome(asked[node.name])
        if problem is None and found != node.node_id:
            problem = f"it ran on node {found[:8]}"
        node.note("task", problem and f"a task pinned to it did not run there: {problem}")


def check_groups(nodes: list[NodeReport]) -> None:
    """A placement group on every node with a free CPU, or part of one."""
    for node in nodes:
        if node.free[CPU] <= 0:
            continue
        cpus = min(1.0, float(amount_of(CPU, node.free[CPU])))
        group = placement_group([{"CPU": cpus}], bundle_label_selector=[{"ray.io/node-id": node.node_id}])
        try:
            made = group.wait(PATIENCE_S)
        finally:
            remove_placement_group(group)
        node.note("group", None if made else f"no placement group of {cpus:g} CPU within {PATIENCE_S:g} s")


def check_objects(nodes: list[NodeReport]) -> None:
    """In a ring: each node makes an object that the next one reads."""
    if len(nodes) < 2:
        return
    ring = list(zip(nodes, [*nodes[1:], nodes[0]], strict=True))
    made = {node.name: on(node.node_id, make_object, node.name) for node in nodes}
    read = {reader.name: on(reader.node_id, checksum, made[maker.name]) for maker, reader in ring}
    for maker, reader in ring:
        found, problem = outcome(read[reader.name])
        if problem is None and found != checksum(make_object(maker.name)):
            problem = "it arrived damaged"
        reader.note("objects", problem and f"an object from {maker.name} cannot be read: {problem}")


def check_totals(view: RayView, nodes: list[NodeReport]) -> None:
    """Base, less what was lent, plus what was borrowed; a boost that comes or goes just now gets its time."""
    settled = last_look(lambda: look(view), lambda seen: not any(map(difference, seen)), SETTLES_S)
    latest = {node.name: node for node in settled}
    for node in nodes:
        node.note("totals", difference(latest.get(node.name, node)))


def difference(node: NodeReport) -> str | None:
    due = node.base - node.lent + node.borrowed
    wrong = [
        f"it offers {describe(kind, node.total[kind])}; base - lent + borrowed is {describe(kind, due[kind])}"
        for kind in sorted({*node.total, *due})
        if node.total[kind] != due[kind]
    ]
    return "; ".join(wrong) or None


def outcome(reference: Any) -> tuple[Any, str | None]:
    """A task's result, or what went wrong."""
    try:
        return ray.get(reference, timeout=PATIENCE_S), None
    except ray.exceptions.GetTimeoutError:
        return None, f"not within {PATIENCE_S:g} s"
    except ray.exceptions.RayError as error:
        return None, type(error).__name__


# These three run on the nodes. They go there by value: nothing of grid need be installed.


def node_id_here() -> str:
    return str(ray.get_runtime_context().get_node_id())


def make_object(seed: str) -> bytes:
    return seed.encode().ljust(OBJECT_BYTES, b".")


def checksum(data: bytes) -> int:
    return zlib.crc32(data)


def find_address(given: str | None) -> tuple[str, str, list[str]]:
    """Where the cluster is, who says so, and which configured nodes its controller misses."""
    if given:
        return given, "--address", []
    client = GridClient(on_wait=say)
    try:
        status = client.cluster_status()
    except NoCluster:
        if address := os.environ.get("RAY_ADDRESS"):
            return address, "RAY_ADDRESS", []
        raise NoCluster(
            "There is no Ray cluster to validate",
            because=["no --address is given, no controller is running here, and RAY_ADDRESS is not set"],
            try_next=f"{NO_CLUSTER}, or name one: --address HOST:PORT",
        ) from None
    finally:
        client.close()
    missing = [f"{node['name']}: configured, but not connected" for node in status["nodes"] if not node["alive"]]
    return status["ray_address"], f"the controller of {client.home.path}", missing


def table(nodes: list[NodeReport]) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column("Node", no_wrap=True)
    for heading in ("CPUs", "GPUs", "memory GB"):
        made.add_column(heading, justify="right")
    for heading in ("Lent", "Borrowed", *(check.capitalize() for check in CHECKS)):
        made.add_column(heading)
    words: dict[bool | None, str] = {True: "[green]ok[/]", False: "[bold red]FAILED[/]", None: "[dim]-[/]"}
    for node in nodes:
        made.add_row(
            f"{node.name} (head)" if node.is_head else node.name,
            *(f"{amount_of(kind, node.free[kind]):g}/{amount_of(kind, node.total[kind]):g}" for kind in BUILT_IN),
            node.lent.describe() if node.lent else "-",
            node.borrowed.describe() if node.borrowed else "-",
            *(words[passed] for passed in node.checks.values()),
        )
    return made


def validate(address: str) -> tuple[str, list[NodeReport]]:
    """The address that answered, and every node with its checks done."""
    with driver_of(address) as view:
        nodes = look(view)
        check_totals(view, nodes)
        check_tasks(nodes)
        check_groups(nodes)
        check_objects(nodes)
        return view.gateway.gcs_address, nodes


@click.command(help="Validate a Ray cluster: every node by what it really does, not by what it says.")
@click.option(
    "--address", metavar="HOST:PORT", help="The cluster.  [default: the one that grid runs, then $RAY_ADDRESS]"
)
@json_option
def main(address: str | None, as_json: bool) -> None:
    try:
        found, says_who, problems = find_address(address)
        reached, nodes = validate(found)
    except GridError as error:
        explain(error, as_json)
        sys.exit(error.exit_code)
    problems += [problem for node in nodes for problem in node.problems]
    if as_json:
        report = {"ray_address": reached, "ray": ray.__version__, "ok": not problems, "problems": problems}
        print(json.dumps(report | {"nodes": [node.to_dict() for node in nodes]}, indent=2))
    else:
        out = Console(highlight=False, width=None if is_a_terminal() else 120)
        out.print(f"Ray {ray.__version__} at {reached} (from {says_who}); amounts are free/total\n")
        out.print(table(nodes))
        out.print(f"\n{len(problems)} problems" if problems else f"\nAll {len(nodes)} nodes are sound.")
    for problem in problems:
        say(click.style("Problem: ", fg="red", bold=True) + problem)
    sys.exit(CheckFailed.exit_code if problems else 0)


if __name__ == "__main__":
    main()
