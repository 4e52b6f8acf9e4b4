"""Calls within this process: each member has its own threads or event loop, and gets copies of its arguments."""

import inspect
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, wait
from typing import Any

from distributed_grid.roles.calls.endpoints import Endpoint, EndpointUnavailable
from distributed_grid.roles.calls.failures import member_failed, member_lost, timed_out
from distributed_grid.roles.local.refs import LocalRef, Packed, Work
from distributed_grid.roles.local.streams import LocalStream, StreamFeed
from distributed_grid.roles.local.workers import LoopWorker, ThreadWorker, Worker
from distributed_grid.roles.on_node.making import (
    ON_PEERS,
    has_async_methods,
    is_generator,
    make_instance,
    methods_of,
    wants_peers,
)
from distributed_grid.roles.on_node.peers import Peers
from distributed_grid.roles.role_class import concurrency_of


class LocalMember:
    """One instance, and the worker that runs its calls."""

    def __init__(self, name: str, cls: Any, config: Packed, max_concurrency: int | None) -> None:
        looped = has_async_methods(cls)
        self.name, self.methods = name, methods_of(cls)
        self.concurrency = concurrency_of(cls, max_concurrency)
        self.worker: Worker = (LoopWorker if looped else ThreadWorker)(name, self.concurrency)
        self.instance: Any = None
        self._cls, self._config = cls, config

    def make(self) -> LocalRef:
        """Make the instance on its own worker, so that objects bound to a thread or a loop are made there."""
        ref = LocalRef()
        self.worker.submit(ref, self._make)
        return ref

    def _make(self) -> None:
        self.instance = make_instance(self._cls, self._config.unpack())

    @property
    def wants_peers(self) -> bool:
        return wants_peers(self._cls)

    def tell(self, peers: Peers) -> LocalRef:
        ref = LocalRef()
        self.worker.in_background(ref, lambda: _without_value(getattr(self.instance, ON_PEERS)(peers)))
        return ref

    def refs_for(self, method: str) -> tuple[LocalRef, LocalRef]:
        """The caller's reference, and the one that the worker settles. For a generator method, these differ."""
        if not is_generator(getattr(self._cls, method, None)):
            ref = LocalRef()
            return ref, ref
        stream = LocalStream()
        return stream, StreamFeed(stream)

    def work(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Work:
        return lambda: getattr(self.instance, method)(*args, **kwargs)


class _SomeFailed(Exception):
    """A call failed or is late; the caller asks each reference for its outcome."""


class LocalTransport:
    """See `Transport`; an endpoint's target is a `LocalMember`."""

    def submit(self, endpoint: Endpoint, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> LocalRef:
        """References among the arguments become their values before the call begins, as in Ray."""
        member: LocalMember = endpoint.current_target()
        given, named = Packed((tuple(args), dict(kwargs)), frozen=True).unpack()
        ref, settled = member.refs_for(method)
        awaited = [one for one in (*given, *named.values()) if isinstance(one, LocalRef)]
        if awaited:
            _Awaiting(member, settled, method, given, named, awaited).begin()
        else:
            member.worker.submit(settled, member.work(method, given, named))
        return ref

    def collect(self, refs: Sequence[LocalRef], within_s: float | None) -> list[Any]:
        if wait(refs, within_s, FIRST_EXCEPTION).not_done or any(ref.exception() is not None for ref in refs):
            raise _SomeFailed
        return [ref.result() for ref in refs]

    def outcome(self, ref: LocalRef, endpoint: Endpoint, method: str, within_s: float | None) -> Any:
        if not wait([ref], within_s).done:
            raise timed_out(endpoint, method, within_s)
        if ref.lost is not None:
            raise member_lost(endpoint, method, ref.lost)
        error = ref.exception()
        if error is None:
            try:
                return ref.result()
            except Exception as unread:  # noqa: BLE001 (unpacking runs user code)
                error = unread
        raise member_failed(endpoint, method, error, ref.trace or f"{type(error).__name__}: {error}")

    def first_done(self, refs: Sequence[LocalRef], within_s: float | None) -> int | None:
        done = wait(refs, within_s, FIRST_COMPLETED).done
        return next((index for index, ref in enumerate(refs) if ref in done), None)

    def unfinished(self, refs: Sequence[LocalRef]) -> list[LocalRef]:
        return [ref for ref in refs if not ref.done()]


class _Awaiting:
    """A call that begins when the references among its arguments have values."""

    def __init__(
        self,
        member: LocalMember,
        ref: LocalRef,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        awaited: list[LocalRef],
    ) -> None:
        self._member, self._ref, self._method = member, ref, method
        self._args, self._kwargs, self._awaited = args, kwargs, awaited
        self._missing = len(awaited)
        self._changing = threading.Lock()

    def begin(self) -> None:
        for one in self._awaited:
            one.add_done_callback(self._one_more)

    def _one_more(self, _: object) -> None:
        with self._changing:
            self._missing -= 1
            if self._missing:
                return
        for one in self._awaited:
            if one.lost is not None:
                return self._ref.lose(one.lost)
            if (error := one.exception()) is not None:
                return self._ref.fail(error)
        try:
            args = [_value(one) for one in self._args]
            kwargs = {name: _value(one) for name, one in self._kwargs.items()}
            self._member.worker.submit(self._ref, self._member.work(self._method, args, kwargs))
        except EndpointUnavailable:
            self._ref.lose("it left before the call began")
        except Exception as error:  # noqa: BLE001 (unpacking runs user code)
            self._ref.fail(error)


def _without_value(done: Any) -> Any:
    """The return value is not used, so it is not copied."""

    async def awaited() -> None:
        await done

    return awaited() if inspect.isawaitable(done) else None


def fetch(refs: Any, timeout_s: float | None = None) -> Any:
    """For members, like `ray.get`: raises what the method raised."""
    if isinstance(refs, LocalRef):
        return refs.result(timeout_s)
    until = None if timeout_s is None else time.monotonic() + timeout_s
    return [ref.result(None if until is None else max(0.0, until - time.monotonic())) for ref in refs]


def _value(one: Any) -> Any:
    return one.result() if isinstance(one, LocalRef) else one
