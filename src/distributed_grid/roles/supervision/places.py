"""Takes a plan's capacity, all or nothing, as the run's own placement groups or as leases."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from distributed_grid.client import GridClient
from distributed_grid.client.lease_keeper import WatchedLease
from distributed_grid.errors import GridError, Refused
from distributed_grid.execution.groups import group_handle
from distributed_grid.execution.role_records import new_group_name
from distributed_grid.loops import ThreadLoop
from distributed_grid.model.leases import Purpose
from distributed_grid.model.nodes import NodeId, NodeName
from distributed_grid.model.requests import reservation
from distributed_grid.model.resources import amount_of
from distributed_grid.model.roles.plan import Holding
from distributed_grid.model.roles.processes import Held

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import BoostEnding

LEASE_S: Final = 120.0
"""How long a lease lasts without renewal. It ends sooner if Ray reports that its owner is gone."""
LOOK_S: Final = 1.0
"""Members must hear soon of a reclaim: the grace period runs from the request."""


class NotHeld(Exception):
    """These could not be taken, though they were free a moment ago. What was taken of the others was given back."""

    def __init__(self, holdings: Sequence[Holding], said: Sequence[str] = (), try_next: str | None = None) -> None:
        super().__init__("another program took the room")
        self.holdings, self.said, self.try_next = tuple(holdings), tuple(said), try_next


class Places(Protocol):
    def take(self, holdings: Sequence[Holding], ids: dict[NodeName, NodeId], within_s: float) -> list[Held]:
        """All of them, or none: then raises `NotHeld`."""
        ...

    def give_back(self, held: Iterable[Held]) -> None: ...

    def lost(self, held: Held, *, ask: bool = False) -> str | None:
        """Why it is no longer held, as far as known, or asked now with `ask`; None if it is held."""
        ...

    def ending_of(self, held: Held) -> BoostEnding | None:
        """Why it is being reclaimed, by whom, for whom and by when; None if it is not. It is held until then."""
        ...

    def let_go(self, held: Held) -> None:
        """Its members are done, though still in it: the place need not wait for its deadline."""
        ...

    def close(self) -> None: ...


class OwnGroups:
    """One placement group for each holding. The groups belong to this job: if it dies, Ray removes them."""

    def __init__(self, run: str) -> None:
        self._run = run

    def take(self, holdings: Sequence[Holding], ids: dict[NodeName, NodeId], within_s: float) -> list[Held]:
        held: list[Held] = []
        try:
            for holding in holdings:  # request all before waiting for any
                held.append(self._ask(holding, ids[holding.node]))
            deadline = time.monotonic() + within_s
            waits = [one.holding for one in held if not _is_there(one, deadline)]
        except BaseException:
            self.give_back(held)
            raise
        if waits:
            self.give_back(held)
            raise NotHeld(waits)
        return held

    def _ask(self, holding: Holding, node_id: NodeId) -> Held:
        if not holding.resources:
            return Held(holding, node_id, None)
        group = placement_group(
            [holding.resources.to_ray()],
            name=new_group_name(self._run),
            bundle_label_selector=[{"ray.io/node-id": node_id}],
        )
        return Held(holding, node_id, group.id.hex())

    def give_back(self, held: Iterable[Held]) -> None:
        for one in held:
            if one.group is not None and ray.is_initialized():
                remove_placement_group(group_handle(one.group))

    def lost(self, held: Held, *, ask: bool = False) -> str | None:
        if not ask or held.group is None:
            return None
        state = placement_group_table(group_handle(held.group)).get("state")
        return None if state == "CREATED" else f"its placement group is {str(state).lower()}"

    def ending_of(self, held: Held) -> BoostEnding | None:
        return None

    def let_go(self, held: Held) -> None:
        pass

    def close(self) -> None:
        pass


class Leases:
    """One lease for each holding, on the node that the plan has chosen, renewed while this process lives."""

    def __init__(self, run: str, client: GridClient, priority: str = "normal") -> None:
        self._run, self._client, self._priority = run, client, priority
        self._leases: dict[str, WatchedLease] = {}
        self._loop: ThreadLoop | None = None

    def take(self, holdings: Sequence[Holding], ids: dict[NodeName, NodeId], within_s: float) -> list[Held]:
        held: list[Held] = []
        try:
            for holding in holdings:
                held.append(self._lease(holding, ids[holding.node]))
        except BaseException as error:
            self.give_back(held)
            if isinstance(error, Refused):
                raise NotHeld([holding], [error.message, *error.because], error.try_next) from error
            raise
        return held

    def _lease(self, holding: Holding, node_id: NodeId) -> Held:
        if not holding.resources:
            return Held(holding, node_id, None)
        wanted = reservation(
            holding.node,
            {kind: amount_of(kind, units) for kind, units in holding.resources.items()},
            source_node=holding.node,
            priority=self._priority,
            duration_seconds=LEASE_S,
            purpose=Purpose.ROLES,
            label=f"{self._run}/{holding.pool}" if holding.pool else self._run,
            ends_with=ray.get_runtime_context().get_worker_id(),
        )
        granted = self._client.request_boost(wanted, idempotency_key=uuid.uuid4().hex)
        self._leases[granted["boost_id"]] = WatchedLease(granted)
        if self._loop is None:
            client = GridClient(self._client.home)
            self._loop = ThreadLoop(
                "grid-roles-leases", lambda: self._keep(client), lambda: LOOK_S, waits_first=True, at_end=client.close
            )
            self._loop.start()
        return Held(holding, node_id, granted["placement_group"], granted["boost_id"])

    def give_back(self, held: Iterable[Held]) -> None:
        for one in held:
            lease = self._leases.pop(one.boost_id or "", None)
            if one.boost_id is not None and (lease is None or lease.ended is None):
                with suppress(GridError):  # if the controller does not answer, the lease soon ends by itself
                    self._client.release_boost(one.boost_id, {"grace_seconds": 0, "wait_seconds": 20})

    def lost(self, held: Held, *, ask: bool = False) -> str | None:
        lease = self._leases.get(held.boost_id or "")
        if lease is None:
            return None
        if ask and lease.ended is None:
            lease.look(lambda: self._client.boost(lease.id))
        return lease.ended

    def ending_of(self, held: Held) -> BoostEnding | None:
        lease = self._leases.get(held.boost_id or "")
        return None if lease is None or lease.ended is not None else lease.ending

    def let_go(self, held: Held) -> None:
        if held.boost_id is not None:
            with suppress(GridError):  # then it is taken at its deadline
                self._client.release_boost(held.boost_id, {"grace_seconds": 0, "wait_seconds": 0})

    def close(self) -> None:
        if self._loop is not None:
            self._loop.end()

    def _keep(self, client: GridClient) -> None:
        """Renew each lease when it is due, and check more often whether it is being reclaimed.

        One query for all leases, since a run may have many.
        """
        ours = [*self._leases.values()]
        try:
            shown = {boost["boost_id"]: boost for boost in client.boost_status()["boosts"]}
        except GridError:
            return  # the controller is away; it comes back, and the leases last a while
        for lease in ours:
            if lease.id in shown:
                lease.take_in(shown[lease.id])
            elif lease.ended is None:
                lease.look(partial(client.boost, lease.id))
            lease.keep(client.renew_boost)


def _is_there(held: Held, deadline: float) -> bool:
    """Ray waits only for whole seconds."""
    left_s = max(0, math.ceil(deadline - time.monotonic()))
    return held.group is None or bool(group_handle(held.group).wait(left_s))
