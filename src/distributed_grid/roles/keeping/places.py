"""Getting hold of a plan's capacity: all of it or nothing, as placement groups of one's own or as leases."""

import math
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from distributed_grid.client import GridClient
from distributed_grid.errors import GridError, NotFound, Refused
from distributed_grid.execution.reservations import group_handle
from distributed_grid.execution.role_records import new_group_name
from distributed_grid.model.nodes import NodeId, NodeName
from distributed_grid.model.resources import CPU, GPU, amount_of
from distributed_grid.model.roles.holdings import Holding

LEASE_S: Final = 120.0
"""For how long a lease lasts if nobody renews it. It ends sooner if Ray says that its owner is gone."""


@dataclass(frozen=True, slots=True)
class Held:
    """A holding that is held."""

    holding: Holding
    node_id: NodeId
    group: str | None
    """The placement group with its one bundle; None: its units need nothing that could be held."""
    boost_id: str | None = None


class NotHeld(Exception):
    """These could not be had, though they were free a moment ago; what was had of the others was given back."""

    def __init__(self, holdings: Sequence[Holding], said: Sequence[str] = (), try_next: str | None = None) -> None:
        super().__init__("somebody else was quicker")
        self.holdings, self.said, self.try_next = tuple(holdings), tuple(said), try_next


class Places(Protocol):
    def take(self, holdings: Sequence[Holding], ids: dict[NodeName, NodeId], within_s: float) -> list[Held]:
        """All of them, or none: then raises `NotHeld`."""
        ...

    def give_back(self, held: Iterable[Held]) -> None: ...

    def lost(self, held: Held, *, ask: bool = False) -> str | None:
        """Why it is held no more, as far as that is known, or asked now; None if it is."""
        ...

    def close(self) -> None: ...


class OwnGroups:
    """One placement group for each holding. They are this job's: should it die, Ray removes them."""

    def __init__(self, run: str) -> None:
        self._run = run

    def take(self, holdings: Sequence[Holding], ids: dict[NodeName, NodeId], within_s: float) -> list[Held]:
        held: list[Held] = []
        try:
            for holding in holdings:  # all of them asked for before any is waited for
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

    def close(self) -> None:
        pass


class Leases:
    """One lease for each holding, on the very node that the plan has chosen; renewed while this process lives."""

    def __init__(self, run: str, client: GridClient, priority: str = "normal") -> None:
        self._run, self._client, self._priority = run, client, priority
        self._held: dict[str, str | None] = {}
        """Leases by id, and why one is gone."""
        self._closed = threading.Event()
        self._keeper: threading.Thread | None = None

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
        # What is scarce leads, the rest comes along.
        first, *others = sorted(holding.resources, key=lambda kind: (kind != GPU, kind != CPU, kind))
        amounts = {kind: amount_of(kind, units) for kind, units in holding.resources.items()}
        granted = self._client.request_boost(
            {
                "target_node": holding.node,
                "source_node": holding.node,
                "resource_type": first,
                "amount": amounts[first],
                "along": {kind: amounts[kind] for kind in others},
                "priority": self._priority,
                "duration_seconds": LEASE_S,
                "delivery": "reserve",
                "grace_seconds": 0,
                "on_grace_end": "kill",
                "purpose": "roles",
                "label": f"{self._run}/{holding.pool}" if holding.pool else self._run,
                "own_too": True,
                "ends_with": ray.get_runtime_context().get_worker_id(),
            },
            idempotency_key=uuid.uuid4().hex,
        )
        self._held[granted["boost_id"]] = None
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._keep, name="grid-roles-leases", daemon=True)
            self._keeper.start()
        return Held(holding, node_id, granted["placement_group"], granted["boost_id"])

    def give_back(self, held: Iterable[Held]) -> None:
        for one in held:
            if one.boost_id is not None and self._held.pop(one.boost_id, None) is None:
                with suppress(GridError):  # if nobody answers, it ends by itself soon
                    self._client.release_boost(one.boost_id, {"grace_seconds": 0, "wait_seconds": 20})

    def lost(self, held: Held, *, ask: bool = False) -> str | None:
        if held.boost_id is None:
            return None
        if ask and self._held.get(held.boost_id) is None:
            self._look(self._client, held.boost_id, renew=False)
        return self._held.get(held.boost_id)

    def close(self) -> None:
        self._closed.set()

    def _keep(self) -> None:
        """Renew each at a third of its length."""
        client = GridClient(self._client.home)
        while not self._closed.wait(LEASE_S / 3):
            for boost_id in [one for one, why in [*self._held.items()] if why is None]:
                self._look(client, boost_id, renew=True)
        client.close()

    def _look(self, client: GridClient, boost_id: str, *, renew: bool) -> None:
        try:
            state = (client.renew_boost(boost_id) if renew else client.boost(boost_id))["state"]
        except (NotFound, Refused) as error:
            why: str | None = error.message
        except GridError:
            return  # the controller is away; it comes back, and the lease lasts a while
        else:
            why = None if state in ("active", "granting") else f"its lease is {state}"
        if boost_id in self._held:
            self._held[boost_id] = why


def _is_there(held: Held, deadline: float) -> bool:
    """Ray waits for whole seconds only."""
    left_s = max(0, math.ceil(deadline - time.monotonic()))
    return held.group is None or bool(group_handle(held.group).wait(left_s))
