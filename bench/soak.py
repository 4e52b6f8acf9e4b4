"""`make soak`: everything at once for a long time, and nothing may grow.

Eight clients request, renew and release at random; boosts expire; the controller is killed now and then, and a whole
node dies and returns. Meanwhile a sampler adds up what the cluster shows. Along the way and at the end, the soak checks
memory, files, groups and totals.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click
import psutil
import ray
from rich.console import Console
from rich.table import Table

from bench.raylets import Raylets
from bench.stage import Stage, open_stage, say, until
from bench.storm import Sampler, Storm
from distributed_grid.client import GridClient
from distributed_grid.cluster.end_signals import EndRequested, EndSignals
from distributed_grid.errors import BoostNotFound

_LOOK_EVERY_S: Final = 10.0
_KILL_EVERY_S: Final = 45.0
_LOSE_EVERY_S: Final = 170.0
_KINDS: Final = ("CPU", "memory", "GPU")
_MB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Look:
    """What might grow."""

    at_s: float
    controller_mb: float
    """For a controller that has been up for a while; a restart begins again."""
    files: int
    audit_mb: float
    """The audit log, which grows by design, up to four files of 64 MB."""
    other_mb: float
    groups: int
    boosts: int
    open_files: int


def wishes(chance: random.Random) -> dict[str, Any]:
    kind, amount, delivery = chance.choice(
        [("cpu", 1, "transfer"), ("memory", 0.5, "transfer"), ("cpu", 1, "reserve"), ("gpu", 1, "reserve")]
    )
    target = chance.choice(["gpu-master", "gpu-master", "gpu1", "gpu2"])
    return {"target_node": target, "resource_type": kind, "amount": amount, "delivery": delivery}


@click.command()
@click.option("--minutes", default=20.0, show_default=True)
@click.option(
    "--json", "json_file", default="bench-results/soak.json", show_default=True, type=click.Path(path_type=Path)
)
def main(minutes: float, json_file: Path) -> None:
    """Let everything happen at once for a long while."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # Ray notices a dead node in seconds: the soak is about what follows.
    os.environ |= {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "3"}
    try:
        with EndSignals(may_insist=False), open_stage() as stage:  # a second Ctrl-C would leave half a cluster behind
            found = _soak(stage, minutes * 60)
    except EndRequested as request:
        sys.exit(128 + request.number)
    json_file.parent.mkdir(parents=True, exist_ok=True)
    json_file.write_text(json.dumps(found, indent=2) + "\n")
    _show(found)
    sys.exit(1 if found["problems"] else 0)


def _soak(stage: Stage, seconds: float) -> dict[str, Any]:
    raylets = Raylets(stage.home, stage.config)
    base = {kind: sum(node["Resources"].get(kind, 0.0) for node in ray.nodes()) for kind in _KINDS}
    storm = Storm(stage.home, wishes, calls=10**9, pause_s=0.05)
    looks: list[Look] = []
    kills = losses = 0
    began = time.monotonic()
    chance = random.Random(3)
    with Sampler(_KINDS, pause_s=0.005).running() as seen:
        storm.start()
        next_kill, next_loss = began + _KILL_EVERY_S, began + _LOSE_EVERY_S
        while (now := time.monotonic()) - began < seconds:
            time.sleep(_LOOK_EVERY_S)
            looks.append(_look(stage, now - began))
            say(f"{looks[-1].at_s / 60:.1f} min: {looks[-1]}; {dict(storm.counts)}; {kills} kills, {losses} nodes lost")
            if now > next_loss:
                next_loss = now + _LOSE_EVERY_S
                losses += 1
                name = chance.choice(["gpu1", "gpu2"])
                with storm.without(name):
                    _lose_and_return(raylets, name)
            elif now > next_kill:
                next_kill = now + _KILL_EVERY_S
                kills += 1
                os.kill(stage.controller_pid(), signal.SIGKILL)
        storm.stop()
        _give_all_back(stage)
    looks.append(_look(stage, time.monotonic() - began))
    problems = [*dict.fromkeys(storm.trouble), *_growth(looks)]
    problems += [
        f"{kind}: {most} was shown, there are {base[kind]}" for kind, most in seen.most.items() if most > base[kind]
    ]
    if looks[-1].groups:
        problems.append(f"{looks[-1].groups} groups are left")
    return {
        "minutes": round(seconds / 60, 1),
        "calls": dict(storm.counts),
        "kills": kills,
        "nodes_lost": losses,
        "samples": seen.samples,
        "looks": [asdict(look) for look in looks],
        "problems": problems,
    }


def _look(stage: Stage, at_s: float) -> Look:
    sizes = dict(_sizes(stage.home.path))
    audit = sum(size for path, size in sizes.items() if path.name.startswith(stage.home.audit_log.name))
    with closing(GridClient(stage.home)) as client:
        boosts = len(client.boost_status()["boosts"])
    controller = psutil.Process(stage.controller_pid())
    groups = [g for g in ray.util.placement_group_table().values() if g["state"] != "REMOVED"]
    return Look(
        round(at_s, 1),
        round(controller.memory_info().rss / _MB, 1),
        len(sizes),
        round(audit / _MB, 2),
        round((sum(sizes.values()) - audit) / _MB, 2),
        len(groups),
        boosts,
        controller.num_fds(),
    )


def _sizes(folder: Path) -> Iterator[tuple[Path, int]]:
    """All files except Ray's logs; a file that is being replaced may be missing."""
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file() and "logs" not in path.parts:
                yield path, path.stat().st_size


def _lose_and_return(raylets: Raylets, name: str) -> None:
    before = _nodes()
    raylets.kill(name)
    until(lambda: name not in _nodes(), what=f"Ray knows that {name} is dead")
    raylets.start(name)
    until(lambda: _nodes().keys() == before.keys(), what=f"{name} is back")


def _nodes() -> dict[str, str]:
    return {node["Labels"]["grid/name"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}


def _give_all_back(stage: Stage) -> None:
    client = GridClient(stage.home)
    for boost in client.boost_status()["boosts"]:
        with suppress(BoostNotFound):  # it expired before its turn came
            client.release_boost(boost["boost_id"], {"grace_seconds": 0, "wait_seconds": 5})
    until(lambda: not client.boost_status()["boosts"], what="no boost is left")
    client.close()
    until(stage.is_at_base, what="every node at its base")


def _growth(looks: list[Look]) -> list[str]:
    """Compares the second quarter with the last: by the second, everything has been used once."""
    quarter = len(looks) // 4
    if quarter < 3:
        return []
    early, late = looks[quarter : 2 * quarter], looks[-quarter:]
    found = []
    for name, allowed in (("controller_mb", 25.0), ("files", 3), ("other_mb", 0.5), ("open_files", 20)):
        before, after = (sorted(getattr(look, name) for look in part)[len(part) // 2] for part in (early, late))
        if after - before > allowed:
            found.append(f"{name} grew from {before} to {after}")
    return found


def _show(found: dict[str, Any]) -> None:
    table = Table(
        title=f"{found['minutes']} minutes, {found['kills']} kills, {found['nodes_lost']} nodes lost",
        title_justify="left",
    )
    for heading in Look.__dataclass_fields__:
        table.add_column(heading, justify="right")
    step = max(1, len(found["looks"]) // 12)
    for look in [*found["looks"][::step], found["looks"][-1]]:
        table.add_row(*(str(value) for value in look.values()))
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    print(f"Calls: {found['calls']}; {found['samples']:,} samples of the totals")
    print("\n".join(found["problems"]) or "Nothing grew, nothing was lost, nothing was there twice.")


if __name__ == "__main__":
    main()
