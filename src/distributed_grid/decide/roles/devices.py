"""What is free on each GPU of a node, of which Ray tells only the sum."""

from collections.abc import Sequence
from typing import Final

from distributed_grid.model.resources import GPU, scale
from distributed_grid.model.roles.inventory import InventoryNode

_ONE: Final = scale(GPU)


def free_devices(node: InventoryNode) -> list[int]:
    """Of each GPU that is not full, the most first.

    Parts of which it is known that others hold them are put on devices one by one. All else that is in use takes
    whole devices, and of what is left over the fullest: as if it left the most to those who ask for much.
    """
    free = max(0, node.free[GPU])
    if not node.gpu_parts:
        return _as_few_as_can_be(free)
    left = beside([_ONE] * (node.total[GPU] // _ONE), sorted(node.gpu_parts, reverse=True))
    others = 0 if left is None else sum(left) - free
    whole, rest = divmod(others, _ONE)
    if left is None or others < 0 or whole > left.count(_ONE):
        return _as_few_as_can_be(free)  # what is free and who holds what were not seen at the same time
    left = sorted(left)[: len(left) - whole]
    for number, room in enumerate(left):
        left[number] -= min(room, rest)
        rest -= min(room, rest)
    return [room for room in reversed(left) if room]


def beside(devices: Sequence[int], parts: Sequence[int]) -> list[int] | None:
    """What devices have left beside these; each goes to the device that it leaves the least, as Ray does it.

    None: they do not fit.
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
