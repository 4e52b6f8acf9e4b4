"""A run in the background: the same wrapper, in a separate process that outlives the command."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypedDict

from distributed_grid.client import GridClient
from distributed_grid.errors import GridError, error_from_dict
from distributed_grid.model.codec import PLAIN
from distributed_grid.model.times import local_times
from distributed_grid.run.held_lease import Wanted
from distributed_grid.run.monitor import RunOutput
from distributed_grid.run.records import Run, Runs
from distributed_grid.run.wrapper import Wrapper
from distributed_grid.store.home import GridHome

OUTPUT: Final = "output.log"
_REFUSED: Final = "refused.json"
_POLL_S: Final = 0.05


class Order(TypedDict):
    """What the command tells the separate process."""

    id: str
    wanted: dict[str, object]
    """The fields of a `Wanted`."""
    command: list[str]
    shown: str
    isolation: str
    allow_escapes: bool
    label: str


def start(
    runs: Runs,
    wanted: Wanted,
    command: Sequence[str],
    shown: str,
    isolation: str,
    *,
    label: str,
    allow_escapes: bool = False,
) -> Run:
    """Start the run and return once the program runs. Raises the reason if it does not.

    `shown`: the command line without secrets; `label`: what other users see of it.
    """
    run_id = uuid.uuid4().hex[:12]
    # The command goes through a pipe, since it may contain secrets.
    order: Order = {
        "id": run_id,
        "wanted": asdict(wanted),
        "command": list(command),
        "shown": shown,
        "isolation": isolation,
        "allow_escapes": allow_escapes,
        "label": label,
    }
    wrapper = subprocess.Popen(
        [sys.executable, "-P", "-m", "distributed_grid.run.detached"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert wrapper.stdin is not None
    with wrapper.stdin as pipe:
        pipe.write(json.dumps(order).encode())
    try:
        return _once_it_runs(runs, run_id, wrapper)
    except KeyboardInterrupt:
        wrapper.terminate()  # or it would keep waiting for its lease, and start much later
        wrapper.wait()
        raise


def _once_it_runs(runs: Runs, run_id: str, wrapper: "subprocess.Popen[bytes]") -> Run:
    while True:
        is_over = wrapper.poll() is not None
        found = next((run for run in runs.all() if run.id == run_id), None)
        if found is not None and (is_over or not found.is_over):  # the reason for the end is recorded last
            refused = Path(found.folder) / _REFUSED
            if refused.exists():
                raise error_from_dict(json.loads(refused.read_text()))
            if found.state != "starting":
                return found
        if is_over:
            raise GridError("The program exited during startup", try_next="grid tasks ls")
        time.sleep(_POLL_S)


def main() -> int:
    order: Order = json.loads(sys.stdin.buffer.read())
    home = GridHome.find()
    runs = Runs(home)
    run = runs.begin(
        order["shown"],
        isolation=order["isolation"],
        allow_escapes=order["allow_escapes"],
        label=order["label"],
        detached=True,
        run_id=order["id"],
    )
    with (Path(run.folder) / OUTPUT).open("ab", buffering=0) as output:

        def say(text: str) -> None:
            output.write(local_times(text, now=datetime.now(UTC)).encode() + b"\n")

        to_user = RunOutput(say, lambda _: None, lambda: None)
        client = GridClient(home, on_wait=say)
        try:
            wanted = PLAIN.decode(Wanted, order["wanted"])
            return Wrapper(client, wanted, order["command"], run, runs, to_user).carry_out(output)
        except GridError as error:
            for line in (error.message, *error.because):
                say(f"grid: {line}")
            (Path(run.folder) / _REFUSED).write_text(json.dumps(error.to_dict()))
            return error.exit_code


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")  # its output goes to a file that others follow
    sys.exit(main())
