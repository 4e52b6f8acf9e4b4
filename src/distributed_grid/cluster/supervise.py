"""A supervisor puts the controller in, watches it, and puts it back when Ray has given it up or the head was gone.

`grid start --supervise` is one in the foreground; the embedded cluster has one of its own.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import Any

from distributed_grid.client import answers
from distributed_grid.client.connections import listens
from distributed_grid.cluster.service_manager import ServiceManager
from distributed_grid.decide.supervision import Do, Sight, Watch, after_failure, after_success, may_heal, next_step
from distributed_grid.errors import GridError, HomeInUse, StoreBroken
from distributed_grid.model.addresses import AUTO
from distributed_grid.store.durable import bytes_of, json_of
from distributed_grid.store.home import GridHome

PutIn = Callable[[Callable[[], None]], dict[str, Any]]
"""Puts the controller in; calls what it is given now and then meanwhile."""


class ToldToEnd(BaseException):
    """A signal asked this process to end."""


class Supervisor:
    """Runs until it is told to end, or somebody takes grid out of the cluster on purpose."""

    def __init__(
        self,
        address: str,
        home: GridHome,
        put_in: PutIn,
        manager: ServiceManager,
        *,
        say: Callable[[str], None],
        on_ready: Callable[[dict[str, Any]], None],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_over`: the cluster has ended for good."""
        self._address = address
        self._home = home
        self._put_in = put_in
        self._manager = manager
        self._say = say
        self._on_ready = on_ready
        self._is_over = is_over
        self._was_in = False

    def run(self) -> None:
        """Neither a signal nor an error gives boosts back: whoever is started next finds all as it was."""
        with _signals_raise():
            try:
                self._home.stopped.unlink(missing_ok=True)  # that was meant for an earlier one
                self._supervise()
            except ToldToEnd as told:
                stays = (
                    "the controller and all boosts stay in the cluster" if self._was_in else "grid was not put in yet"
                )
                self._tell(f"ends on {told}; {stays}")
            finally:
                self._manager.stopping()

    def _supervise(self) -> None:
        watch = Watch(since=time.monotonic())
        while True:
            self._manager.alive()
            step = next_step(watch, self._look(), now=time.monotonic())
            watch = step.watch
            if step.say:
                self._tell(step.say)
            match step.do:
                case Do.END:
                    return
                case Do.PUT_IN:
                    watch = self._try_to_put_in(watch)
                case Do.WATCH if not self._was_in:
                    self._is_in(self._record() or {})
            self._pause(step.pause_s)

    def _try_to_put_in(self, watch: Watch) -> Watch:
        self._tell(f"putting grid into the Ray cluster at {self._address} ...")
        try:
            found = self._put_in(self._manager.alive)
        except GridError as error:
            if not may_heal(error, was_in=self._was_in):
                self._manager.status(f"gave up: {error.message}")
                raise  # whoever started us should know
            failed = after_failure(watch, now=time.monotonic())
            why = "; ".join((error.message, *error.because))
            again = failed.try_at - time.monotonic()
            self._tell(f"that failed: {why}. Next try in {again:.0f} s. {error.try_next or ''}".rstrip())
            return failed
        where = "in the cluster again," if self._was_in else "in the cluster"
        self._tell(f"grid is {where} at {found['ray_address']}, and answers at {found['url']}")
        if not self._was_in:
            self._is_in(found)
        return after_success(now=time.monotonic())

    def _is_in(self, found: dict[str, Any]) -> None:
        self._was_in = True
        self._manager.ready()
        self._on_ready(found)

    # -- looking -------------------------------------------------------------------------------------------

    def _look(self) -> Sight:
        record = self._record()
        self._check_it_is_ours(record)
        return Sight(
            controller=record is not None and answers(self._home),
            head=self._head_listens(record),
            stopped=self._home.stopped.exists() or self._is_over(),
        )

    def _record(self) -> dict[str, Any] | None:
        """Where the last controller of this home said that it is."""
        try:
            record = json_of(bytes_of(self._home.controller) or b"")
        except (StoreBroken, ValueError):
            return None
        return record if isinstance(record, dict) and isinstance(record.get("ray_address"), str) else None

    def _head_listens(self, record: dict[str, Any] | None) -> bool:
        if self._address != AUTO:
            return listens(self._address)
        # Ray looks it up anew at each try; after a success there is an address to watch.
        return not self._was_in or record is None or listens(record["ray_address"])

    def _check_it_is_ours(self, record: dict[str, Any] | None) -> None:
        """A controller answers on loopback, so its head is this machine: the port tells clusters apart."""
        if record is None or self._was_in or self._address == AUTO:
            return
        if _port(record["ray_address"]) != _port(self._address) and answers(self._home):
            raise HomeInUse(
                f"The controller of this GRID_HOME is in another cluster, at {record['ray_address']}",
                because=[f"{self._home.path} can serve one cluster at a time, and it was to be {self._address}"],
                try_next="Take it out there with grid stop, or set GRID_HOME to another folder.",
            )

    # -- telling -------------------------------------------------------------------------------------------

    def _tell(self, text: str) -> None:
        self._say(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}Z {text}")
        self._manager.status(text)

    def _pause(self, seconds: float) -> None:
        often = self._manager.watchdog_s
        time.sleep(seconds if often is None else min(seconds, often / 3))


def _port(address: str) -> str:
    return address.rpartition(":")[2]


@contextmanager
def _signals_raise() -> Iterator[None]:
    """The first signal ends whatever is being waited for; a second one ends the process as it would anyway."""

    def raise_it(number: int, _: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        raise ToldToEnd(signal.Signals(number).name)

    wanted = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    heard = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]  # nohup means it
    before = {number: signal.signal(number, raise_it) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
