"""Many clients at once: at no moment does the cluster show more than there is, and in the end all is returned."""

import os
import random
from typing import Any

import pytest
import ray
from live_grid import LiveGrid, until

from bench.storm import Sampler, Storm
from distributed_grid.orchestration.resource_boost_manager import ResourceBoost

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

CONFIG = """
name: storm-test
embedded: true
resource_sharing: {enabled: true, mode: share_and_offload, thresholds: {excess_threshold: 0}}
nodes:
- {name: head, role: master, cpu_count: 2, memory_gb: 4}
- {name: one, cpu_count: 8, memory_gb: 8, gpu_count: 2, resources: {license: 4}}
- {name: two, cpu_count: 8, memory_gb: 8, gpu_count: 2, resources: {license: 4}}
- {name: three, cpu_count: 4, memory_gb: 2}
"""
WITH_FAULTS = True  # as test_kills, which has the same cluster
KINDS = ("CPU", "memory", "license", "GPU")


def random_request(chance: random.Random) -> dict[str, Any]:
    """Transfers of three kinds and reservations of three, for any node, from anywhere; some from several nodes."""
    kind, amount, delivery = chance.choice(
        [
            ("cpu", chance.choice([0.5, 1, 2]), "transfer"),
            ("memory", chance.choice([0.25, 1]), "transfer"),
            ("license", 1, "transfer"),
            ("cpu", chance.choice([5, 9]), "transfer"),
            ("cpu", 9, "reserve"),
            ("gpu", 3, "reserve"),
            ("cpu", 1, "reserve"),
            ("memory", 0.5, "reserve"),
            ("gpu", 1, "reserve"),
        ]
    )
    target = chance.choice(["head", "one", "two"])
    return {"target_node": target, "resource_type": kind, "amount": amount, "delivery": delivery}


def test_eight_clients_at_once_never_make_more_of_anything(grid: LiveGrid) -> None:
    base = {kind: sum(node.get(kind, 0.0) for node in grid.base.values()) for kind in KINDS}
    storm = Storm(grid.home, random_request)

    with Sampler(KINDS).running() as seen:
        storm.start()
        storm.join()
        held = {boost["boost_id"] for boost in grid.client.boost_status()["boosts"]}
        assert storm.held.keys() <= held
        grid.release_everything()

    assert storm.trouble == []
    assert seen.most == base
    assert seen.samples > 100
    for what in ("granted", "granted to expire", "renewed", "released"):
        assert storm.counts[what] > 10, storm.counts
    until(grid.is_at_base, 10, "every node exactly at base")
    grid.settled()


@ray.remote
def visible_gpus() -> str:
    return os.environ["CUDA_VISIBLE_DEVICES"]


def test_a_boost_says_how_many_gpus_and_ray_says_which(grid: LiveGrid) -> None:
    """Two boosts on one lender never share a device, and a boost keeps its own; which one it is, grid does not know."""
    grid.settled()
    first, second = (grid.boost("head", "gpu", 1, source_node="one") for _ in range(2))

    def devices(boost: dict[str, Any]) -> set[str]:
        inside = visible_gpus.options(**ResourceBoost.from_dict(boost).options(num_gpus=1))
        return set(ray.get([inside.remote() for _ in range(4)], timeout=120))

    of_first, of_second = devices(first), devices(second)
    assert len(of_first) == len(of_second) == 1, "every task of a boost gets the same device"
    assert of_first | of_second == {"0", "1"}
    assert devices(first) == of_first
    assert (first["resource_type"], first["amount"]) == ("gpu", 1)
    assert not [key for key in first if "device" in key], "a record that could differ from Ray's"

    grid.release(first)
    until(lambda: grid.free("one").get("GPU") == 1.0, 60, "one GPU is free again")
    third = grid.boost("head", "gpu", 1, source_node="one")
    assert devices(third) == of_first, "the only one that Ray had left"
    grid.release_everything()
