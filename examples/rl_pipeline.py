#!/usr/bin/env python3
"""Reinforcement learning with roles: rollout workers play, a trainer learns from what they played, a validator judges.

    python examples/rl_pipeline.py [--local] [--json]

A policy learns to balance a pole on a cart, by policy gradient, on the cluster that RAY_ADDRESS names or that grid runs
here; --local: in this process, without a cluster. It needs 6 CPUs, no GPU, and some 15 s. Meanwhile a rollout worker
is killed and comes back, and their number follows how full the trajectory pool is: while poles fall soon there is too
little to learn from, and once they stand there is too much. The exit code is 0 if the policy has learnt to balance.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import textwrap
import threading
import time
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import ray

from distributed_grid import GridError
from distributed_grid.cli.output import explain
from distributed_grid.client import GridClient
from distributed_grid.roles import LocalRun, RoleSpec, Run, Scaling, Workload, launch

EPISODE = 200  # steps; who balances for so long has done it
GOOD_ENOUGH = 150.0  # steps on average; by chance it is about 22
DONE = 180.0  # then it ends
BATCH = 1_000  # steps for one update of the policy
ROOM = 8 * BATCH  # in the pool
WORKERS = (2, 4)  # at least, at most
CARTS = 8  # played at a time by each worker
SIMULATOR_S = 0.001  # that a step takes besides: most simulators are slower than this one
RATE = 0.2  # of learning
ROUNDS = 4  # of playing and learning in an iteration
MOST_ITERATIONS = 60
KILL_AT = 4
SEED = 1
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # nodes need not have this file


# -- what is learnt -----------------------------------------------------------------------------------------------


class Steps(NamedTuple):
    """Of all episodes of one rollout, one after the other."""

    seen: np.ndarray
    """Of each cart: its place, its speed, the angle of its pole, and how fast that falls."""
    right: np.ndarray
    """Whether it was pushed to the right."""
    chance: np.ndarray
    """With which probability the policy that played did what it did."""
    to_come: np.ndarray
    """The reward of this step and of those after it, where later counts for less."""


def chance_of_right(policy: np.ndarray, seen: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-np.clip(seen @ policy, -20, 20))))


def moved(carts: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The carts 0.02 s later. A cart of 1 kg, a pole of 0.1 kg and 1 m, a push of 10 N: the well-known cart-pole."""
    _, speed, angle, falling = carts.T
    sine, cosine = np.sin(angle), np.cos(angle)
    push = (np.where(right, 10.0, -10.0) + 0.05 * falling**2 * sine) / 1.1
    faster_falling = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
    faster = push - 0.05 * faster_falling * cosine / 1.1
    return carts + 0.02 * np.stack([speed, faster, falling, faster_falling], axis=1)


def play(policy: np.ndarray, carts: int, chance: np.random.Generator, step_s: float = 0.0) -> tuple[Steps, float]:
    """Each cart until its pole falls; and for how many steps that did not happen, on average."""
    now, stands, played = chance.uniform(-0.05, 0.05, (carts, 4)), np.ones(carts, bool), list[Any]()
    while stands.any() and len(played) < EPISODE:
        likely = chance_of_right(policy, now)
        right = chance.random(carts) < likely
        played.append((now, right, np.where(right, likely, 1 - likely), stands))
        now = moved(now, right)
        stands = stands & (np.abs(now[:, 0]) < 2.4) & (np.abs(now[:, 2]) < 0.2095)
        time.sleep(step_s)
    seen, right, likely, stood = map(np.array, zip(*played, strict=True))
    to_come = np.zeros((len(played) + 1, carts))
    for step in reversed(range(len(played))):
        to_come[step] = stood[step] * (1 + 0.97 * to_come[step + 1])
    return Steps(seen[stood], right[stood], likely[stood], to_come[:-1][stood]), stood.sum() / carts


# -- who does what ------------------------------------------------------------------------------------------------


class RolloutWorker:
    """Plays with the newest policy, and gives what happened to the pool."""

    def __init__(self) -> None:
        self.played = 0

    def on_peers(self, peers: Any) -> None:
        """Told of the others when it starts, and again whenever one of them came, went or was restarted."""
        self.peers = peers
        self.pool, self.weights = peers["trajectory_pool"][0], peers["weight_sync"][0]

    def play(self) -> int:
        self.played += 1
        policy = self.peers.fetch(self.weights.newest.remote())
        chance = np.random.default_rng([self.peers.me.rank, self.played, SEED])
        steps, _ = play(policy, CARTS, chance, SIMULATOR_S)
        self.peers.fetch(self.pool.put.remote(steps))
        return len(steps.seen)

    def pid(self) -> int:
        return os.getpid()

    def drop_dead(self) -> None:
        """As a process does that the system kills, for its memory, say: without a word."""
        os.kill(os.getpid(), signal.SIGKILL)


class TrajectoryPool:
    """What was played, until the trainer learns from it. Workers call it, and so does the trainer beside it."""

    def __init__(self) -> None:
        self.rollouts: deque[Steps] = deque()
        self.steps = 0
        self.changing = threading.Lock()

    def put(self, steps: Steps) -> None:
        with self.changing:
            self.rollouts.append(steps)
            self.steps += len(steps.seen)
            while self.steps > ROOM:  # the oldest are furthest from what the policy is now
                self._oldest()

    def take(self, least: int) -> list[Steps]:
        """So many steps or a few more; none if there are fewer."""
        with self.changing:
            before, taken = self.steps, []
            while before >= least > before - self.steps:
                taken.append(self._oldest())
            return taken

    def fullness(self) -> float:
        """What the number of rollout workers follows."""
        return self.steps / ROOM

    def _oldest(self) -> Steps:
        found = self.rollouts.popleft()
        self.steps -= len(found.seen)
        return found


class WeightSync:
    """Where players get the newest policy."""

    def __init__(self) -> None:
        self.policy = np.zeros(4)

    def publish(self, policy: np.ndarray) -> None:
        self.policy = policy

    def newest(self) -> np.ndarray:
        return self.policy


class Trainer:
    """Makes what turned out well more likely. It shares its process with the pool and the weights: plain calls."""

    def __init__(self) -> None:
        self.policy, self.slope, self.size, self.updates = np.zeros(4), np.zeros(4), np.zeros(4), 0

    def on_peers(self, peers: Any) -> None:
        self.pool, self.weights = peers.sibling("trajectory_pool"), peers.sibling("weight_sync")

    def learn(self) -> int:
        """One update, if there is enough to learn from; how many there were."""
        rollouts = self.pool.take(BATCH)
        if rollouts:
            self._update(Steps(*map(np.concatenate, zip(*rollouts, strict=True))))
            self.weights.publish(self.policy)
        return self.updates

    def _update(self, steps: Steps) -> None:
        better = (steps.to_come - steps.to_come.mean()) / (steps.to_come.std() + 1e-8)
        likely = chance_of_right(self.policy, steps.seen)
        # Those who played had older policies: what this one would do less often counts for less.
        weight = np.minimum(np.where(steps.right, likely, 1 - likely) / steps.chance, 2.0)
        slope = ((weight * better * (steps.right - likely))[:, None] * steps.seen).mean(axis=0)
        self.updates += 1  # and the rest is Adam
        self.slope = 0.8 * self.slope + 0.2 * slope
        self.size = 0.95 * self.size + 0.05 * slope**2
        size = np.sqrt(self.size / (1 - 0.95**self.updates)) + 1e-8
        self.policy = self.policy + RATE * self.slope / (1 - 0.8**self.updates) / size


class Validator:
    """Plays as well, but is not trained on: it says how good the newest policy is."""

    def on_peers(self, peers: Any) -> None:
        self.peers = peers

    def mean_return(self, seed: int) -> float:
        """Of some episodes, which begin alike for the same seed."""
        policy = self.peers.fetch(self.peers["weight_sync"][0].newest.remote())
        return float(play(policy, 16, np.random.default_rng([seed, SEED]))[1])


def workload() -> Workload:
    # One process, one CPU. Should it die, what was learnt is lost, so that is not hidden by starting it anew.
    learning: dict[str, Any] = {"colocation_group": "learning", "failure_policy": "fail"}
    return Workload(
        "rl-pipeline",
        (
            RoleSpec(
                "rollout_worker",
                RolloutWorker,
                count=WORKERS,
                scaling=Scaling(
                    {"role": "trajectory_pool", "method": "fullness"},
                    up_at=0.3,
                    down_at=0.6,
                    every_seconds=0.25,
                    stable_seconds=0.5,
                    cooldown_seconds=1.0,
                ),
            ),
            RoleSpec("trainer", Trainer, **learning),
            RoleSpec("trajectory_pool", TrajectoryPool, **learning),
            RoleSpec("weight_sync", WeightSync, **learning),
            RoleSpec("validator", Validator, count=2, cpus=0.5),
        ),
    )


# -- the loop -----------------------------------------------------------------------------------------------------


class Story:
    """The run as a person likes to read it, and as JSON has it."""

    def __init__(self, run: Run | LocalRun) -> None:
        self.run = run
        self.lines: list[dict[str, Any]] = []
        self.events: dict[tuple[str, str], str] = {}
        self.say(f"{'iteration':>9}  {'workers':>7}  {'pool':>4}  {'updates':>7}  {'mean return':>11}")

    def say(self, message: str) -> None:
        print(message, flush=True)

    def line(self, iteration: int, workers: int, pool: float, updates: int, mean_return: float) -> None:
        for event in self.run.status()["events"]:  # its last ones
            key, message = (event["at"], event["message"]), event["message"]
            if key not in self.events:
                self.events[key] = message
                self.say(f"    {textwrap.shorten(message, 140)}")
        self.say(f"{iteration:>9}  {workers:>7}  {pool:>4.0%}  {updates:>7}  {mean_return:>11.1f}")
        self.lines.append(
            {"iteration": iteration, "workers": workers, "pool": pool, "updates": updates, "mean_return": mean_return}
        )

    @property
    def restarts(self) -> int:
        return sum(member["restarts"] for member in self.run.status()["members"])

    @property
    def is_whole(self) -> bool:
        """A worker was killed and is back, there were more of them, and then fewer again."""
        counts = [line["workers"] for line in self.lines]
        all_up = all(member["state"] == "up" for member in self.run.status()["members"])
        return self.restarts > 0 and all_up and WORKERS[0] < max(counts) > counts[-1]


def train(run: Run | LocalRun) -> dict[str, Any]:
    # A round waits a second at most for each player. A player that is away joins a later round.
    workers = run["rollout_worker"].options(deadline_s=1.0, errors="values")
    trainer, pool, validators = run["trainer"].rank_zero, run["trajectory_pool"].rank_zero, run["validator"]

    def mean_return(shards: int = 4) -> float:
        """Each validator plays a part of it."""
        return float(np.mean(validators.map("mean_return", range(shards))))

    local = isinstance(run, LocalRun)  # no member can be killed there without this process
    before, story = mean_return(), Story(run)
    for iteration in range(1, MOST_ITERATIONS + 1):
        for _ in range(ROUNDS):
            workers.call("play")
            updates = trainer.call("learn")
        now = mean_return()
        story.line(iteration, len(workers), pool.call("fullness"), updates, now)
        if iteration == KILL_AT and not local:
            story.say(f"    now rollout_worker 0 is killed, process {workers[0].call('pid')}")
            workers[0].drop_dead.remote()
        if now >= DONE and (local or story.is_whole):
            break
    after = mean_return(shards=10)
    return {
        "learnt": after >= GOOD_ENOUGH,
        "mean_return": {"before": before, "after": after, "most": EPISODE},
        "iterations": story.lines,
        "restarts": story.restarts,
        "events": [*story.events.values()],
    }


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--local", action="store_true", help="in this process, without a cluster: no member is killed")
    options.add_argument("--json", action="store_true", help="the result on stdout, and the story on stderr")
    chosen = options.parse_args()
    # Ray, too, writes to stdout when a worker dies.
    with contextlib.redirect_stdout(sys.stderr if chosen.json else sys.stdout):
        if not chosen.local:
            address = os.environ.get("RAY_ADDRESS") or GridClient().ray_address()
            ray.init(address, log_to_driver=False, logging_level="ERROR")
        with launch(workload(), local=chosen.local, progress=lambda told: print(told, file=sys.stderr)) as run:
            found = train(run)
        before, after = found["mean_return"]["before"], found["mean_return"]["after"]
        print(f"\nThe pole stands for {after:.0f} of {EPISODE} steps on average; before, it was {before:.0f}.")
        print("Learnt." if found["learnt"] else f"Not learnt: {GOOD_ENOUGH:.0f} was wanted.")
    if chosen.json:
        print(json.dumps(found))
    return 0 if found["learnt"] else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GridError as error:
        explain(error, as_json=False)
        sys.exit(error.exit_code)
