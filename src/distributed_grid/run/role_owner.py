"""The process that owns a run of roles started with `grid roles up`. The run lives as long as this process.

`python -m distributed_grid.run.role_owner` reads its order from stdin. Once the run is up or has failed to start, it
writes one JSON object to the pipe that the order names. It then stays until the run ends or a signal ends it.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypedDict

from distributed_grid.client import GridClient
from distributed_grid.cluster.end_signals import EndRequested, EndSignals
from distributed_grid.config.roles_file import load_workload
from distributed_grid.errors import GridError, NotOnHead
from distributed_grid.execution.role_records import NAMESPACE, RoleRecords
from distributed_grid.model.checkup_facts import Trouble
from distributed_grid.model.plain_text import plain
from distributed_grid.model.roles.runs import RunState
from distributed_grid.model.roles.workload import Workload
from distributed_grid.model.times import local_times
from distributed_grid.store.home import GridHome

_LOOK_S: Final = 1.0
_SHOWN: Final = "\n\t"


class RunOrder(TypedDict):
    """The order from the starting process to the owner."""

    home: str
    name: str
    file: str
    folder: str
    """Where classes are looked up."""
    working_dir: str | None
    wait_s: float
    foreground: bool
    answer_fd: int


class Answer:
    """The answer that the starting process waits for; that process may be gone by now."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    def give(self, content: Mapping[str, object]) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError), os.fdopen(fd, "wb") as pipe:
                pipe.write(json.dumps(content).encode() + b"\n")


def keep(order: RunOrder, answer: Answer) -> int:
    """Start the run, keep it, end it. Returns the exit code."""
    workload = load_workload(order["file"]).workload
    with EndSignals(may_insist=False) as signals:
        _connect(order)
        signals.listen()  # Ray's own handlers would end the process without notifying the run
        try:
            return _keep_running(workload, order["name"], order["wait_s"], answer)
        except EndRequested:
            _say(f"{order['name']} was asked to end")
            return 0


def _keep_running(workload: Workload, name: str, wait_s: float, answer: Answer) -> int:
    from distributed_grid.roles import launch

    try:
        run = launch(workload, name=name, wait_s=wait_s, progress=_said_once(_say))
    except BaseException:
        with suppress(Exception):  # a run that never came up leaves nothing behind, not even a record
            RoleRecords.connected().remove_mine(name)
        raise
    with run:
        answer.give({"up": run.name})
        _say(f"{run.name} is up")
        while not run.wait(_LOOK_S):
            pass
        ended = run.status()
    _say(f"{run.name} has {ended['state']}" + (f": {ended['why']}" if ended["why"] else ""))
    return 1 if ended["state"] == RunState.FAILED else 0


def _connect(order: RunOrder) -> None:
    from distributed_grid.controller import reach
    from distributed_grid.controller.join import why_not_reached

    client = GridClient(GridHome(Path(order["home"])))
    try:
        address = client.ray_address()
    finally:
        client.close()
    environment = {"working_dir": order["working_dir"]} if order["working_dir"] else None
    # The actors' output is printed here: it is the run's output.
    how = {"namespace": NAMESPACE, "log_to_driver": True, "logging_level": "WARNING", "runtime_env": environment}
    unreached = reach.connect(address, **how)
    if unreached is None:
        return
    if unreached.trouble is Trouble.ELSEWHERE:
        raise NotOnHead(
            "Roles are started on a machine of the cluster",
            because=[unreached.why],
            try_next="Run the same command there, or start a Ray node here that joins the cluster.",
        )
    raise why_not_reached(address, unreached)


def _said_once(say: Callable[[str], None]) -> Callable[[str], None]:
    """Write a repeated message only when it changes."""
    last = ""

    def tell(text: str) -> None:
        nonlocal last
        if text != last:
            last = text
            say(text)

    return tell


def _say(text: str) -> None:
    sys.stderr.write(f"{plain(local_times(text, now=datetime.now(UTC)), keep=_SHOWN)}\n")
    sys.stderr.flush()


def main() -> int:
    order: RunOrder = json.loads(sys.stdin.buffer.read())
    sys.path.insert(0, order["folder"])  # "module:Class" is looked up here first
    answer = Answer(order["answer_fd"])
    try:
        return keep(order, answer)
    except GridError as error:
        if not order["foreground"]:  # in the foreground, the starting process prints it
            _say("\n  ".join([error.message, *error.because]))
        answer.give({"error": error.to_dict()})
        return error.exit_code
    except EndRequested:
        return 0
    except Exception as error:  # noqa: BLE001 - sent to the starting process; the traceback is in the output
        traceback.print_exc()
        failure = GridError(f"{type(error).__name__}: {error}", try_next=f"grid roles logs {order['name']}")
        answer.give({"error": failure.to_dict()})
        return failure.exit_code


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")  # its output goes to a file that others follow
    sys.exit(main())
