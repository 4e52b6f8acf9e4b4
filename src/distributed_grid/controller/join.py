"""Runs apart from the command line: connects to a Ray cluster and starts the controller in it.

`python -m distributed_grid.controller.join` reads one JSON object from stdin and writes one to stdout, so that
the process of `grid` itself never imports ray.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from distributed_grid.config import GridConfig
from distributed_grid.controller.listening import listen
from distributed_grid.decide.diagnosis import HOW_TO_REACH
from distributed_grid.errors import (
    AccessDenied,
    AlreadyRunning,
    GridError,
    InvalidRequest,
    NoCluster,
    NotOnHead,
    RayUnsuitable,
    Unavailable,
)
from distributed_grid.model.checkup_facts import ActorState, Trouble, Unreached
from distributed_grid.model.listening import Listening
from distributed_grid.store.home import GridHome

if TYPE_CHECKING:
    from distributed_grid.wire.controller import ControllerUp
    from distributed_grid.wire.values import ErrorAnswer


class JoinOrder(TypedDict):
    """An order to start a controller in a cluster."""

    address: str
    home: str
    config: dict[str, object]
    config_source: str
    listening: dict[str, object]
    adopt: bool
    patient: bool


def join(order: JoinOrder) -> "ControllerUp":
    """Start the controller in the cluster at `order["address"]`; returns how to reach it."""
    import ray

    from distributed_grid.execution.ray_start import check_ray_version

    check_ray_version(ray.__version__)  # before importing anything that an older Ray lacks
    from distributed_grid.controller import actor
    from distributed_grid.controller.checkup.controller import ask_for_controller
    from distributed_grid.execution.ray_gateway import RayGateway

    connect(order["address"])
    gateway = RayGateway.connected()
    head = next((raylet for raylet in gateway.raylets() if raylet.is_head), None)
    if head is None:
        raise Unavailable("The cluster has no head node that answers")
    here = ray.util.get_node_ip_address()
    if head.ip != here:
        raise NotOnHead(
            f"grid has to be started on the head node, which is {head.ip}; this is {here}",
            because=["the controller runs on the head, and keeps its state there"],
            try_next=f"On {head.ip}: grid start --address {gateway.gcs_address}",
        )
    there, url = ask_for_controller()
    if there is not ActorState.ABSENT:
        raise AlreadyRunning(
            "grid is already in this cluster",
            because=[f"its controller is at {url}" if url else "its controller does not answer at the moment"],
            try_next="Use it with the GRID_HOME it was started with, or remove it there: grid stop",
        )
    listening, patient = Listening.from_dict(order["listening"]), order["patient"]
    if listening.port and not patient:
        # Checked here, because for an actor that cannot start Ray passes on the error's text but not its type.
        listen(listening.host, listening.port, or_another=False).close()
    home = GridHome(Path(order["home"]))
    config = GridConfig.from_dict(order["config"])
    try:
        return actor.create(
            head.node_id,
            home,
            config,
            order["config_source"],
            gateway.gcs_address,
            listening,
            order["adopt"],
            patient,
        )
    except ray.exceptions.RayError as error:
        if (left := actor.existing()) is not None:
            ray.kill(left, no_restart=True)
        raise _why_it_failed(error) from error


def connect(address: str) -> None:
    """Join a running cluster as a driver, without log output; raises the error that says why that fails."""
    from distributed_grid.controller import reach

    unreached = reach.connect(address)
    if unreached is not None:
        raise why_not_reached(address, unreached)


def why_not_reached(address: str, unreached: Unreached) -> GridError:
    """The failure as an error that says what to do."""
    match unreached.trouble:
        case Trouble.ADDRESS:
            error: type[GridError] = InvalidRequest
            message = f"{address} is not the address of a Ray cluster"
        case Trouble.TOKEN:
            error = AccessDenied
            message = f"The token for the Ray cluster at {address} is missing or wrong"
        case Trouble.VERSIONS:
            error, message = RayUnsuitable, f"The Ray cluster at {address} has other versions than this command"
        case Trouble.ELSEWHERE:
            error, message = NotOnHead, f"grid has to be started on the head node of the cluster at {address}"
        case _:
            error, message = NoCluster, f"No Ray cluster answers at {address}"
    return error(message, because=[unreached.why], try_next=HOW_TO_REACH[unreached.trouble])


def _why_it_failed(error: Exception) -> GridError:
    """The controller's own error if there is one; otherwise Ray's words, shortened."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, GridError):
        return cause
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any("No module named 'distributed_grid'" in line for line in lines):
        return RayUnsuitable(
            "The Python that runs Ray on the head does not have distributed-grid",
            try_next="Install distributed-grid into the environment from which `ray start` was run on the head.",
        )
    return Unavailable("The controller did not start", because=lines[-3:], try_next="To find the cause: grid doctor")


def main() -> int:
    try:
        answer: ControllerUp | ErrorAnswer = join(json.load(sys.stdin))
    except GridError as error:
        answer = {"error": error.to_dict()}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
