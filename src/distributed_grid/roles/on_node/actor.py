"""The actor that hosts members of a workload. It travels to its node by value, with all of grid that it uses.

The actor has one instance of each role that shares its process. A role's method is the actor's method `role.method`, in
the role's own concurrency group or in one that several roles share. Grid's own methods have a separate group, so that a
busy actor still answers health checks.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import signal
import socket
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypedDict

from distributed_grid.execution.on_node_imports import look_for_modules_in, unpacked
from distributed_grid.roles.on_node.making import ON_PEERS, load_class, make_instance
from distributed_grid.roles.on_node.peers import ActorPeer, Directory, Identity, Peers

HEALTH_GROUP = "grid/health"
SHARED_GROUP = "grid/shared"
"""No role can have one of these names."""


def free_ports(count: int) -> list[int]:
    """Ports that are free here now. All are held open at once, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def local_addresses(count: int) -> tuple[str, list[int]]:
    """This node's address, and free ports on it."""
    import ray

    return ray.util.get_node_ip_address(), free_ports(count)


def _loaded(found: tuple[Any, Any]) -> tuple[Any, Any]:
    """Class and configuration, where the class may be named."""
    cls, config = found
    return load_class(cls), config


def end_stuck(pid: int) -> bool:
    """Kill a stuck worker: one that is stuck as a whole ignores Ray's request to end, and keeps its place for long."""
    try:
        if not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::"):
            return False  # the process has ended, and another one has its number
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return True


class Place(TypedDict):
    """The identity of a process, and what its environment needs. For mypy only, like `Described`."""

    run: str
    namespace: str
    roles: tuple[str, ...]
    index: int
    node: str
    ranks: dict[str, str]
    port: int
    """Which of the free ports is its own."""
    folders: tuple[list[str], list[str]]
    """The owner's search folders, before and after what is installed."""


class FailedRole(TypedDict):
    role: str
    error: str
    traceback: str


class Described(TypedDict):
    """A process once its constructors have returned, or how one of them failed."""

    pid: int
    gpus: list[int | str]
    failed: FailedRole | None


class Host:
    """Made once for each process of a workload. An error in a constructor is kept, and `ready` reports it."""

    def __init__(self, place: Place, ports: list[Any], threads: Mapping[str, int], *parts: bytes) -> None:
        """`ports`: a reference to the address of the node with rank 0 and free ports there. `threads`: the roles whose
        methods need their own threads, since other roles of this process are asynchronous. `parts`: for each role, a
        pickled class and configuration that make its instance."""
        address, free = ports[0].future().result()  # ray.get would warn in an asynchronous actor
        # Set before any user module is imported, since modules may read these.
        os.environ.update(place["ranks"], MASTER_ADDR=address, MASTER_PORT=str(free[place["port"]]))
        look_for_modules_in(*place["folders"])
        self._place = place
        self._threads = {role: ThreadPoolExecutor(count, role) for role, count in threads.items()}
        self._instances: dict[str, Any] = {}
        self._failed: FailedRole | None = None
        self._others: dict[str, list[ActorPeer]] = {}
        self._directory = Directory(place["namespace"])
        self._edition = 0
        self._telling = threading.Condition()
        for role, packed in zip(place["roles"], parts, strict=True):
            try:
                self._instances[role] = make_instance(*unpacked(packed, _loaded))
            except Exception as error:  # noqa: BLE001 (reported by `ready`)
                trace = "".join(traceback.format_exception(error))
                self._failed = {"role": role, "error": f"{type(error).__name__}: {error}", "traceback": trace}
                return

    def _ready(self) -> Described:
        import ray

        gpus: list[int | str] = [int(one) if str(one).isdigit() else str(one) for one in ray.get_gpu_ids()]
        return {"pid": os.getpid(), "gpus": gpus, "failed": self._failed}

    def _ping(self) -> bool:
        return True

    def _meet(self, edition: int, others: Mapping[str, Sequence[tuple[int, str, int]]]) -> None:
        """The current members: by role, the rank, the actor's name, and how often it was restarted."""
        if edition <= self._edition:
            return
        self._directory.update({name: life for members in others.values() for _, name, life in members})
        self._others = {
            role: [ActorPeer(role, rank, name, self._directory) for rank, name, _ in members]
            for role, members in others.items()
        }
        with self._telling:
            self._edition = edition
            self._telling.notify_all()

    def _instance(self, role: str) -> Any:
        """Peers know this process before its constructors return, and may call an instance that failed to start."""
        if (found := self._instances.get(role)) is None and self._failed is not None:
            failed = self._failed
            since = "" if failed["role"] == role else f"{failed['role']}, in the same process, did not: "
            raise RuntimeError(f"{role} {self._place['index']} did not start: {since}{failed['error']}")
        return found

    def _peers_of(self, role: str, edition: int) -> Peers:
        with self._telling:  # the notification arrives in another concurrency group
            self._telling.wait_for(lambda: self._edition >= edition)
        place = self._place
        size = max(len(self._others.get(role, ())), 1)
        me = Identity(role, place["index"], size, place["node"], place["run"])
        siblings = {name: one for name, one in self._instances.items() if name != role}
        return Peers(me, self._others, siblings)


def own_method(name: str, *, is_async: bool) -> Any:
    """One of grid's own methods of the host. In an asynchronous actor, all methods are coroutines."""
    if not is_async:
        return lambda self, *args: getattr(self, name)(*args)

    async def method(self: Host, *args: Any) -> Any:
        return getattr(self, name)(*args)

    return method


def role_method(role: str, name: str, kind: str) -> Any:
    """The actor's method for a role's method, of the same kind, since Ray treats each kind differently."""
    if kind == "coroutine":

        async def call_async(self: Host, *args: Any, **kwargs: Any) -> Any:
            return await getattr(self._instance(role), name)(*args, **kwargs)

        return call_async
    if kind == "async_generator":

        async def iterate_async(self: Host, *args: Any, **kwargs: Any) -> Any:
            async for one in getattr(self._instance(role), name)(*args, **kwargs):
                yield one

        return iterate_async
    if kind == "generator":

        def iterate(self: Host, *args: Any, **kwargs: Any) -> Any:
            # Not `yield from`: Ray sends values of its own into generators, which the user's generator may not accept.
            for one in getattr(self._instance(role), name)(*args, **kwargs):  # noqa: UP028
                yield one

        return iterate

    if kind == "threaded":

        async def call_in_thread(self: Host, *args: Any, **kwargs: Any) -> Any:
            call = functools.partial(getattr(self._instance(role), name), *args, **kwargs)
            return await asyncio.get_running_loop().run_in_executor(self._threads[role], call)

        return call_in_thread

    def call(self: Host, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._instance(role), name)(*args, **kwargs)

    return call


def greeting(role: str, *, is_async: bool) -> Any:
    """Gives an instance its peers. The method's return value is dropped, since it may be impossible to pickle."""

    async def greet_async(self: Host, edition: int) -> None:
        peers = await asyncio.to_thread(self._peers_of, role, edition)
        done = getattr(self._instance(role), ON_PEERS)(peers)
        if inspect.isawaitable(done):
            await done

    def greet(self: Host, edition: int) -> None:
        done = getattr(self._instance(role), ON_PEERS)(self._peers_of(role, edition))
        if inspect.isawaitable(done):  # asynchronous, though its decorator hides that
            asyncio.run(_awaited(done))

    return greet_async if is_async else greet


async def _awaited(done: Any) -> None:
    await done
