"""What a placement group has on a node beside its bundles: the growth of an elastic lease.

A group exists on a node as resources: `CPU_group_0_ID` for its first bundle there, and `CPU_group_ID` for all of them
together. Ray's scheduler starts work of the group wherever it finds these. So a further bundle that exists only as
resources, with a number of its own, lets Ray start there what waits in the group, wherever it was submitted.

Ray relies on two things, which every change here keeps: the sum is never less than the bundles (Ray would end the
raylet), and of a bundle nothing is taken that work holds (a resize is clamped).

A shrink alone never sees an idle CPU where work waits: a raylet gives a freed one to the next task in the same step.
Each task also holds a thousandth of Ray's mark of the place, `bundle_group_ID`. While an extension shrinks, only the
marks that work holds are left, and tasks of grid's own wait for marks: the plugs. They are of kinds that have not run
yet, and take some of the marks that are freed. A freed CPU without a mark stays idle until the shrink takes it.
"""

import re
import time
from collections.abc import Mapping
from typing import Any, Final

import ray

from distributed_grid.decide.monitoring.naming import Raylet
from distributed_grid.execution import ray_rpc
from distributed_grid.execution.packing import on_node
from distributed_grid.execution.port import Extension, NodeView, Raylets, RayletSilent, RayMap
from distributed_grid.model.resources import CPU, ResourceVector, scale

NUMBER: Final = 9999
"""The number of the bundle that extends a group. Ray does not know it as one of the group's own, and no request has so
many members."""
LIMIT: Final = 9998
"""The number of a bundle that nothing can run in. Ray fails work that waits for a group if no node could ever run it;
such a bundle keeps possible what a lease that reserves nothing may grow to."""
_SUM: Final = -1
"""All bundles of a group on one node together: work that names no bundle asks for these resources."""
_PLACE: Final = "bundle"
_PLACES: Final = 1000.0
_ONE_PLACE: Final = 0.001
_SHOWN_S: Final = 2.0
_KINDS: Final = 6
"""So many kinds of plugs wait: Ray visits kinds in an order of its own, and one of these should come before the work's.
"""
_MOST_PLUGS: Final = 8
_EXTENDED: Final = re.compile(rf"(?P<name>.+)_group_(?P<number>{NUMBER}|{LIMIT})_(?P<group>[0-9a-f]{{16,}})")
_OF_A_BUNDLE: Final = re.compile(r"(?P<name>.+)_group_((?P<number>\d{1,5})_)?(?P<group>[0-9a-f]{16,})")

_Parts = dict[str, dict[int, float]]
"""By resource, then by bundle, how much of it a group has on a node."""


class Extensions:
    """One thread changes an extension at a time; the caller sees to that."""

    def __init__(self, nodes: Raylets) -> None:
        self._nodes = nodes
        self._plugs: dict[tuple[str, str], list[Any]] = {}
        """By node and group."""

    def set(
        self, raylet: Raylet, group_id: str, more: ResourceVector, *, insists: bool, ends: bool = False
    ) -> ResourceVector:
        """Let a group have so much on a node beside its bundles; what it has then.

        `insists`: work in the group's own bundles there may have to wait for a moment, too. `ends`: the group is gone.
        """
        said = ray_rpc.reported_by(raylet)
        if said is None:
            raise RayletSilent(raylet.node_id)
        parts, wanted = _of_group(said.total, group_id), more.to_ray()
        kinds = (parts.keys() | wanted.keys()) - {_PLACE}
        lower = {(kind, NUMBER): wanted.get(kind, 0.0) for kind in kinds}
        if ends:
            lower |= {(kind, LIMIT): 0.0 for kind in kinds}
        self._lower(raylet, group_id, parts, lower)
        reached = {kind: parts.get(kind, {}).get(NUMBER, 0.0) for kind in kinds}
        is_over = any(amount > wanted.get(kind, 0.0) for kind, amount in reached.items())
        marks = dict.fromkeys((number for number in parts.get(_PLACE, {}) if number not in (NUMBER, _SUM)), _PLACES)
        marks[NUMBER] = _PLACES if any({**reached, **wanted}.values()) else 0.0
        if is_over:
            marks |= {number: 0.0 for number in marks if insists or number == NUMBER}
            self._lower(raylet, group_id, parts, {(_PLACE, number): size for number, size in marks.items()})
            marks = {number: parts.get(_PLACE, {}).get(number, 0.0) for number in marks}
        has = {kind: max(wanted.get(kind, 0.0), reached[kind]) for kind in kinds}
        self._raise(raylet, group_id, parts, has, marks)
        if is_over:
            over = ResourceVector.from_ray(reached) - more
            self._plug(raylet.node_id, group_id, -(-over[CPU] // scale(CPU)), anywhere=insists)
        else:
            self._unplug(raylet.node_id, group_id)
        return ResourceVector.from_ray(has)

    def _lower(self, raylet: Raylet, group_id: str, parts: _Parts, to: Mapping[tuple[str, int], float]) -> None:
        """Lower parts of bundles, as far as no work holds them; `parts` then has what was reached."""
        less = {key: size for key, size in to.items() if size < parts.get(key[0], {}).get(key[1], 0.0)}
        if less:
            resized = {_name(name, group_id, number): size for (name, number), size in less.items()}
            shown = self._nodes.resize(raylet.node_id, resized)
            for name, number in less:
                parts[name][number] = shown.get(_name(name, group_id, number), 0.0)

    def _raise(
        self, raylet: Raylet, group_id: str, parts: _Parts, kinds: Mapping[str, float], marks: Mapping[int, float]
    ) -> None:
        """Raise what is lower, and let the sums follow what the bundles have."""
        totals: dict[str, float] = {}
        wanted = {(kind, NUMBER): size for kind, size in kinds.items()}
        wanted |= {(_PLACE, number): size for number, size in marks.items()}
        for (name, number), size in wanted.items():
            if parts.setdefault(name, {}).get(number, 0.0) != size:
                parts[name][number] = totals[_name(name, group_id, number)] = size
        for name, of_bundles in parts.items():
            together = sum(size for number, size in of_bundles.items() if number != _SUM)
            if abs(of_bundles.get(_SUM, 0.0) - together) > _ONE_PLACE / 20:
                totals[_name(name, group_id, _SUM)] = together
        if totals:
            self._nodes.resize(raylet.node_id, totals)

    def seen(self, seen: NodeView) -> Mapping[str, Extension]:
        """By group, what groups have on a node beside their bundles."""
        found: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
        marks: dict[str, float] = {}
        for name, size in seen.total.items():
            match = _EXTENDED.fullmatch(name)
            if match is None:
                continue
            if match["name"] == _PLACE:
                marks[match["group"]] = size
                continue
            has, in_use = found.setdefault(match["group"], ({}, {}))
            if int(match["number"]) == LIMIT:
                continue
            has[match["name"]] = size
            in_use[match["name"]] = size - seen.free.get(name, 0.0)
        return {
            group: Extension(
                ResourceVector.from_ray(has),
                ResourceVector.from_ray(in_use),
                shrinks=bool(has) and marks.get(group, 0.0) < _PLACES,
            )
            for group, (has, in_use) in found.items()
        }

    # -- limits ------------------------------------------------------------------------------------------------

    def limit(self, node_id: str, group_id: str, most: ResourceVector) -> dict[str, float]:
        """Add a bundle that is as large as the group may grow to; the resources that another group must hold, so that
        nothing runs in it. Call this before the group has work."""
        held = {_name(name, group_id, number): size for name, size in most.to_ray().items() for number in (LIMIT, _SUM)}
        self._nodes.resize(node_id, held)
        deadline = time.monotonic() + _SHOWN_S
        # If the view did not show the new resources yet, Ray would postpone the other group by a whole second.
        while not held.keys() <= self._nodes.totals().get(node_id, {}).keys() and time.monotonic() < deadline:
            time.sleep(0.002)
        return held

    # -- plugs -------------------------------------------------------------------------------------------------

    def _plug(self, node_id: str, group_id: str, cpus: int, *, anywhere: bool) -> None:
        """`anywhere`: the plugs take marks of any bundle of the group there."""
        if (key := (node_id, group_id)) in self._plugs:
            return
        marks = {_name(_PLACE, group_id, _SUM): _ONE_PLACE}
        if not anywhere:
            marks |= {_name(_PLACE, group_id, NUMBER): _ONE_PLACE}
        plugs = self._plugs[key] = []
        for kind in range(_KINDS):
            here = {"ray.io/node-id": node_id, f"grid/plug-{kind}": "!x"}  # true of every node, and makes a kind
            plug = ray.remote(on_node.hold_a_place).options(
                name="grid-plug", num_cpus=0, max_retries=0, resources=marks, label_selector=here
            )
            plugs += [plug.remote() for _ in range(min(_MOST_PLUGS, max(1, cpus)))]

    def _unplug(self, node_id: str, group_id: str) -> None:
        for plug in self._plugs.pop((node_id, group_id), ()):
            ray.cancel(plug, force=True)


def _name(name: str, group_id: str, number: int) -> str:
    """A node's resource for one bundle of a group, or for all of them there."""
    return f"{name}_group_{group_id}" if number == _SUM else f"{name}_group_{number}_{group_id}"


def _of_group(totals: RayMap, group_id: str) -> _Parts:
    found: _Parts = {}
    for name, size in totals.items():
        match = _OF_A_BUNDLE.fullmatch(name) if group_id in name else None
        if match is not None and match["group"] == group_id:
            found.setdefault(match["name"], {})[int(match["number"] or _SUM)] = size
    return found
