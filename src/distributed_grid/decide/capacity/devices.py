"""GPUs by device, as Ray gives them out: one GPU does not fit on two half-free devices, nor 0.6 beside another 0.6.

Ray reports how much is free on all devices of a node together, and which parts the bundles of placement groups hold.
"""

from collections.abc import Sequence
from typing import Final

from distributed_grid.model.nodes import Node
from distributed_grid.model.resources import GPU, scale

_ONE: Final = scale(GPU)


def device_room(node: Node, free: int, units: int) -> int:
    """How much of what is free a request for `units` can use: whole devices, or a part of the emptiest one."""
    return most_on(free_devices(node.total[GPU], free, node.gpu_parts), units)


def most_on(devices: Sequence[int], units: int) -> int:
    """The same for devices that have so much left each."""
    return _ONE * devices.count(_ONE) if units >= _ONE else max(devices, default=0)


def free_devices(total: int, free: int, parts: Sequence[int]) -> list[int]:
    """What each GPU that is not full has free, the largest amount first.

    `parts`: amounts below one that are known to be held, each on one device. They are assigned to devices one by one.
    All other use takes whole devices first, and its remainder takes the fullest devices. This assumes the layout that
    leaves the most room for large requests.
    """
    free = max(0, free)
    if not parts:
        return _as_few_as_can_be(free)
    left = beside([_ONE] * (total // _ONE), sorted(parts, reverse=True))
    others = 0 if left is None else sum(left) - free
    whole, rest = divmod(others, _ONE)
    if left is None or others < 0 or whole > left.count(_ONE):
        return _as_few_as_can_be(free)  # the free amount and the held parts come from different moments
    left = sorted(left)[: len(left) - whole]
    for number, room in enumerate(left):
        left[number] -= min(room, rest)
        rest -= min(room, rest)
    return [room for room in reversed(left) if room]


def beside(devices: Sequence[int], parts: Sequence[int]) -> list[int] | None:
    """What the devices have left beside these parts; None if the parts do not fit.

    Each part goes to the fullest device that can hold it, as Ray does it.
    """
    left = list(devices)
    for part in parts:
        able = [number for number, room in enumerate(left) if room >= part]
        if not able:
            return None
        left[min(able, key=left.__getitem__)] -= part
    return left


def _as_few_as_can_be(free: int) -> list[int]:
    whole, part = divmod(free, _ONE)
    return [_ONE] * whole + [part] * (part > 0)
