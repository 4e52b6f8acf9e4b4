"""The detached actor `grid-controller`: what Ray starts, restarts for ever, and pins to the head."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from distributed_grid.config import GridConfig
from distributed_grid.execution.actors import NAMESPACE, find
from distributed_grid.logs import logger
from distributed_grid.model.listening import Listening
from distributed_grid.monitoring.telemetry import RayTelemetry
from distributed_grid.store.home import GridHome

if TYPE_CHECKING:
    from distributed_grid.wire.controller import ControllerUp, Whereabouts

NAME: Final = "grid-controller"
_RESTART_PAUSE_S: Final = 2.0
_UP_WITHIN_S: Final = 240.0  # on a machine that starts many nodes meanwhile


class ControllerStart(TypedDict):
    """Plain data, which Ray keeps for restarts."""

    home: str
    config: dict[str, object]
    config_source: str
    ray_address: str
    listening: dict[str, object]
    adopt: bool
    patient: bool


class GridController:
    """Lives in a Ray worker on the head. Everything it does is in `ControllerRuntime`."""

    def __init__(self, start: ControllerStart) -> None:
        """The first start raises what is wrong, for the person who waits for it, unless it is `patient`.

        A restart never raises: Ray would take the actor for dead and never restart it.
        """
        is_restart = bool(ray.get_runtime_context().was_current_actor_reconstructed)
        try:
            self._start({**start, "patient": start["patient"] or is_restart})
        except BaseException:
            if not is_restart:
                raise
            logger().exception("the controller did not start; Ray starts it again")
            time.sleep(_RESTART_PAUSE_S)
            os._exit(1)  # Ray restarts a process that ends, however often; an error here would be final

    def _start(self, start: ControllerStart) -> None:
        gc.disable()  # until all is loaded: looking through it again and again takes a tenth of the start
        # A process that only starts the controller in a cluster needs none of this, and is faster without it.
        from distributed_grid.controller.runtime import ControllerRuntime
        from distributed_grid.execution.processes import ProcessControl, RayProcesses
        from distributed_grid.execution.ray_cluster import RayCluster
        from distributed_grid.execution.role_records import RoleRecords
        from distributed_grid.execution.runner import RayRunners

        _stop_being_nice()
        address = ray.get_runtime_context().gcs_address
        telemetry = RayTelemetry(address)
        self._runtime = ControllerRuntime(
            RayCluster(address),
            GridConfig.from_dict(start["config"]),
            GridHome(Path(start["home"])),
            ray_address=start["ray_address"],
            config_source=start["config_source"],
            leave=_leave,
            listening=Listening.from_dict(start["listening"]),
            adopt=start["adopt"],
            telemetry=telemetry,
            control=ProcessControl(RayProcesses(telemetry.on), RayRunners()),
            role_records=RoleRecords.at(address),
            patient=start["patient"],
        )
        self._runtime.start()

    def where(self) -> Whereabouts:
        return self._runtime.where()

    def notes(self) -> list[str]:
        return list(self._runtime.notes)


def _stop_being_nice() -> None:
    """Undo Ray's low priority for workers: a process that relieves an overloaded machine must get a turn.

    Only root can do this; other users keep Ray's priority.
    """
    for thread in Path("/proc/self/task").glob("*"):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)


async def _leave() -> None:
    """Take this actor out of the cluster for good, once the answer to the caller is on its way."""

    async def soon() -> None:
        await asyncio.sleep(0.2)
        myself = ray.get_actor(NAME, namespace=NAMESPACE)
        await asyncio.to_thread(ray.kill, myself, no_restart=True)

    _leaving.append(asyncio.create_task(soon()))


_leaving: list[asyncio.Task[None]] = []


def create(
    head_id: str,
    home: GridHome,
    config: GridConfig,
    config_source: str,
    ray_address: str,
    listening: Listening,
    adopt: bool = False,
    patient: bool = False,
) -> ControllerUp:
    """Start the controller in the cluster and wait until it answers; returns how to reach it, and its notes."""
    start: ControllerStart = {
        "home": str(home.path),
        "config": config.to_dict(),
        "config_source": config_source,
        "ray_address": ray_address,
        "listening": listening.to_dict(),
        "adopt": adopt,
        "patient": patient,
    }
    controller = (
        ray.remote(GridController)
        .options(
            name=NAME,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(head_id, soft=False),
        )
        .remote(start)
    )
    where: Whereabouts = ray.get(controller.where.remote(), timeout=_UP_WITHIN_S)
    return {**where, "notes": ray.get(controller.notes.remote(), timeout=_UP_WITHIN_S)}


def existing() -> Any | None:
    """The handle of a controller that is already in the cluster."""
    return find(NAME)
