"""What of a node's GPUs a process uses, as far as their driver tells."""

from collections.abc import Sequence
from dataclasses import replace

from distributed_grid.model.offloading import ProcessFacts
from distributed_grid.model.snapshots import GpuReading


def with_gpus(facts: ProcessFacts, devices: Sequence[GpuReading]) -> ProcessFacts:
    """The driver knows who has memory on which device. Where it does not tell, the devices that are open count."""
    told = [device for device in devices if device.processes is not None]
    if not told:
        return facts
    used = [device for device in told if any(one.pid in facts.family for one in device.processes or ())]
    memory = [one.memory_bytes for device in used for one in device.processes or () if one.pid in facts.family]
    busy = [device.utilisation for device in used if device.utilisation is not None]
    return replace(
        facts,
        gpus=len(used),
        gpu_memory=None if None in memory else sum(part for part in memory if part is not None),
        gpu_utilisation=max(busy, default=None),
    )
