#!/usr/bin/env python3
"""Large memory: a dataset is sorted in memory on a node that has too little for it, with memory that others lend.

    python examples/process_large_dataset.py [NODE]

NODE (default: gpu-master) needs 12 GB at once. Boosts that it has count; what is still missing is borrowed meanwhile.
Every shard of the data is an actor that tells Ray what it needs (`memory=`), so Ray starts it only where that is
free. Amounts on an embedded cluster are counted, not measured: the rows here take a few MB.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import numpy as np
import ray

from distributed_grid import GridError, ResourceBoostManager, ResourceBoostRequest
from distributed_grid.cli.output import explain
from distributed_grid.client import GridClient

SHARDS, SHARD_GB, ROWS = 3, 4, 300_000
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # nodes need not have this file


@ray.remote(num_cpus=0.5, memory=SHARD_GB * 2**30)
class Shard:
    """A part of the rows; after the exchange, those of one range of values."""

    def __init__(self, number: int) -> None:
        self.rows = np.random.default_rng(number).lognormal(sigma=2.0, size=ROWS)

    def where(self) -> str:
        return str(ray.get_runtime_context().get_node_labels()["grid/name"])

    def facts(self) -> tuple[int, float, float, float, bool]:
        """How many rows, their sum, the smallest, the largest, and whether they are in order."""
        rows = self.rows
        return len(rows), float(rows.sum()), float(rows.min()), float(rows.max()), bool((rows[1:] >= rows[:-1]).all())

    def sample(self) -> np.ndarray:
        return self.rows[::100]

    def parts(self, bounds: np.ndarray) -> list[np.ndarray]:
        """Its rows by the range that they belong to."""
        range_of = np.searchsorted(bounds, self.rows, side="right")
        return [self.rows[range_of == number] for number in range(SHARDS)]

    def take(self, *parts: np.ndarray) -> None:
        self.rows = np.sort(np.concatenate(parts))


@asynccontextmanager
async def enough_memory(node: str, needed_gb: float) -> AsyncIterator[None]:
    """Meanwhile, the node has that much; what it lacks is lent by others."""
    async with ResourceBoostManager() as boosts:
        nodes = (await asyncio.to_thread(GridClient().cluster_status))["nodes"]
        has = next((each["total"]["memory"] for each in nodes if each["name"] == node), 0)
        print(f"{node} has {has:g} GB of memory, and needs {needed_gb:g} GB at once")
        if has >= needed_gb:
            yield
            return
        asked = ResourceBoostRequest(node, "memory", needed_gb - has, duration_seconds=600, delivery="transfer")
        boost_id = await boosts.request_boost(asked)
        if boost_id is None:
            assert boosts.last_refusal is not None
            raise boosts.last_refusal
        try:
            boost = await boosts.get_boost(boost_id)
            print(f"{boost.source_node} lends {boost.amount:g} GB, until this is done")
            yield
        finally:
            await boosts.release_boost(boost_id)


async def sort_on(node: str) -> int:
    shards = [Shard.options(label_selector={"grid/name": node}).remote(number) for number in range(SHARDS)]
    try:
        nodes = await asyncio.gather(*(shard.where.remote() for shard in shards))
        before = await asyncio.gather(*(shard.facts.remote() for shard in shards))
        sample = np.sort(np.concatenate(await asyncio.gather(*(shard.sample.remote() for shard in shards))))
        bounds = sample[[len(sample) * part // SHARDS for part in range(1, SHARDS)]]
        # By reference: rows go from shard to shard, not through this program.
        parts = [shard.parts.options(num_returns=SHARDS).remote(bounds) for shard in shards]
        await asyncio.gather(*(shard.take.remote(*(p[i] for p in parts)) for i, shard in enumerate(shards)))
        after = await asyncio.gather(*(shard.facts.remote() for shard in shards))
    finally:
        for shard in shards:
            ray.kill(shard)

    rows = [sum(count for count, *_ in facts) for facts in (before, after)]
    sums = [sum(total for _, total, *_ in facts) for facts in (before, after)]
    joins = all(left[3] <= right[2] for left, right in pairwise(after))
    print(f"{rows[1]:,} rows in {SHARDS} shards, all at once on {', '.join(sorted(set(nodes)))}:")
    for count, _, low, high, _ in after:
        print(f"{count:>10,} rows from {low:12.5f} to {high:12.5f}")
    if rows[0] == rows[1] and np.isclose(*sums) and joins and all(in_order for *_, in_order in after):
        print("All rows are there, and in order.")
        return 0
    print("Rows are missing, or out of order", file=sys.stderr)
    return 1


async def main(node: str = "gpu-master") -> int:
    ray.init(GridClient().ray_address(), log_to_driver=False, logging_level="ERROR")
    async with enough_memory(node, SHARDS * SHARD_GB):
        return await sort_on(node)


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(*sys.argv[1:2])))
    except GridError as error:
        explain(error, as_json=False)
        sys.exit(error.exit_code)
