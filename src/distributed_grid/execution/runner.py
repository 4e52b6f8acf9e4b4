"""Commands that run on other nodes, each in an actor in the placement group of its lease.

No command outlives its lease: when the group is removed the actor dies, and with it its command.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

import ray

from distributed_grid.execution.actors import NAMESPACE, find, names, why_gone
from distributed_grid.execution.groups import asking_for, inside
from distributed_grid.execution.packing import on_node_runner
from distributed_grid.execution.processes import RunnerGone
from distributed_grid.model.leases import Lease

if TYPE_CHECKING:
    from distributed_grid.wire.offload import LogPiece

_PREFIX: Final = "grid-runner-"
_CREATE_S: Final = 60.0
_ANSWER_S: Final = 10.0
_AT_ONCE: Final = 4
"""One client may ask for the state while another waits for the end."""


class RayRunners:
    """The runners of the cluster that this process is connected to."""

    def create(self, lease: Lease, record: Mapping[str, Any]) -> None:
        """Put an actor into the lease that takes all of it, and wait until it answers."""
        assert lease.placement_group is not None
        actor = _actor_class().options(
            name=_name(lease.id),
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=_AT_ONCE,
            scheduling_strategy=inside(lease.placement_group),
            **asking_for(lease.resources),
        )
        started = actor.remote(_name(lease.id), dict(record))
        self._get(started.about.remote(), _CREATE_S)

    def prepare(self, lease_id: str, order: Mapping[str, Any], copied: Any, given: Mapping[str, str]) -> dict[str, Any]:
        """`copied` refers to values that another node has read; they go from there to here, unseen by others."""
        return self._ask(lease_id, "prepare", dict(order), copied, dict(given))

    def note(self, lease_id: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        return self._ask(lease_id, "note", dict(changes))

    def go(self, lease_id: str) -> dict[str, Any]:
        return self._ask(lease_id, "go", within_s=_CREATE_S)

    def about(self, lease_id: str) -> dict[str, Any] | None:
        try:
            return self._ask(lease_id, "about")
        except ray.exceptions.GetTimeoutError:
            return None

    def read(self, lease_id: str, begin: int) -> LogPiece:
        return cast("LogPiece", self._ask(lease_id, "read", begin))

    def end(self, lease_id: str, grace_s: float, within_s: float) -> dict[str, Any]:
        return self._ask(lease_id, "end", grace_s, within_s, within_s=within_s + _ANSWER_S)

    def remove(self, lease_id: str) -> None:
        if (actor := find(_name(lease_id))) is not None:
            ray.kill(actor, no_restart=True)

    def known(self) -> list[str]:
        return [name.removeprefix(_PREFIX) for name in names(_PREFIX)]

    def _ask(self, lease_id: str, method: str, *args: Any, within_s: float = _ANSWER_S) -> dict[str, Any]:
        actor = find(_name(lease_id))
        if actor is None:
            raise RunnerGone(lease_id)
        return self._get(getattr(actor, method).remote(*args), within_s)

    def _get(self, reference: Any, within_s: float) -> dict[str, Any]:
        try:
            said: dict[str, Any] = ray.get(reference, timeout=within_s)
        except ray.exceptions.GetTimeoutError:
            raise
        except ray.exceptions.RayError as error:  # the actor died, or its arguments were not available
            raise RunnerGone(why_gone(error)) from error
        return said


def _name(lease_id: str) -> str:
    return f"{_PREFIX}{lease_id}"


@cache
def _actor_class() -> Any:
    return ray.remote(on_node_runner.Runner)
