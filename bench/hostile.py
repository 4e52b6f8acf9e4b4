"""Whether ten hostile clients slow down ninety others: long fields, slow bodies and slow calls; or also costly calls
and many streams.

`python -m bench.hostile` runs the hostile ten in a separate process, so that their own Python costs do not count.
"""

import contextlib
import http.client
import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bench.effort import Effort
from bench.figures import Limits, Line, Outcome, Samples
from bench.stage import SOURCE, TARGET, Stage, until
from distributed_grid.client import GridClient, Whereabouts
from distributed_grid.errors import GridError

CLIENTS: Final = 90
HOSTILE: Final = 10
_PAUSE_S: Final = 0.5
_LENDS_EVERY: Final = 10
"""One in this many calls of a client requests and releases a boost; the others list the boosts."""
_LIMITS: Final = Limits(times_baseline=1.5)


def run(stage: Stage, effort: Effort) -> Outcome:
    """In turns, so that other load on the machine affects all sides."""
    without: list[float] = []
    beside: dict[str, list[float]] = {name: [] for name in _ATTACKS}
    counts: dict[tuple[str, str], list[float]] = {}
    with _users(stage, "user", CLIENTS, ["view", "lend"]) as tokens, _attackers(stage) as attack:
        _latencies(stage, tokens, 2.0)  # opens connections and warms caches
        for _ in range(effort.attacks):
            without.append(_p99(_latencies(stage, tokens, effort.attack_s)))
            for name, ways in _ATTACKS.items():
                with attack(ways) as made:
                    beside[name].append(_p99(_latencies(stage, tokens, effort.attack_s)))
                for way, count in made.items():
                    counts.setdefault((name, way), []).append(count)

    def lines(name: str) -> Iterator[Line]:
        yield Line(f"p99 of {CLIENTS} clients' calls, {name}", Samples.of(beside[name]), Samples.of(without), _LIMITS)
        # An attacker that the machine starves proves nothing, so read these lines beside the one above.
        for (attack_name, way), found in counts.items():
            if attack_name == name:
                yield Line(f"  hostile: {way.strip('_').replace('_', ' ')}", Samples.of(found), unit="calls")

    return Outcome(
        f"hostile, {HOSTILE} of {CLIENTS + HOSTILE} clients",
        f"the {CLIENTS} others alone",
        tuple(line for name in _ATTACKS for line in lines(name)),
    )


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[-1]


@contextlib.contextmanager
def _users(stage: Stage, name: str, count: int, scopes: list[str]) -> Iterator[list[str]]:
    """Tokens of `count` users, during the block."""
    client = GridClient(stage.home)
    made = [client.create_token({"name": f"{name}-{n}", "scopes": scopes}) for n in range(count)]
    try:
        yield [each["token"] for each in made]
    finally:
        for each in made:
            with contextlib.suppress(GridError):
                client.revoke_tokens(each["id"])
        client.close()


def _latencies(stage: Stage, tokens: list[str], for_s: float) -> list[float]:
    """In milliseconds, for all calls of the clients in this time; each client pauses between calls."""
    found: list[float] = []
    end = time.monotonic() + for_s
    owners = Whereabouts.of(stage.home)

    def use(number: int) -> None:
        chance = random.Random(number)
        client = GridClient(stage.home, at=replace(owners, token=tokens[number]))
        time.sleep(chance.uniform(0, _PAUSE_S))
        while time.monotonic() < end:
            calls = _lend(client) if chance.randrange(_LENDS_EVERY) == 0 else (client.boost_status,)
            for call in calls:
                began = time.perf_counter()
                call()
                found.append((time.perf_counter() - began) * 1000)
            time.sleep(chance.uniform(0.5, 1.5) * _PAUSE_S)
        client.close()

    users = [threading.Thread(target=use, args=[number]) for number in range(CLIENTS)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    until(lambda: not GridClient(stage.home).boost_status()["boosts"], what="all boosts home")
    return found


def _lend(client: GridClient) -> Iterator[Callable[[], Any]]:
    granted: dict[str, Any] = {}
    wanted = {"target_node": TARGET, "resource_type": "cpu", "amount": 0.01, "source_node": SOURCE}
    yield lambda: granted.update(client.request_boost(wanted))
    yield lambda: client.release_boost(granted["boost_id"])


# -- the hostile ten -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _attackers(stage: Stage) -> Iterator[Callable[["_Ways"], contextlib.AbstractContextManager[dict[str, int]]]]:
    """Users with their own tokens. During an attack, their process attacks as fast as it can, and counts its calls."""

    @contextlib.contextmanager
    def attack(ways: "_Ways") -> Iterator[dict[str, int]]:
        made: dict[str, int] = {}
        # Real attackers are on other machines: only their requests may count, not their computation.
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.hostile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[1],
            preexec_fn=lambda: os.nice(19) and None,
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({**order, "ways": [way.__name__ for way in ways]}).encode() + b"\n")
        process.stdin.flush()
        process.stdout.readline()  # the attack has begun
        try:
            yield made
            process.stdin.close()
            made.update(json.loads(process.stdout.readline()))
        finally:
            process.kill()
            process.wait()

    with _users(stage, "hostile", HOSTILE, ["view", "lend", "run"]) as tokens:
        order = {"url": Whereabouts.of(stage.home).url, "tokens": tokens}
        yield attack


def main() -> None:
    order = json.loads(sys.stdin.readline())
    for token, way in zip(order["tokens"], itertools.cycle(order["ways"]), strict=False):
        threading.Thread(target=_again, args=[globals()[way], order["url"], token], daemon=True).start()
    print("begun", flush=True)
    sys.stdin.read()
    print(json.dumps({way: _made[way] for way in order["ways"]}), flush=True)
    os._exit(0)  # without waiting for the threads


_made: Counter[str] = Counter()
"""Calls of the hostile ten, by kind: answered calls, and bodies and streams that were begun."""


def _again(attack: Callable[[str, str], None], url: str, token: str) -> None:
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            attack(url, token)


def _call(way: Callable[[str, str], None], url: str, token: str, method: str, path: str, body: Any = None) -> None:
    """One call on its own connection, whatever the result."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection.request(method, f"/api/v1{path}", None if body is None else json.dumps(body), headers)
        connection.getresponse().read()
        _made[way.__name__] += 1
    connection.close()


def _together(calls: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def _long_fields(url: str, token: str) -> None:
    """On one connection as long as it lasts: names of all lengths, the longest above the limit of a body."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    for length in (100, 200, 10_000, 200_000, 1_000_000):
        body = json.dumps({"target_node": "x" * length, "resource_type": "cpu", "amount": 1})
        connection.request("POST", "/api/v1/boosts", body, headers)
        connection.getresponse().read()
        _made["_long_fields"] += 1
    connection.close()


def _slow_bodies(url: str, token: str) -> None:
    """Fifty requests at a time, whose bodies arrive at one byte a second."""
    place = urlsplit(url)
    head = f"POST /api/v1/boosts HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {token}\r\n"
    with contextlib.ExitStack() as many:
        sockets = [many.enter_context(socket.create_connection((place.hostname, place.port))) for _ in range(50)]
        for each in sockets:
            each.sendall(f"{head}Content-Length: 1000\r\n\r\n".encode())
            _made["_slow_bodies"] += 1
        for _ in range(1000):
            for each in sockets:
                each.sendall(b" ")
            time.sleep(1.0)


def _slow_calls(url: str, token: str) -> None:
    """Nine at a time: scans of all processes of all nodes, reads of the whole audit log, and audits."""
    paths = ["/offload/candidates", "/audit/log?limit=10000", "/audit"] * 3
    _together([partial(_call, _slow_calls, url, token, "GET", path) for path in paths])


def _costly_calls(url: str, token: str) -> None:
    """Eight at a time: calls that the controller must compute, and calls that need no token."""
    plan = {"target_node": TARGET, "resource_type": "cpu", "amount": 1}
    calls = [
        ("POST", "/plan", plan),
        ("GET", "/cluster", None),
        ("GET", "/events", None),
        ("GET", "/openapi.json", None),
    ]
    _together([partial(_call, _costly_calls, url, token, *call) for call in calls * 2])


def _many_streams(url: str, token: str) -> None:
    """A hundred event streams, kept open as long as they last."""
    place = urlsplit(url)
    head = f"GET /api/v1/events HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {token}\r\n"
    with contextlib.ExitStack() as many:
        for _ in range(100):
            each = many.enter_context(socket.create_connection((place.hostname, place.port)))
            each.sendall(f"{head}Accept: text/event-stream\r\n\r\n".encode())
            _made["_many_streams"] += 1
        time.sleep(5.0)


_Ways = tuple[Callable[[str, str], None], ...]
_SLOW_AND_LONG: Final[_Ways] = (_long_fields, _slow_bodies, _slow_calls)
_ATTACKS: Final[dict[str, _Ways]] = {
    "slow and long": _SLOW_AND_LONG,
    "all kinds": (*_SLOW_AND_LONG, _costly_calls, _many_streams),
}


if __name__ == "__main__":
    main()
