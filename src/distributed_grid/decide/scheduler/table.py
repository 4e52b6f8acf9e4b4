"""All nodes as columns: a decision about a thousand nodes takes a few numpy operations.

Amounts are whole numbers of units, as everywhere. When a node changes, only its row is updated.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from distributed_grid.decide.capacity.delivery import Offer
from distributed_grid.decide.capacity.devices import device_room, devices_short, fit_at_once
from distributed_grid.decide.capacity.feasibility import (
    NodeFacts,
    closed,
    lacking,
    never,
    not_lending,
    own_room,
    room,
    room_when_idle,
)
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.model.nodes import Node, NodeName, NodeTable, gpu_part
from distributed_grid.model.plans import NO_RULES, Rules
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.resources import BUILT_IN, GPU, ResourceVector, scale
from distributed_grid.model.snapshots import NodeSnapshot

Units = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

COST_LABEL: Final = "grid/cost"
SPEED_LABEL: Final = "grid/speed"


class NodeColumns:
    """One row for each node, in name order."""

    def __init__(self, names: Iterable[NodeName]) -> None:
        self.names = tuple(sorted(names))
        self.row: Mapping[NodeName, int] = {name: row for row, name in enumerate(self.names)}
        count = len(self.names)
        self.total: dict[str, Units] = {}
        self.own: dict[str, Units] = {}
        """The capacity that the node's own tasks can have."""
        self.lend: dict[str, Units] = {}
        """The capacity that other nodes' tasks can have, by the node's limits and headroom."""
        self.promised: dict[str, Units] = {}
        """The amounts promised since the others were read."""
        self.pending: dict[str, Units] = {}
        """The demand in Ray's queues for exactly this node."""
        self.pressure: dict[str, Floats] = {kind: np.full(count, np.nan) for kind in BUILT_IN}
        """0..1 as measured; NaN: unknown."""
        self.cost = np.ones(count)
        self.speed = np.ones(count)
        self.tasks = np.zeros(count, dtype=np.int64)
        """How many tasks are placed there."""
        self.up = np.zeros(count, dtype=bool)
        self.lends = np.zeros(count, dtype=bool)
        self.cordoned = np.zeros(count, dtype=bool)
        """The node is cordoned: it shares nothing, and its own tasks get nothing new."""
        self.refuses: list[RefusalCode | None] = [None] * count
        """Why a node takes no tasks of other nodes; None if it does."""
        self.labels: list[Mapping[str, str]] = [{}] * count
        self._masks: dict[tuple[str, str], Mask] = {}
        self._nodes: list[Node | None] = [None] * count
        self._split: set[int] = set()
        """The nodes on which placement groups hold parts of GPUs."""
        self._promised_parts: dict[int, list[int]] = {}
        """By row: the parts of GPUs that were promised there."""
        self._usage, self._rules = Usage(), NO_RULES

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def of(
        cls,
        nodes: NodeTable,
        usage: Usage | None = None,
        rules: Rules = NO_RULES,
        snapshots: Mapping[NodeName, NodeSnapshot] | None = None,
    ) -> "NodeColumns":
        columns = cls(nodes)
        for node in nodes.values():
            columns.put(node, usage or Usage(), rules)
        columns.measured(snapshots or {})
        return columns

    # -- rows -----------------------------------------------------------------------------------------------

    def put(self, node: Node, usage: Usage, rules: Rules) -> None:
        """Set a node's row to its current state."""
        row = self.row[node.name]
        kinds = dict.fromkeys((*self.total, *node.total, *node.base))
        for kind in kinds:
            self._add(kind)
            self.total[kind][row] = max(node.total[kind], 0)
            self.own[kind][row] = own_room(node, kind, usage)
            self.lend[kind][row] = room(node, kind, usage, rules.headroom)
        self._nodes[row], self._usage, self._rules = node, usage, rules
        (self._split.add if node.gpu_parts else self._split.discard)(row)
        self.refuses[row] = not_lending(node, rules)
        self.lends[row] = self.refuses[row] is None
        self.cordoned[row] = node.name in rules.cordoned
        self.up[row] = self.lends[row] or closed(node, rules) in (None, RefusalCode.CORDONED)
        if self.labels[row] != node.labels:
            self.labels[row] = node.labels
            self._masks.clear()
        self.cost[row] = _number(node.labels.get(COST_LABEL), 1.0 / max(node.limits.priority, 1e-6))
        self.speed[row] = _number(node.labels.get(SPEED_LABEL), 1.0)

    def measured(self, snapshots: Mapping[NodeName, NodeSnapshot]) -> None:
        """Set every node's measured pressure. Nodes that are missing or do not answer count as unknown."""
        for kind, column in self.pressure.items():
            column.fill(np.nan)
            for name, seen in snapshots.items():
                value = seen.own_pressure(kind)
                if value is not None and name in self.row:
                    column[self.row[name]] = value

    def waits_for(self, pending: Mapping[NodeName, ResourceVector]) -> None:
        """Set each node's pending demand. Nodes that are missing have none."""
        self.pending = {}
        for name, units in pending.items():
            for kind, amount in units.items() if name in self.row else ():
                column = self.pending.setdefault(kind, np.zeros(len(self), dtype=np.int64))
                column[self.row[name]] += amount

    def promise(self, row: int, needs: ResourceVector, times: int = 1) -> None:
        """Promise this much on a node; with -1, take the promise back."""
        for kind, units in needs.items():
            self._add(kind)
            self.promised[kind][row] += times * units
        if part := gpu_part(needs):
            parts = self._promised_parts.setdefault(row, [])
            if times > 0:
                parts.append(part)
            else:
                parts.remove(part)
            if not parts:
                del self._promised_parts[row]
        self.tasks[row] += times

    def forget_promises(self) -> None:
        for column in self.promised.values():
            column.fill(0)
        self._promised_parts.clear()
        self.tasks.fill(0)

    def _add(self, kind: str) -> None:
        if kind not in self.total:
            for each in (self.total, self.own, self.lend, self.promised):
                each[kind] = np.zeros(len(self), dtype=np.int64)

    @property
    def rules(self) -> Rules:
        """The rules under which the last row was set."""
        return self._rules

    # -- questions ------------------------------------------------------------------------------------------

    def rooms(self, kind: str, target: int, units: int = 1, members: int = 1) -> Units:
        """The amount that each node offers to a task of the target, or to `members` tasks together, that needs so many
        units.
        """
        if kind not in self.total:
            return np.zeros(len(self), dtype=np.int64)
        found: Units = self.lend[kind] - self.promised[kind]
        if target >= 0:
            found[target] = self.own[kind][target] - self.promised[kind][target]
        if kind == GPU:
            self._lower_to_devices(found, units, members)
        return found

    def rooms_when_idle(self, kind: str, target: int, units: int = 1, members: int = 1) -> Units:
        """The same if nothing was lent and nothing ran."""
        found = np.zeros(len(self), dtype=np.int64)
        for row, node in enumerate(self._nodes):
            if node is not None and _fit_on_devices(node, kind, units, members):
                found[row] = room_when_idle(node, kind, self._rules.headroom, is_own=row == target)
        return found

    def _lower_to_devices(self, found: Units, units: int, members: int) -> None:
        """Lower what was found of GPUs where the nodes' devices have less for such tasks."""
        each = units // members
        in_parts = members > 1 and each < scale(GPU)
        for row in np.flatnonzero(found >= units).tolist() if in_parts else {*self._split, *self._promised_parts}:
            if (node := self._node(row)) is None:
                continue
            free = int(self.own[GPU][row] - self.promised[GPU][row])
            if not in_parts:
                found[row] = min(found[row], device_room(node, free, units))
            elif short := devices_short(node, free, [each] * members):
                found[row] = units - short

    def _node(self, row: int) -> Node | None:
        """A node as its row was set, with the parts of GPUs that were promised since."""
        node, parts = self._nodes[row], self._promised_parts.get(row)
        return node if node is None or not parts else replace(node, gpu_parts=(*node.gpu_parts, *parts))

    def used(self, kind: str, row: int) -> float:
        """0..1: the part of a node's total that is taken; 0 if it has none of the kind."""
        total = int(self.total[kind][row]) if kind in self.total else 0
        if total <= 0:
            return 0.0
        left = int(self.own[kind][row]) - int(self.promised[kind][row])
        return min(1.0, max(0.0, 1.0 - left / total))

    def with_label(self, key: str, value: str) -> Mask:
        """The nodes with this label. Cached until a node's labels change."""
        known = self._masks.get((key, value))
        if known is None:
            known = np.fromiter((labels.get(key) == value for labels in self.labels), dtype=bool, count=len(self))
            self._masks[key, value] = known
        return known

    def facts(self, row: int, target: NodeName, kind: str = "", units: int = 0) -> NodeFacts | None:
        """The facts for a refusal's text about a node, including promises there; None before its row is set."""
        node = self._node(row)
        if node is None:
            return None
        promised = ResourceVector({kind: int(column[row]) for kind, column in self.promised.items()})
        node, usage = replace(node, free=node.free - promised), self._usage.on(node.name, promised)
        return NodeFacts(node, usage, self._rules, kind, units, target)

    def why_never(self, row: int, offer: Offer) -> str | None:
        """Why a node cannot lend this, however much comes back to it; None if only amounts matter."""
        node = self._nodes[row]
        code = RefusalCode.NODE_DOWN if node is None else never(node, offer)
        return None if code is None else code.message(self.facts(row, offer.ask.target) or {})

    def why_lacking(self, row: int, target: NodeName, needs: ResourceVector) -> str:
        """Which amount a node lacks for a task of the target, in words; empty if it lacks none."""
        facts = self.facts(row, target)
        if facts is None:
            return RefusalCode.NODE_DOWN.reason.text
        is_own = self.names[row] == target
        found = lacking(facts.of, needs, facts.usage, self._rules.headroom, is_own=is_own)
        if found is None:
            return ""
        code, kind = found
        return code.message(replace(facts, kind=kind, units=needs[kind]))

    def named(self, names: Iterable[NodeName]) -> Mask:
        mask = np.zeros(len(self), dtype=bool)
        mask[[self.row[name] for name in names if name in self.row]] = True
        return mask


def _fit_on_devices(node: Node, kind: str, units: int, members: int) -> bool:
    """Whether the node's devices are enough for all members at once, if it is for GPUs."""
    each = ResourceVector({GPU: units // members})
    return kind != GPU or fit_at_once(ResourceVector({GPU: node.base[GPU]}), *[each] * members)


def _number(text: str | None, otherwise: float) -> float:
    try:
        value = float(text) if text is not None else otherwise
    except ValueError:
        return otherwise
    return value if value > 0 and value != float("inf") else otherwise
