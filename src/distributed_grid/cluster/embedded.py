"""The embedded cluster with grid in it: raylets, then the controller, all or nothing; and its supervisor."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from distributed_grid.client import answers
from distributed_grid.cluster import local
from distributed_grid.cluster.attach import start_controller
from distributed_grid.cluster.nodes import NodeSpec
from distributed_grid.cluster.record import ClusterRecord
from distributed_grid.cluster.supervise import Order, end_supervisors, restored_supervisor, start_supervisor
from distributed_grid.config import GridConfig, find_config, load_config
from distributed_grid.controller.listening import checked, listen
from distributed_grid.decide.diagnosis.nodes import VisibleGpus, shared_devices
from distributed_grid.errors import AlreadyRunning, ConfigInvalid, StoreBroken
from distributed_grid.model.listening import Listening
from distributed_grid.model.resources import GB
from distributed_grid.store.durable import bytes_of, record_of
from distributed_grid.store.home import GridHome

if TYPE_CHECKING:
    from distributed_grid.wire.controller import ClusterUp, ControllerUp

Progress = Callable[[str], None]
_CPUS_PER_CORE: Final = 4
"""Beyond this, a program that uses all of them spends most of its start on starting workers."""

_ANSWER_S: Final = 10.0


def start_embedded(
    home: GridHome,
    config_path: str | None,
    *,
    progress: Progress,
    listening: Listening | None = None,
    adopt: bool = False,
) -> "ClusterUp":
    """Start what the configuration describes, with the controller in it; how to reach it.

    If the cluster already runs but its controller does not answer, only the controller is started again.
    """
    listening = checked(listening or Listening())  # before there is anything to undo
    loaded = load_config(find_config(config_path, os.environ, Path.cwd()))
    for warning in loaded.warnings:
        progress(f"Warning: {warning}")
    config = loaded.config
    if not config.embedded:
        raise ConfigInvalid(
            f"{loaded.source} describes real machines, not an embedded cluster",
            because=["it does not have embedded: true"],
            try_next="Start Ray on those machines, then on the head: grid start --address HOST:PORT --config FILE",
        )
    running = local.running(home)
    if running is not None and answers(home, within_s=_ANSWER_S):
        note = restored_supervisor(home)
        raise AlreadyRunning(
            f"The cluster {running.name} is already running at {running.ray_address}",
            because=[] if note is None else [note],
            try_next="Stop it with: grid cluster stop",
        )
    head = config.head.name if config.head else ""
    if listening.port:
        listen(listening.host, listening.port, or_another=False).close()
    if (slow := why_slow(config, len(os.sched_getaffinity(0)))) is not None:
        progress(f"Note: {slow}")
    for shared in shared_gpus(config, len(list(Path("/dev").glob("nvidia[0-9]*")))):
        progress(f"Note: {shared}")
    up: list[ControllerUp] = []

    def start_it(ray_address: str, check: Callable[[], None]) -> None:
        source = str(loaded.source)
        up.append(
            start_controller(
                ray_address, home, config.to_dict(), source, listening=listening, adopt=adopt, meanwhile=check
            )
        )
        progress("controller ... up")

    def supervise(record: ClusterRecord) -> None:
        order = Order(record.ray_address, config.to_dict(), str(loaded.source), listening.to_dict(), record.to_dict())
        if (why_not := start_supervisor(home, order)) is not None:
            progress(f"Warning: the supervisor did not start, so only Ray restarts the controller: {why_not}")

    if running is not None:
        progress(f"The cluster {running.name} runs, but its controller does not answer: starting it again ...")
        start_it(running.ray_address, lambda: None)
        supervise(running)
        return {**up[-1], "head": head}
    record = local.start(
        home.create(),
        config.name,
        node_specs(config),
        config_digest=config.digest(),
        progress=progress,
        beside=None if adopt else start_it,
    )
    if adopt:  # what can be adopted depends on the nodes that exist
        try:
            start_it(record.ray_address, lambda: None)
        except BaseException:
            local.stop(home, progress=lambda _: None)
            raise
    supervise(record)
    return {**up[-1], "head": head}


def stop_embedded(home: GridHome, *, progress: Progress) -> dict[str, list[str]]:
    """End the embedded cluster of this home. Its unexpired boosts stay on disk for its next start."""
    end_supervisors(home)
    _freeze_controller(home)
    record = local.stop(home, progress=progress)
    if record is not None:
        home.controller.unlink(missing_ok=True)
    return {"stopped": [node.name for node in record.nodes] if record else []}


def _freeze_controller(home: GridHome) -> None:
    """Keep the controller from seeing its nodes go one by one: it would end their boosts."""
    running = local.running(home)
    try:
        pid = record_of(bytes_of(home.controller) or b"").get("pid")
        if not isinstance(pid, int):
            return
        controller = psutil.Process(pid)
        family = {parent.pid for parent in controller.parents()}
    except (StoreBroken, ValueError, psutil.Error):
        return
    if running is not None and family & {node.pid for node in running.nodes}:
        controller.suspend()


def why_slow(config: GridConfig, cores: int) -> str | None:
    """A warning about a machine that has far fewer cores than its nodes have CPUs; None if it has enough."""
    cpus = sum(spec.cpus for spec in node_specs(config))
    if cpus <= _CPUS_PER_CORE * cores:
        return None
    return (
        f"the nodes have {cpus:g} CPUs together, and this machine has {cores} core{'s' * (cores != 1)}. A plain Ray "
        f"program starts up to one worker for each CPU, which is slow here. To avoid that, use grid run --cpus {cores} "
        "-- PROGRAM, or set cpu_count to what the machine has."
    )


def shared_gpus(config: GridConfig, devices: int) -> list[str]:
    """Warnings about GPUs of this machine that several nodes hand out; none if it has no GPU."""
    if not devices:
        return []
    return shared_devices(VisibleGpus(spec.name, "", spec.gpus) for spec in node_specs(config) if spec.gpus)


def node_specs(config: GridConfig) -> list[NodeSpec]:
    return [
        NodeSpec(
            name=node.name,
            cpus=node.cpu_count or 0,
            gpus=int(node.gpu_count or 0),
            memory_bytes=round((node.memory_gb or 0) * GB),
            resources=dict(node.resources),
            is_head=config.head is not None and node.name == config.head.name,
        )
        for node in (each.as_embedded() for each in config.nodes)
    ]
