"""What roles cost compared with plain Ray: starting 60 actors, calling 8 of them, and calls within a process."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import psutil
import ray

from bench.effort import Effort
from bench.figures import Limits, Line, Outcome, Samples
from bench.stage import TARGET, Stage, until
from distributed_grid.roles import RoleSpec, Workload, launch

_ACTORS: Final = 60
_CPUS: Final = 0.25
"""For each actor, so that all of them fit."""
_CALLED: Final = 8
_CALLS: Final = 20
"""Calls of which one sample is the mean."""
_PLAIN_CALLS: Final = 10_000
"""The same for calls that take less than a microsecond."""
_START: Final = Limits(times_baseline=1.2)
_GROUP_CALL: Final = Limits(times_baseline=1.1)
_SIBLING: Final = Limits(times_baseline=1 / 20)


class Member:
    """The actor that is started and called, the same class on both sides."""

    def pid(self) -> int:
        return os.getpid()

    def double(self, number: int) -> int:
        return 2 * number


class Caller:
    """Calls a `Member` in its own process, and one in another process of its node, timed by its own clock."""

    def on_peers(self, peers: Any) -> None:
        self._peers = peers

    def beside(self, calls: int) -> float:
        return mean_us(self._peers.sibling("sibling").double, calls)

    def elsewhere(self, calls: int) -> float:
        member, fetch = self._peers["elsewhere"][0], self._peers.fetch
        return mean_us(lambda number: fetch(member.double.remote(number)), calls)


def run(_stage: Stage, effort: Effort) -> Outcome:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # this module is not installed on nodes
    found = _starting(effort.programs) | _calling(effort.rounds) | _siblings(effort.rounds)
    return Outcome("running roles", "plain Ray", lines(found))


def lines(found: Mapping[str, Samples]) -> tuple[Line, ...]:
    """The figures, with their promises."""
    return (
        Line(f"starting {_ACTORS} actors", found["launch"], found["actors"], _START, "s"),
        Line("CPU time of each process until then", found["launch: CPU"], found["actors: CPU"], unit="CPU ms"),
        Line(f"group.call on {_CALLED} members", found["group call"], found["calls"], _GROUP_CALL),
        Line("the members called by hand", found["calls of members"], found["calls"]),
        Line("a call between siblings in one process", found["beside"], found["elsewhere"], _SIBLING, "µs"),
    )


def members(count: int) -> Workload:
    return Workload("bench", (RoleSpec("member", Member, count=count, cpus=_CPUS),))


def pair() -> Workload:
    return Workload(
        "bench",
        (
            RoleSpec("caller", Caller, colocation_group="together", node_affinity=[TARGET]),
            RoleSpec("sibling", Member, colocation_group="together", node_affinity=[TARGET]),
            RoleSpec("elsewhere", Member, node_affinity=[TARGET]),
        ),
    )


def in_turns(ways: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Samples]:
    """Every way once per round, forwards and backwards, so that a slow moment of the machine affects all alike."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    for _ in range(rounds):
        for name in order:
            found[name].append(ways[name]())
        order.reverse()
    return {name: Samples.of(values) for name, values in found.items()}


def mean_us(call: Callable[[int], Any], calls: int) -> float:
    began = time.perf_counter()
    for number in range(calls):
        call(number)
    return (time.perf_counter() - began) * 1e6 / calls


# -- starting -----------------------------------------------------------------------------------------------------


def _starting(rounds: int) -> dict[str, Samples]:
    """Until each actor has answered once; a side begins when the processes of the previous one are gone."""
    used: dict[str, list[float]] = {"launch: CPU": [], "actors: CPU": []}

    def ours() -> float:
        began = time.perf_counter()
        with launch(members(_ACTORS)) as started:
            pids = started["member"].call("pid")
            took = time.perf_counter() - began
            used["launch: CPU"].append(_mean_cpu_ms(pids))
        _await_end(pids)
        return took

    def plain() -> float:
        began = time.perf_counter()
        actors = _plain_actors(_ACTORS)
        pids = ray.get([actor.pid.remote() for actor in actors])
        took = time.perf_counter() - began
        used["actors: CPU"].append(_mean_cpu_ms(pids))
        for actor in actors:
            ray.kill(actor)
        _await_end(pids)
        return took

    plain()  # the first run finds processes that Ray keeps ready, so it does not count
    used["actors: CPU"].clear()
    took = in_turns({"launch": ours, "actors": plain}, rounds)
    return took | {name: Samples.of(values) for name, values in used.items()}


def _plain_actors(count: int) -> list[Any]:
    plain = ray.remote(num_cpus=_CPUS)(Member)
    return [plain.remote() for _ in range(count)]


def _mean_cpu_ms(pids: list[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(each.user + each.system for each in times) * 1000 / len(times)


def _await_end(pids: list[int]) -> None:
    until(lambda: not any(map(psutil.pid_exists, pids)), what="the processes have ended")


# -- calling ------------------------------------------------------------------------------------------------------


def _calling(rounds: int) -> dict[str, Samples]:
    with ExitStack() as ended, launch(members(_CALLED)) as started:
        group = started["member"]
        hosts = [ray.get_actor(member["actor"], "grid-roles") for member in started.status()["members"]]
        actors = _plain_actors(_CALLED)
        for actor in actors:
            ended.callback(ray.kill, actor)
        calls: dict[str, Callable[[int], Any]] = {
            "group call": lambda number: group.call("double", number),
            "calls": lambda number: ray.get([actor.double.remote(number) for actor in actors]),
            "calls of members": lambda number: ray.get(
                [getattr(host, "member.double").remote(number) for host in hosts]
            ),
        }
        return in_turns({name: partial(_mean_ms, call) for name, call in calls.items()}, rounds)


def _mean_ms(call: Callable[[int], Any]) -> float:
    return mean_us(call, _CALLS) / 1000


def _siblings(rounds: int) -> dict[str, Samples]:
    with launch(pair()) as started:
        caller = started["caller"].rank_zero
        ways = {"beside": _PLAIN_CALLS, "elsewhere": _CALLS}
        return in_turns({way: partial(caller.call, way, calls) for way, calls in ways.items()}, rounds)
