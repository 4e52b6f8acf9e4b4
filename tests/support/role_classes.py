"""Classes of roles for tests on real clusters: small, and each shows one thing."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from distributed_grid.roles import RoleSpec


class Teller:
    """Tells of itself."""

    def __init__(self, config: Any = None) -> None:
        self.config = config
        self.calls = 0

    def who(self) -> dict[str, Any]:
        import ray

        context = ray.get_runtime_context()
        return {
            "pid": os.getpid(),
            "node": context.get_node_id(),
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "env": dict(os.environ),
            "config": self.config,
        }

    def count(self, by: int = 1) -> int:
        self.calls += by
        return self.calls

    def fail(self, said: str) -> None:
        raise ValueError(said)

    def fail_on(self, rank: int) -> str:
        if os.environ["RANK"] == str(rank):
            raise ValueError(f"rank {rank} does not want to")
        return os.environ["RANK"]

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return os.environ["RANK"]

    def wait_for(self, path: str) -> str:
        while not Path(path).exists():
            time.sleep(0.02)
        return os.environ["RANK"]

    def begin_in(self, folder: str) -> str:
        """Leaves its rank there, and ends when it is told to."""
        Path(folder, os.environ["RANK"]).touch()
        return self.wait_for(f"{folder}/end")

    def shard(self, what: Any) -> tuple[str, Any]:
        return os.environ["RANK"], what

    def end(self) -> None:
        os._exit(7)


class Pool:
    def __init__(self) -> None:
        self.items: list[Any] = []

    def put(self, item: Any) -> int:
        self.items.append(item)
        return len(self.items)

    def all(self) -> list[Any]:
        return self.items

    def size(self) -> int:
        return len(self.items)

    def pid(self) -> int:
        return os.getpid()


class Trainer:
    """Asks its siblings directly."""

    def on_peers(self, peers: Any) -> None:
        self.peers = peers

    def pid(self) -> int:
        return os.getpid()

    def pooled(self) -> list[Any]:
        return self.peers.sibling("pool").all()

    async def sync(self) -> str:
        return await self.peers.sibling("sync").tell()

    def known(self) -> dict[str, int]:
        return {role: len(members) for role, members in self.peers.items()}


class Sync:
    async def tell(self) -> str:
        await asyncio.sleep(0)
        return "synced"

    async def pid(self) -> int:
        return os.getpid()


class Worker:
    """Puts what it makes into the pool of its run."""

    def on_peers(self, peers: Any) -> None:
        self.peers = peers

    def work(self, what: Any) -> int:
        return self.peers.fetch(self.peers["pool"][0].put.remote((self.peers.me.rank, what)))

    def pid(self) -> int:
        return os.getpid()

    def known(self) -> list[int]:
        return [peer.rank for peer in self.peers["worker"]]


class Refuses:
    """Fails in its constructor, but only as its configuration says."""

    def __init__(self, config: str) -> None:
        if config == os.environ["RANK"]:
            raise RuntimeError(f"rank {config} cannot start")

    def pid(self) -> int:
        return os.getpid()


class Held:
    """Of rank 1 the constructor ends when a file is not there."""

    def __init__(self, config: str) -> None:
        while os.environ["RANK"] == "1" and Path(config).exists():
            time.sleep(0.02)

    def pid(self) -> int:
        return os.getpid()


class Shy:
    """The first of them does not like company."""

    def on_peers(self, peers: Any) -> None:
        if peers.me.rank == 0 and len(peers["shy"]) > 1:
            raise KeyError("company")

    def pid(self) -> int:
        return os.getpid()


class Hangs:
    """Never gets through its constructor."""

    def __init__(self) -> None:
        time.sleep(3600)


class Reclaimed:
    """Hears that its place is asked back; its config is what it answers."""

    def __init__(self, config: Any = None) -> None:
        self._answer = (config or {}).get("answer")
        self._notice: Any = None

    def on_reclaim(self, notice: Any) -> Any:
        self._notice = notice
        return self._answer

    def heard(self) -> tuple[int, Any]:
        return os.getpid(), self._notice


def small(role: str, cls: type, **more: Any) -> RoleSpec:
    """A tenth of a CPU, so that many fit."""
    return RoleSpec(role, cls, **{"cpus": 0.1, **more})
