"""Trying out what lending needs: a resize of the head, and a placement group on a given node."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from distributed_grid.decide.monitoring.naming import Raylet
from distributed_grid.execution.port import NodeView, Raylets
from distributed_grid.model.checkup_facts import GroupFacts, ResizeFacts, in_one_line
from distributed_grid.model.nodes import NodeId, NodeName

TRIAL: Final = "grid:doctor"
"""The resource that is grown and taken away again; nobody asks for it, so nobody can hold it."""

_SAMPLES: Final = 3
_VIEW_S: Final = 3.0
_GROUP_S: Final = 5.0


def try_resize(raylets: Raylets, node_id: NodeId, *, clock: Callable[[], float] = time.monotonic) -> ResizeFacts:
    """Grow and take away a harmless resource a few times; whatever happens, it is taken away in the end."""
    found = ResizeFacts()
    try:
        for _ in range(_SAMPLES):
            began = clock()
            found = replace(found, grown_to=raylets.resize(node_id, {TRIAL: 1.0}).get(TRIAL, 0.0))
            seen = _until_view_shows(raylets, node_id, 1.0, clock)
            lag = clock() - began
            found = replace(found, back_to=raylets.resize(node_id, {TRIAL: 0.0}).get(TRIAL, 0.0))
            if not seen or not _until_view_shows(raylets, node_id, 0.0, clock):
                return replace(found, unseen=True)
            found = replace(found, lags_s=(*found.lags_s, lag))
    except Exception as error:  # noqa: BLE001 - a private call of Ray; told as it comes
        return replace(found, error=in_one_line(error))
    finally:
        with suppress(Exception):
            raylets.resize(node_id, {TRIAL: 0.0})
    return found


def _until_view_shows(raylets: Raylets, node_id: NodeId, amount: float, clock: Callable[[], float]) -> bool:
    deadline = clock() + _VIEW_S
    while raylets.totals().get(node_id, {}).get(TRIAL, 0.0) != amount:
        if clock() > deadline:
            return False
        time.sleep(0.001)
    return True


def try_group(raylets: Mapping[NodeName, Raylet], view: Mapping[NodeId, NodeView]) -> GroupFacts:
    """Pin a tiny group to the first node that has room for it, workers before the head."""
    names = {raylet.node_id: name for name, raylet in raylets.items()}
    for name, raylet in sorted(raylets.items(), key=lambda named: (named[1].is_head, named[0])):
        bundle = _tiny_bundle(view[raylet.node_id].free if raylet.node_id in view else {})
        if not bundle:
            continue
        ((kind, amount),) = bundle.items()
        found = GroupFacts(node=name, bundle=f"{amount:g} {kind}")
        where = _where_it_lands(bundle, raylet.node_id)
        if where is None:
            return replace(found, error=f"it was not ready within {_GROUP_S:.0f} s")
        return replace(found, landed_on=names.get(where, where))
    return GroupFacts()


def _tiny_bundle(free: Mapping[str, float]) -> dict[str, float]:
    if free.get("CPU", 0.0) >= 0.01:
        return {"CPU": 0.01}
    if free.get("memory", 0.0) >= 1:
        return {"memory": 1}
    return {}


def _where_it_lands(bundle: dict[str, float], wanted: NodeId) -> NodeId | None:
    """The node that gets a group meant for `wanted`. It is removed again, and ends with this process anyway."""
    group = placement_group(
        [bundle],
        name=f"grid-doctor-{os.getpid()}",
        bundle_label_selector=[{"ray.io/node-id": wanted}],
    )
    try:
        if not group.wait(_GROUP_S):
            return None
        return str(placement_group_table(group)["bundles_to_node_id"][0])
    finally:
        remove_placement_group(group)
