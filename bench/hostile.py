"""Whether ten hostile clients slow down ninety others: long fields, slow bodies and slow calls, all at once.

`python -m bench.hostile` is the hostile ten, in a process of their own: what they cost in their own Python is theirs.
"""

import contextlib
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bench.effort import Effort
from bench.figures import Limits, Line, Outcome, Samples
from bench.stage import SOURCE, TARGET, Stage, until
from distributed_grid.client import GridClient
from distributed_grid.errors import GridError

CLIENTS: Final = 90
HOSTILE: Final = 10
_PAUSE_S: Final = 0.5
_LENDS_EVERY: Final = 10
"""Of so many calls of a client one lends something and gives it back; the others look at the boosts."""
_LIMITS: Final = Limits(times_baseline=1.5)


def run(stage: Stage, effort: Effort) -> Outcome:
    """In turns, so that what the machine does besides shows on both sides."""
    without, beside = [], []
    with _attackers(stage) as attack:
        _latencies(stage, 2.0)  # connections are open, and caches warm
        for _ in range(effort.attacks):
            without.append(_p99(_latencies(stage, effort.attack_s)))
            with attack():
                beside.append(_p99(_latencies(stage, effort.attack_s)))
    return Outcome(
        f"hostile, {HOSTILE} of {CLIENTS + HOSTILE} clients",
        f"the {CLIENTS} others alone",
        (Line(f"p99 of {CLIENTS} clients' calls", Samples.of(beside), Samples.of(without), _LIMITS),),
    )


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[-1]


def _latencies(stage: Stage, for_s: float) -> list[float]:
    """In milliseconds, of all calls that the clients make in this time; each pauses for a while in between."""
    found: list[float] = []
    end = time.monotonic() + for_s

    def use(number: int) -> None:
        chance = random.Random(number)
        client = GridClient(stage.home)
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
def _attackers(stage: Stage) -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Users with tokens of their own. While an attack lasts, their process does what it can."""
    client = GridClient(stage.home)
    scopes = ["view", "lend", "run"]
    made = [client.create_token({"name": f"hostile-{n}", "scopes": scopes}) for n in range(HOSTILE)]
    order = {"url": client.url(), "tokens": [each["token"] for each in made]}

    @contextlib.contextmanager
    def attack() -> Iterator[None]:
        # They would be on other machines: what they compute must not count, only what they ask for.
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.hostile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[1],
            preexec_fn=lambda: os.nice(19) and None,
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        process.stdout.readline()  # they have begun
        try:
            yield
        finally:
            process.kill()
            process.wait()

    try:
        yield attack
    finally:
        for each in made:
            with contextlib.suppress(GridError):
                client.revoke_tokens(each["id"])
        client.close()


def main() -> None:
    order = json.loads(sys.stdin.readline())
    ways = (_long_fields, _slow_bodies, _slow_calls)
    for number, token in enumerate(order["tokens"]):
        threading.Thread(target=_again, args=[ways[number % 3], order["url"], token], daemon=True).start()
    print("begun", flush=True)
    sys.stdin.read()


def _again(attack: Callable[[str, str], None], url: str, token: str) -> None:
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            attack(url, token)


def _long_fields(url: str, token: str) -> None:
    """On one connection for as long as it lasts: names of all lengths, the longest more than a body may have."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    for length in (100, 200, 10_000, 200_000, 1_000_000):
        body = json.dumps({"target_node": "x" * length, "resource_type": "cpu", "amount": 1})
        connection.request("POST", "/api/v1/boosts", body, headers)
        connection.getresponse().read()
    connection.close()


def _slow_bodies(url: str, token: str) -> None:
    """Fifty requests at a time whose bodies come a byte a second."""
    place = urlsplit(url)
    head = f"POST /api/v1/boosts HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {token}\r\n"
    with contextlib.ExitStack() as many:
        sockets = [many.enter_context(socket.create_connection((place.hostname, place.port))) for _ in range(50)]
        for each in sockets:
            each.sendall(f"{head}Content-Length: 1000\r\n\r\n".encode())
        for _ in range(1000):
            for each in sockets:
                each.sendall(b" ")
            time.sleep(1.0)


def _slow_calls(url: str, token: str) -> None:
    """Eight at a time: looking through all processes of all nodes, and through the whole audit log."""

    def call(path: str) -> None:
        place = urlsplit(url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            connection.getresponse().read()
        connection.close()

    paths = ["/api/v1/offload/candidates", "/api/v1/audit/log?limit=10000"] * 4
    calls = [threading.Thread(target=call, args=[path]) for path in paths]
    for each in calls:
        each.start()
    for each in calls:
        each.join()


if __name__ == "__main__":
    main()
