"""What the controller of a real cluster tells of its nodes, and the probes that it has there."""

import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import ray
from live_grid import LiveGrid, until
from prometheus_client.parser import text_string_to_metric_families

from distributed_grid.execution.actors import NAMESPACE, names
from distributed_grid.monitoring.probes import PREFIX

NAMES = ("head", "one", "two")
"""Those of the configuration `TWO_LENDERS`."""
PATIENCE_S = 30

Node = dict[str, Any]


def nodes(grid: LiveGrid) -> dict[str, Node]:
    return {node["name"]: node for node in grid.client.nodes()["nodes"]}


def pressures(grid: LiveGrid, kind: str) -> dict[str, float]:
    """By what each node does itself, in one answer in which all of them were measured."""

    def measured() -> dict[str, float] | None:
        found = nodes(grid)
        return (
            {n: found[n]["pressure"][f"own_{kind}"] for n in NAMES}
            if all(found[n]["state"] == "ok" for n in NAMES)
            else _not_yet()
        )

    return until(measured, PATIENCE_S, "all nodes measured")


def sought(look: Callable[[], Any], is_it: Callable[[Any], bool], what: str) -> Any:
    """What is found once it is as it should be."""
    return until(lambda: found if (found := look()) and is_it(found) else _not_yet(), PATIENCE_S, what)


def _not_yet() -> None:
    time.sleep(0.2)  # who asks the controller all the time keeps it busy, and its node is measured


def samples(grid: LiveGrid, metric: str) -> dict[tuple[str, ...], float]:
    """What `/metrics` says, by the values of the labels in order of their names."""
    url = json.loads(grid.home.controller.read_text())["url"]
    token = grid.home.token.read_text().strip()
    asked = urllib.request.Request(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if sample.name == metric
    }


def probes() -> dict[str, str]:
    """The probes that are in the cluster: the id of the node, and the actor's name."""
    return {name.removeprefix(PREFIX).rpartition("-")[0]: name for name in names(PREFIX)}


def probe_pid(node_id: str) -> int:
    probe = ray.get_actor(probes()[node_id], namespace=NAMESPACE)
    return int(ray.get(probe.about.remote(), timeout=PATIENCE_S)["pid"])
