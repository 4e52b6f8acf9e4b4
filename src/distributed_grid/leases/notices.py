"""Notices: deliver reclaim notices to the holders of leases, by file and by hook, and report idle leases by hook.

This is level-triggered: after a restart every pending notice is sent again.
"""

import asyncio
import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

import orjson

from distributed_grid import threads
from distributed_grid.client.connections import Answer
from distributed_grid.decide.leases.hooks import HookPlace, hook_place
from distributed_grid.errors import GridError
from distributed_grid.leases.reclaim import take_reply
from distributed_grid.leases.state import EngineContext
from distributed_grid.logs import logger
from distributed_grid.model.leases import WATCHED, Lease
from distributed_grid.model.notices import Reply, asks_more, idle_body, notice_body, reply_of
from distributed_grid.model.validators import is_id
from distributed_grid.store.durable import replace_durably, sync_folder

log = logger()


class ReclaimFiles:
    """`GRID_HOME/reclaim/<boost id>.json`, for scripts that watch: one file for each notice, for its owner only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shown: dict[str, bytes] | None = None

    def differ(self, wanted: Mapping[str, bytes]) -> bool:
        """True if `show` has something to do."""
        return self._shown != wanted

    def show(self, wanted: Mapping[str, bytes]) -> None:
        """Make the files exactly these: text by boost id. `OSError`: some are not as they should be; call it again."""
        before, self._shown = self._shown, None
        if wanted:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        for boost_id, text in wanted.items():
            if is_id(boost_id) and (before is None or before.get(boost_id) != text):
                replace_durably(self._folder / f"{boost_id}.json", text)
        names = {f"{boost_id}.json" for boost_id in wanted}
        over = [path for path in self._folder.glob("*.json") if path.name not in names]
        for path in over:
            path.unlink(missing_ok=True)
        if over:
            sync_folder(self._folder)
        with contextlib.suppress(OSError):  # the folder holds other files
            if not wanted and self._folder.exists():
                self._folder.rmdir()
        self._shown = dict(wanted)


ANSWER_S: Final = 5.0
MOST_BYTES: Final = 16 * 1024


class HookFailed(Exception):
    """Why there is no answer."""


def call_hook(place: HookPlace, body: bytes, within_s: float = ANSWER_S) -> Answer:
    """POST JSON to a fixed address and return the answer. Follows no redirect, uses no proxy, sends nothing twice.

    Everything that comes back has a limit.
    """
    kind = http.client.HTTPSConnection if place.is_tls else http.client.HTTPConnection
    connection = kind(place.address, place.port, timeout=within_s)
    headers = {"Host": place.host, "Content-Type": "application/json", "Accept": "application/json"}
    try:
        connection.connect()
        # A socket's time-out starts again with each byte: a slow server must not hold the caller.
        end = threading.Timer(within_s, _cut, [connection.sock])
        end.daemon = True
        end.start()
        try:
            connection.request("POST", place.path, body, headers)
            response = connection.getresponse()
            content = response.read(MOST_BYTES + 1)
        finally:
            end.cancel()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise HookFailed(str(error) or type(error).__name__) from error
    finally:
        connection.close()
    if len(content) > MOST_BYTES:
        raise HookFailed(f"its answer has more than {MOST_BYTES} bytes")
    if response.length:  # the rest of the announced length did not come
        raise HookFailed("its answer broke off")
    return Answer(response.status, content)


def _cut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


# Hooks that hang must not occupy all the threads that query the cluster.
_AT_ONCE: Final = 4

CallHook = Callable[[HookPlace, bytes], Answer]


class Notices:
    """Delivers the notices. Runs beside the reconciler, on the same parts."""

    def __init__(self, parts: EngineContext, call: CallHook = call_hook) -> None:
        self._p = parts
        self._call = call
        self._files = ReclaimFiles(parts.home.reclaim)
        self._sent: dict[str, tuple[datetime, float]] = {}
        self._reported_idle: dict[str, datetime] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._trouble = ""
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def deliver(self) -> None:
        """Write every notice's file and call every hook, without waiting for the hooks."""
        pending = {lease.id: lease for lease in self._p.ledger if lease.notice}
        wanted = {lease_id: orjson.dumps(notice_body(lease)) + b"\n" for lease_id, lease in pending.items()}
        if self._files.differ(wanted):
            await self._show(wanted)
        before, self._sent = self._sent, {}
        for lease in pending.values():
            notice = lease.notice
            assert notice is not None
            self._sent[lease.id] = (notice.asked_at, notice.units)
            if _has_url(lease) and asks_more(before.get(lease.id), notice.asked_at, notice.units):
                self._call_soon(lease)
        before_idle, self._reported_idle = self._reported_idle, {}
        for lease in self._p.ledger:
            if lease.idle is not None and _has_url(lease):
                self._reported_idle[lease.id] = lease.idle.since
                if lease.notice is None and before_idle.get(lease.id) != lease.idle.since:
                    self._call_soon(lease)

    def _call_soon(self, lease: Lease) -> None:
        call = asyncio.create_task(self._ask(lease))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _show(self, wanted: dict[str, bytes]) -> None:
        try:
            await threads.DISK.run(self._files.show, wanted)
        except OSError as error:  # the deadline holds without it; the next turn tries again
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.error("a notice could not be written; trying again", error=self._trouble)
        else:
            self._trouble = ""

    async def stop(self) -> None:
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _ask(self, lease: Lease) -> None:
        """Call one hook. A failure changes nothing: what is not given up is taken at the deadline."""
        try:
            reply = await self._reply(lease)
            await take_reply(self._p, lease, reply, who=lease.requester or "its holder")
        except (HookFailed, ValueError, GridError) as error:
            why = "; ".join([error.message, *error.because]) if isinstance(error, GridError) else str(error)
            message = f"{lease.describe()}: its holder could not be notified: {why}"
            self._p.journal.note("reclaim_hook_failed", message, lease=lease, node=lease.target)
        except Exception:
            log.exception("a hook's answer could not be carried out", boost=lease.id)

    async def _reply(self, lease: Lease) -> Reply:
        # Checked again: nodes may have come and gone since it was accepted.
        place = hook_place(lease.reclaim_hook or "", self._p.addresses())
        async with self._free:
            body = idle_body(lease) if lease.notice is None else notice_body(lease)
            answer = await threads.NODE_TASKS.run(self._call, place, orjson.dumps(body))
        if not answer.is_success:
            raise HookFailed(f"it answered {answer.status}")
        return reply_of(lease.kind, answer.json()) if answer.body.strip() else Reply()


def _has_url(lease: Lease) -> bool:
    return lease.reclaim_hook is not None and lease.reclaim_hook != WATCHED
