"""A supervisor starts the controller, watches it, and starts it again when Ray has given it up or the head was gone.

`grid start --supervise` runs one in the foreground, and reports its state to systemd. `grid start` and `grid cluster
start` leave one in the background: `python -m distributed_grid.cluster.supervise`, which reads what to watch from
stdin, one JSON object.
"""

import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict, cast

import psutil

from distributed_grid.client import answers
from distributed_grid.client.connections import listens
from distributed_grid.cluster import local
from distributed_grid.cluster.attach import start_controller
from distributed_grid.cluster.end_signals import EndRequested, EndSignals
from distributed_grid.cluster.nodes import spawn
from distributed_grid.cluster.processes import carrying, child_environment
from distributed_grid.cluster.record import ClusterRecord
from distributed_grid.decide.supervision import (
    Do,
    Observation,
    Watch,
    after_failure,
    after_success,
    may_heal,
    next_step,
)
from distributed_grid.errors import GridError, HomeInUse, StoreBroken
from distributed_grid.model.listening import AUTO, Listening
from distributed_grid.store.durable import bytes_of, record_of, replace_durably, text_in
from distributed_grid.store.home import GridHome

if TYPE_CHECKING:
    from distributed_grid.wire.controller import ControllerUp, Whereabouts

PATIENCE_S: Final = 2.0


class ServiceManager:
    """The service manager that started this process with Type=notify; without one, calls do nothing."""

    def __init__(self, environ: Mapping[str, str], pid: int | None = None) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        ours = environ.get("WATCHDOG_PID", "") in ("", str(os.getpid() if pid is None else pid))
        usec = environ.get("WATCHDOG_USEC", "")
        self.watchdog_s = int(usec) / 1e6 if ours and usec.isdigit() and int(usec) else None
        """The interval within which the manager expects a sign of life."""

    def ready(self) -> None:
        self._send("READY=1")

    def status(self, text: str) -> None:
        self._send(f"STATUS={' '.join(text.split())}")

    def alive(self) -> None:
        if self.watchdog_s is not None:
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # A leading @ stands for the zero byte of a socket name that is in no folder.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to_it:
            to_it.settimeout(PATIENCE_S)  # a manager that does not listen must not delay us
            to_it.sendto(message.encode(), address)


_SUPERVISES: Final = "GRID_SUPERVISES"
"""The environment variable of a background supervisor and of what it starts: the GRID_HOME that it watches."""
_MODULE: Final = "distributed_grid.cluster.supervise"
_WITHOUT_HEAD_S: Final = 24 * 3600.0
"""A background supervisor does not wait for a head for ever: some clusters do not come back."""
_AGAIN_S: Final = 1.0
_END_S: Final = 10.0

StartController = Callable[[Callable[[], None]], "ControllerUp"]
"""Puts the controller in; regularly calls its argument meanwhile."""


class Supervisor:
    """Runs until a signal ends it, or grid is removed from the cluster on purpose."""

    def __init__(
        self,
        address: str,
        home: GridHome,
        start_it: StartController,
        manager: ServiceManager,
        *,
        say: Callable[[str], None],
        on_ready: "Callable[[ControllerUp], None]",
        is_over: Callable[[], bool] = lambda: False,
        was_in: bool = False,
        without_head_s: float = math.inf,
    ) -> None:
        """`is_over`: the cluster has ended for good. `was_in`: grid is in the cluster, or was until just now."""
        self._address = address
        self._home = home
        self._start_controller = start_it
        self._manager = manager
        self._say = say
        self._on_ready = on_ready
        self._is_over = is_over
        self._was_in = was_in
        self._without_head_s = without_head_s
        self._earlier_stop: bytes | None = None

    def run(self) -> None:
        """Neither a signal nor an error gives boosts back: the next supervisor finds everything as it was."""
        with EndSignals(may_insist=True):
            try:
                self._forget_earlier_stop()
                self._supervise()
            except EndRequested as signal:
                stays = (
                    "the controller and all boosts stay in the cluster" if self._was_in else "grid was not added yet"
                )
                self._tell(f"ends on {signal}; {stays}")
            finally:
                self._manager.stopping()

    def _supervise(self) -> None:
        """Take turns. An error ends only its turn, unless the command itself is wrong."""
        watch = Watch(since=time.monotonic())
        while True:
            self._manager.alive()
            try:
                step = next_step(watch, self._look(), now=time.monotonic(), without_head_s=self._without_head_s)
                watch, pause_s = step.watch, step.pause_s
                if step.say:
                    self._tell(step.say)
                match step.do:
                    case Do.END:
                        return
                    case Do.START:
                        watch = self._start_it()
                    case Do.WATCH if not self._was_in and (record := self._record()) is not None:
                        self._is_in({**record, "notes": []})
            except Exception as error:
                if isinstance(error, GridError) and not may_heal(error, was_in=self._was_in):
                    self._manager.status(f"gave up: {error.message}")
                    raise  # reported to the process that started us
                pause_s, now = _AGAIN_S, time.monotonic()
                if now >= watch.try_at:
                    watch = after_failure(watch, now=now)
                    self._tell_failure(error, watch.try_at - now)
            self._pause(pause_s)

    def _start_it(self) -> Watch:
        self._tell(f"adding grid to the Ray cluster at {self._address} ...")
        found = self._start_controller(self._manager.alive)
        where = "in the cluster again," if self._was_in else "in the cluster"
        self._tell(f"grid is {where} at {found['ray_address']}, and answers at {found['url']}")
        if not self._was_in:
            self._is_in(found)
        return after_success(now=time.monotonic())

    def _is_in(self, found: "ControllerUp") -> None:
        self._was_in = True
        self._manager.ready()
        self._on_ready(found)

    # -- looking -------------------------------------------------------------------------------------------

    def _look(self) -> Observation:
        record = self._record()
        self._check_it_is_ours(record)
        return Observation(
            controller=record is not None and answers(self._home),
            head=self._head_listens(record),
            stopped=self._is_stopped() or self._is_over(),
        )

    def _is_stopped(self) -> bool:
        return (stop := self._stop()) is not None and stop != self._earlier_stop

    def _stop(self) -> bytes | None:
        """The stop record of a controller that was removed on purpose. An unreadable file is none."""
        try:
            return bytes_of(self._home.stopped)
        except StoreBroken:
            return None

    def _forget_earlier_stop(self) -> None:
        """Ignore a stop record meant for an earlier supervisor.

        While a controller answers, the record is there only if it cannot be removed.
        """
        if self._was_in and not answers(self._home):
            return
        with suppress(OSError):
            self._home.stopped.unlink(missing_ok=True)
        self._earlier_stop = self._stop()

    def _record(self) -> "Whereabouts | None":
        """The recorded place of this home's last controller."""
        try:
            record = record_of(bytes_of(self._home.controller) or b"")
            text_in(record, "ray_address")
        except (StoreBroken, ValueError):
            return None
        return cast("Whereabouts", record)

    def _head_listens(self, record: "Whereabouts | None") -> bool:
        if self._address != AUTO:
            return listens(self._address)
        # Ray looks the address up again at each try; after a success there is an address to watch.
        return not self._was_in or record is None or listens(record["ray_address"])

    def _check_it_is_ours(self, record: "Whereabouts | None") -> None:
        """A controller answers on loopback, so its head is this machine: the port tells clusters apart."""
        if record is None or self._was_in or self._address == AUTO:
            return
        if _port(record["ray_address"]) != _port(self._address) and answers(self._home):
            raise HomeInUse(
                f"The controller of this GRID_HOME is in another cluster, at {record['ray_address']}",
                because=[
                    f"{self._home.path} can serve one cluster at a time, and this supervisor is for {self._address}"
                ],
                try_next="Remove grid there with grid stop, or set GRID_HOME to another folder.",
            )

    # -- telling -------------------------------------------------------------------------------------------

    def _tell(self, text: str) -> None:
        """Write to the log and the service manager. A failure of either is no reason to stop watching."""
        with suppress(Exception):
            self._say(f"{datetime.now(UTC).astimezone():%Y-%m-%d %H:%M:%S %Z} {text}")
        self._manager.status(text)

    def _tell_failure(self, error: Exception, again_s: float) -> None:
        if isinstance(error, GridError):
            why, try_next = "; ".join((error.message, *error.because)), error.try_next or ""
        else:
            why, try_next = f"{type(error).__name__}: {error}", ""
        self._tell(f"failed: {why}. Retrying in {again_s:.0f} s. {try_next}".rstrip())

    def _pause(self, seconds: float) -> None:
        often = self._manager.watchdog_s
        time.sleep(seconds if often is None else min(seconds, often / 3))


def _port(address: str) -> str:
    return address.rpartition(":")[2]


# -- in the background ---------------------------------------------------------------------------------------


class _Order(TypedDict):
    address: str
    config: Mapping[str, object]
    config_source: str
    listening: Mapping[str, object]
    record: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a background supervisor: what it watches, and how to start the controller again."""

    address: str
    config: Mapping[str, object]
    config_source: str
    listening: Mapping[str, object]
    record: Mapping[str, object] | None = None
    """The record of the embedded cluster whose controller it is."""


def order_in(text: bytes | str) -> Order:
    """The order in a JSON text, as `asdict` and `json.dumps` wrote it."""
    return Order(**cast("_Order", record_of(text)))


def start_supervisor(home: GridHome, order: Order) -> str | None:
    """Start a background supervisor for this home, replacing existing ones; the reason if that fails.

    The order is kept in the home, so that a supervisor that dies can be replaced.
    """
    end_supervisors(home)
    try:
        replace_durably(home.supervisor, json.dumps(asdict(order)).encode() + b"\n")
        _spawn(home, order)
    except OSError as error:
        return f"{error.strerror or error}"
    return None


def restored_supervisor(home: GridHome) -> str | None:
    """Restart this home's supervisor if it is gone; a note for the user, or None if there was nothing to do.

    What it was starting may outlive it, and watches nothing.
    """
    if any(map(_is_supervisor, _supervisors(home))):
        return None
    try:
        if (order := bytes_of(home.supervisor)) is None:
            return None  # none was wanted
        _spawn(home, order_in(order))
    except (GridError, ValueError, TypeError, KeyError, OSError) as error:
        why = error.message if isinstance(error, GridError) else str(error)
        return f"the supervisor was not running and could not be restarted: {why}"
    return "the supervisor was not running and has been restarted"


def end_supervisors(home: GridHome) -> bool:
    """End the background supervisors; True if there were any."""
    with suppress(OSError):
        home.supervisor.unlink(missing_ok=True)
    found = _supervisors(home)
    for process in found:
        with suppress(psutil.Error):
            process.terminate()
    _, left = psutil.wait_procs(found, _END_S)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    return bool(found)


def _supervisors(home: GridHome) -> list[psutil.Process]:
    """The background supervisors of this home, and what they have started."""
    return [process for process in carrying(str(home.path), _SUPERVISES) if process.pid != os.getpid()]


def _is_supervisor(process: psutil.Process) -> bool:
    try:
        return _MODULE in process.cmdline()
    except psutil.Error:
        return False


def _spawn(home: GridHome, order: Order) -> None:
    record = None if order.record is None else ClusterRecord.from_dict(dict(order.record))
    env = dict(os.environ) if record is None else child_environment(os.environ, record.marker)
    home.logs.mkdir(mode=0o700, exist_ok=True)
    command = [sys.executable, "-P", "-m", _MODULE, str(home.path)]
    process = spawn(command, home.logs / "supervisor.log", env | {_SUPERVISES: str(home.path)}, stdin=subprocess.PIPE)
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(json.dumps(asdict(order)).encode())


def supervise(home: GridHome, order: Order) -> None:
    """Watch one controller until it is removed, or its cluster has ended."""

    def start_it(meanwhile: Callable[[], None]) -> "ControllerUp":
        return start_controller(
            order.address,
            home,
            order.config,
            order.config_source,
            listening=Listening.from_dict(dict(order.listening)),
            patient=True,
            meanwhile=meanwhile,
        )

    def is_away() -> bool:
        return not home.path.exists() and not listens(order.address)

    record = None if order.record is None else ClusterRecord.from_dict(dict(order.record))
    Supervisor(
        order.address,
        home,
        start_it,
        ServiceManager({}),
        say=_log,
        on_ready=lambda _: None,
        is_over=is_away if record is None else partial(local.is_over, home, record),
        was_in=True,
        without_head_s=_WITHOUT_HEAD_S,
    ).run()


def _log(text: str) -> None:
    os.write(sys.stdout.fileno(), f"{text}\n".encode())


if __name__ == "__main__":
    supervise(GridHome(Path(sys.argv[1])), order_in(sys.stdin.read()))
