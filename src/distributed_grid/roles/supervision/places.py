"""Takes a plan's capacity, all or nothing, as the run's own placement groups or as leases."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from distributed_grid.client import GridClient
from distributed_grid.client.lease_keeper import LeaseKeeper
from distributed_grid.errors import GridError, NotFound, Refused
from distributed_grid.execution.groups import group_handle
from distributed_grid.execution.role_records import new_group_name
from distributed_grid.model.endings import why_it_ends
from distributed_grid.model.leases import Purpose
from distributed_grid.model.nodes import NodeId, NodeName
from distributed_grid.model.requests import reservation
from distributed_grid.model.resources import amount_of
from distributed_grid.model.roles.plan import Holding
from distributed_grid.model.roles.processes import Held

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import Boost, BoostEnding

LEASE_S: Final = 120.0
"""How long a lease lasts without renewal. It ends sooner if Ray reports that its owner is gone."""
_LOOK_S: Final = 1.0
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

    def asked(self, held: Held) -> BoostEnding | None:
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

    def asked(self, held: Held) -> BoostEnding | None:
        return None

    def let_go(self, held: Held) -> None:
        pass

    def close(self) -> None:
        pass


class Leases:
    """One lease for each holding, on the node that the plan has chosen, renewed while this process lives."""

    def __init__(self, run: str, client: GridClient, priority: str = "normal") -> None:
        self._run, self._client, self._priority = run, client, priority
        self._held: dict[str, str | None] = {}
        """Leases by id, and why one is gone."""
        self._keepers: dict[str, LeaseKeeper] = {}
        self._asked: dict[str, BoostEnding] = {}
        """Leases that are being reclaimed, and why."""
        self._closed = threading.Event()
        self._watching: threading.Thread | None = None

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
        asked = reservation(
            holding.node,
            {kind: amount_of(kind, units) for kind, units in holding.resources.items()},
            source_node=holding.node,
            priority=self._priority,
            duration_seconds=LEASE_S,
            purpose=Purpose.ROLES,
            label=f"{self._run}/{holding.pool}" if holding.pool else self._run,
            ends_with=ray.get_runtime_context().get_worker_id(),
        )
        granted = self._client.request_boost(asked, idempotency_key=uuid.uuid4().hex)
        self._keepers[granted["boost_id"]] = LeaseKeeper(LEASE_S)
        self._held[granted["boost_id"]] = None
        if self._watching is None:
            self._watching = threading.Thread(target=self._keep, name="grid-roles-leases", daemon=True)
            self._watching.start()
        return Held(holding, node_id, granted["placement_group"], granted["boost_id"])

    def give_back(self, held: Iterable[Held]) -> None:
        for one in held:
            self._keepers.pop(one.boost_id or "", None)
            if one.boost_id is not None and self._held.pop(one.boost_id, None) is None:
                with suppress(GridError):  # if the controller does not answer, the lease soon ends by itself
                    self._client.release_boost(one.boost_id, {"grace_seconds": 0, "wait_seconds": 20})

    def lost(self, held: Held, *, ask: bool = False) -> str | None:
        if held.boost_id is None:
            return None
        if ask and self._held.get(held.boost_id) is None:
            self._look(self._client, held.boost_id)
        return self._held.get(held.boost_id)

    def asked(self, held: Held) -> BoostEnding | None:
        return None if held.boost_id is None else self._asked.get(held.boost_id)

    def let_go(self, held: Held) -> None:
        if held.boost_id is not None:
            with suppress(GridError):  # then it is taken at its deadline
                self._client.release_boost(held.boost_id, {"grace_seconds": 0, "wait_seconds": 0})

    def close(self) -> None:
        self._closed.set()

    def _keep(self) -> None:
        """Renew each lease when it is due, and check more often whether it is being reclaimed."""
        client = GridClient(self._client.home)
        while not self._closed.wait(_LOOK_S):
            self._look_at_all(client)
        client.close()

    def _look_at_all(self, client: GridClient) -> None:
        """One query for all leases, since a run may have many."""
        ours = [one for one, why in [*self._held.items()] if why is None]
        try:
            shown = {boost["boost_id"]: boost for boost in client.boost_status()["boosts"]}
        except GridError:
            return  # the controller is away; it comes back, and the leases last a while
        for boost_id in ours:
            keeper = self._keepers.get(boost_id)
            if boost_id not in shown:
                self._look(client, boost_id)
            elif self._take_in(shown[boost_id]) and keeper is not None and keeper.is_due:
                keeper.renew(partial(client.renew_boost, boost_id))
                if keeper.ended is not None:
                    self._look(client, boost_id)  # it is gone or being returned: this says why

    def _look(self, client: GridClient, boost_id: str) -> None:
        try:
            self._take_in(client.boost(boost_id))
        except NotFound as error:
            asked = self._asked.pop(boost_id, None)
            if boost_id in self._held:
                self._held[boost_id] = error.message if asked is None else why_it_ends(asked)
        except GridError:
            return

    def _take_in(self, boost: Boost) -> bool:
        """Whether the lease is ours to keep. One that is being returned is held until its deadline, but not renewed."""
        boost_id, ending = boost["boost_id"], boost["ending"]
        if boost_id not in self._held:
            return False
        if boost["state"] not in ("active", "granting", "releasing"):
            self._held[boost_id] = f"its lease is {boost['state']}" if ending is None else why_it_ends(ending)
        elif ending is not None:
            self._asked[boost_id] = ending
        else:
            self._asked.pop(boost_id, None)
        return ending is None


def _is_there(held: Held, deadline: float) -> bool:
    """Ray waits only for whole seconds."""
    left_s = max(0, math.ceil(deadline - time.monotonic()))
    return held.group is None or bool(group_handle(held.group).wait(left_s))
