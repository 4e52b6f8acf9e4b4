"""GPUs by device, as Ray gives them out: one GPU does not fit on two half-free devices, nor 0.6 beside another 0.6.

Ray reports how much is free on all devices of a node together, and which parts the bundles of placement groups hold.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from distributed_grid.model.resources import GPU, ResourceVector, describe, scale, total

_ONE: Final = scale(GPU)


class WithDevices(Protocol):
    """A node of the cluster, or of an inventory for roles."""

    @property
    def total(self) -> ResourceVector: ...
    @property
    def free(self) -> ResourceVector: ...
    @property
    def gpu_parts(self) -> tuple[int, ...]: ...


def short_of(node: WithDevices, *needs: ResourceVector, count: int = 1) -> ResourceVector:
    """How much at least has to come back before Ray has room for all these needs there at once, `count` times.

    Nothing: there is room now. A part of a GPU needs so much on one device, and a whole GPU a device that is free.
    """
    together = needs[0] if len(needs) == 1 else total(needs)
    found = {kind: max(0, count * units - node.free[kind]) for kind, units in together.items()}
    if GPU in found:
        found[GPU] = devices_short(node, node.free[GPU], [each[GPU] for each in needs if GPU in each] * count)
    return ResourceVector(found)


Together = tuple[ResourceVector, ...]
"""Needs that must have room at once."""


def most_short_of(node: WithDevices, wanted: Iterable[Together]) -> ResourceVector:
    """The same for several wants, each of which needs room, but not beside the others: by kind, the largest amount."""
    most: dict[str, int] = {}
    for needs in wanted:
        for kind, units in short_of(node, *needs).items():
            most[kind] = max(units, most.get(kind, 0))
    return ResourceVector(most)


def beside_all_free(node: WithDevices, kind: str, units: int) -> Together:
    """The needs of a node that lacks this much beyond all that it has free: its free devices, and so much more."""
    if kind != GPU:
        return (ResourceVector({kind: node.free[kind] + units}),)
    free = free_devices(node.total[GPU], node.free[GPU], node.gpu_parts)
    return tuple(ResourceVector({GPU: each}) for each in (units, *free))


def fit_at_once(has: ResourceVector, *needs: ResourceVector) -> bool:
    """Whether a node that has this much in all has room for all these needs at once when it is idle."""
    together = needs[0] if len(needs) == 1 else total(needs)
    if not has.covers(together):
        return False
    if GPU not in together:
        return True
    devices, parts, rest = has[GPU] // _ONE, [each[GPU] for each in needs if each[GPU]], has[GPU] % _ONE
    if sum(-(-units // _ONE) for units in parts) <= devices:
        return True
    return not _short_on([_ONE] * devices + [rest] * (rest > 0), parts)


def most_at_once(has: int, room: int, units: int) -> int:
    """How many requests for this much of GPUs an idle node that has `has` carries at once if it gives `room` of it."""
    if units >= _ONE:
        return room // (-(-units // _ONE) * _ONE)
    return min(room // units, has // _ONE * (_ONE // units))


def on_idle_devices(*needs: ResourceVector) -> int:
    """The units of whole devices that have room for the GPUs of all these needs at once."""
    parts = [each[GPU] for each in needs if GPU in each]
    devices = range(-(-sum(parts) // _ONE), len(parts) + sum(parts) // _ONE)
    return _ONE * next((count for count in devices if not _short_on([_ONE] * count, parts)), devices.stop)


def devices_short(node: WithDevices, free: int, requested: Sequence[int]) -> int:
    """The same for amounts of GPUs, where so much is free: whole devices first, then the parts in each of three orders:
    largest first, as listed, and reversed."""
    return _short_on(free_devices(node.total[GPU], free, node.gpu_parts), requested)


def _short_on(devices: list[int], requested: Sequence[int]) -> int:
    whole = sum(-(-units // _ONE) for units in requested if units >= _ONE)
    parts = [units for units in requested if units < _ONE]
    short = _ONE * whole - sum(devices[:whole])
    orders = (sorted(parts, reverse=True), parts, parts[::-1]) if len(parts) > 1 else (parts,)
    return short + min(_placed(devices[whole:], order)[1] for order in orders)


def describe_room(node: WithDevices, units: int) -> str:
    """ "0.4 GPUs on one device", "1 GPU as whole devices": what a request for so many units can use of what is free."""
    room = most_on(free_devices(node.total[GPU], node.free[GPU], node.gpu_parts), units)
    return f"{describe(GPU, room)} {'on one device' if units < _ONE else 'as whole devices'}"


def device_room(node: WithDevices, free: int, units: int, members: int = 1) -> int:
    """How much of what is free a request for `units` can use: whole devices, or a part of the emptiest one.

    Of several members, each needs `units`; as many of them count as fit at once.
    """
    return most_on(free_devices(node.total[GPU], free, node.gpu_parts), units, members)


def most_on(devices: Sequence[int], units: int, members: int = 1) -> int:
    """The same for devices that have so much left each."""
    if units >= _ONE:
        return _ONE * devices.count(_ONE)
    return max(devices, default=0) if members == 1 else units * sum(left // units for left in devices)


def free_devices(total: int, free: int, parts: Sequence[int]) -> list[int]:
    """The free part of each GPU that is not full, the largest first.

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
    """The rest of the devices beside these parts; None if the parts do not fit.

    Each part goes to the fullest device that can hold it, as Ray does it.
    """
    left, short = _placed(devices, parts)
    return None if short else left


def _placed(devices: Sequence[int], parts: Sequence[int]) -> tuple[list[int], int]:
    """The rest of the devices, and how much parts that do not fit lack on the emptiest device, which they fill."""
    left, short = list(devices), 0
    for part in parts:
        able = [number for number, room in enumerate(left) if room >= part]
        if able:
            left[min(able, key=left.__getitem__)] -= part
        else:
            emptiest = max(left, default=0)
            short += part - emptiest
            if left:
                left.remove(emptiest)
    return left, short


def _as_few_as_can_be(free: int) -> list[int]:
    whole, part = divmod(free, _ONE)
    return [_ONE] * whole + [part] * (part > 0)
