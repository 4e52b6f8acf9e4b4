"""Many standing boosts: requested by several clients at once, ended all together."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from bench.stage import TARGET, Stage, say, until
from distributed_grid.client import GridClient

AMOUNT: Final = 0.001
"""CPUs per boost; a thousand boosts are one CPU."""

_CLIENTS: Final = 8
_TELL_EVERY: Final = 250
_A_DAY_S: Final = 86_400


@contextmanager
def standing(stage: Stage, count: int) -> Iterator[None]:
    """`count` active boosts during the block; afterwards none, and every node is at its base."""
    try:
        _make(stage, count)
        yield
    finally:
        end_all(stage)


def end_all(stage: Stage) -> None:
    """Remove the state file, which ends all boosts; return when all capacity is back."""
    client = GridClient(stage.home)
    try:
        if client.boost_status()["boosts"]:
            stage.home.boosts.unlink(missing_ok=True)
            until(lambda: not client.boost_status()["boosts"], what="all boosts ended", poll_s=0.2)
        until(stage.is_at_base, what="every node at its base")
    finally:
        client.close()


def _make(stage: Stage, count: int) -> None:
    mine = threading.local()
    clients: list[GridClient] = []
    body = {
        "target_node": TARGET,
        "resource_type": "cpu",
        "amount": str(AMOUNT),
        "delivery": "transfer",
        "duration_seconds": _A_DAY_S,
    }

    def connect() -> None:
        mine.client = GridClient(stage.home)
        clients.append(mine.client)

    with ThreadPoolExecutor(_CLIENTS, initializer=connect) as pool:
        made = pool.map(lambda _: mine.client.request_boost(body), range(count))
        for number, _ in enumerate(made, start=1):
            if number % _TELL_EVERY == 0 or number == count:
                say(f"  {number} of {count} boosts stand")
    active = clients[0].boost_status()["total_active"]
    if active != count:
        raise RuntimeError(f"{active} boosts are active instead of {count}")
    for client in clients:
        client.close()
