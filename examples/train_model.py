#!/usr/bin/env python3
"""GPU: a small neural network learns where the inside of a ring is, on a GPU that another node lends.

    python examples/train_model.py [NODE]

It trains in the GPU boost that NODE (default: gpu-master) has; if it has none, it borrows a GPU while it trains. It
computes with cupy where the lender has that, else with numpy: the GPUs of an embedded cluster are only counted.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import ray

import distributed_grid as grid
from distributed_grid import GridError, ResourceBoostManager
from distributed_grid.cli.output import explain
from distributed_grid.client import GridClient

GOOD_ENOUGH = 0.95
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # nodes need not have this file


class Trainer:
    """One hidden layer, gradient descent with momentum. An actor: it lives on the GPU's node, with its data."""

    def __init__(self, points: int = 2_000, hidden: int = 32) -> None:
        try:
            import cupy as xp
        except ImportError:
            import numpy as xp
        self.xp, random = xp, xp.random.RandomState(7)
        places = random.uniform(-1, 1, (points, 2))
        distance = xp.sqrt((places**2).sum(axis=1))
        self.inputs = xp.hstack([places, xp.ones((points, 1))])
        self.wanted = ((distance > 0.4) & (distance < 0.8)).astype(float).reshape(-1, 1)
        self.weights = [random.randn(3, hidden), random.randn(hidden, 1) * 0.1]
        self.speed = [xp.zeros_like(each) for each in self.weights]

    def where(self) -> tuple[str, list[str], str]:
        context = ray.get_runtime_context()
        return context.get_node_labels()["grid/name"], context.get_accelerator_ids()["GPU"], self.xp.__name__

    def train(self, steps: int, rate: float = 0.3) -> float:
        """Take so many steps on half of the points; the part of the others that it then tells rightly."""
        seen, unseen = slice(0, None, 2), slice(1, None, 2)
        inputs, wanted = self.inputs[seen], self.wanted[seen]
        for _ in range(steps):
            hidden, said = self._think(inputs)
            wrong = (said - wanted) / len(said)
            slopes = [inputs.T @ ((wrong @ self.weights[1].T) * (1 - hidden**2)), hidden.T @ wrong]
            for weights, speed, slope in zip(self.weights, self.speed, slopes, strict=True):
                speed *= 0.9
                speed -= rate * slope
                weights += speed
        _, said = self._think(self.inputs[unseen])
        return float(((said > 0.5) == (self.wanted[unseen] == 1)).mean())

    def _think(self, inputs: Any) -> tuple[Any, Any]:
        hidden = self.xp.tanh(inputs @ self.weights[0])
        return hidden, 1 / (1 + self.xp.exp(-(hidden @ self.weights[1])))


@asynccontextmanager
async def a_gpu(node: str) -> AsyncIterator[dict[str, Any]]:
    """Ray options for an actor on a GPU that is reserved for it."""
    async with ResourceBoostManager() as boosts:
        active = await boosts.get_active_boosts(node)
        boost = next((b for b in active if b.resource_type == "gpu"), None)
        if boost is not None:
            print(f"{node} has a boost: {boost.amount:g} GPU of {boost.source_node}")
            yield boost.options(num_gpus=1)
            return
        async with grid.lease(gpus=1, target=node, label="train_model.py", manager=boosts) as lease:
            print(f"{node} borrows a GPU of {lease.node}, until this is done")
            yield lease.options(num_gpus=1)


async def main(node: str = "gpu-master") -> int:
    ray.init(GridClient().ray_address(), log_to_driver=False, logging_level="ERROR")
    async with a_gpu(node) as options:
        trainer = ray.remote(**options)(Trainer).remote()
        where, gpus, library = await trainer.where.remote()
        print(f"Training on {where}, on its GPU {', '.join(gpus)}; computing with {library}")
        for steps in range(200, 1001, 200):
            right = await trainer.train.remote(200)
            print(f"{steps:>5} steps: {right:.1%} of the points that it has not seen are right")
        ray.kill(trainer)
    if right < GOOD_ENOUGH:
        print(f"It has not learned enough: {GOOD_ENOUGH:.0%} was wanted", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(*sys.argv[1:2])))
    except GridError as error:
        explain(error, as_json=False)
        sys.exit(error.exit_code)
