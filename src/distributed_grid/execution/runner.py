"""Commands and functions that run on other nodes, each in an actor in the placement group of its lease.

No command outlives its lease: when the group is removed the actor dies, and with it its command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

import ray

from distributed_grid.execution.actors import NAMESPACE, find, names, why_gone
from distributed_grid.execution.groups import asking_for, inside
from distributed_grid.execution.on_node_runner import RunnerOrder, RunnerRecord, RunnerSaid
from distributed_grid.execution.packing import folders_to_search, on_node_function, on_node_runner, packed
from distributed_grid.execution.processes import RunnerGone
from distributed_grid.model.leases import Lease
from distributed_grid.model.resources import ResourceVector

if TYPE_CHECKING:
    from distributed_grid.wire.offload import LogPiece

_PREFIX: Final = "grid-runner-"
_CREATE_S: Final = 60.0
_ANSWER_S: Final = 10.0
_AT_ONCE: Final = 4
"""One client may ask for the state or read the output while another waits for the end."""


class RayRunners:
    """The runners of the cluster that this process is connected to."""

    def create(self, lease: Lease, record: RunnerRecord) -> None:
        """Put an actor into the lease that takes all of it, and wait until it answers."""
        assert lease.placement_group is not None
        named = {"name": _name(lease.id), "namespace": NAMESPACE, "lifetime": "detached"}
        actor = _in_place(_command_host(), lease.placement_group, lease.resources, 1, **named)
        started = actor.remote(_name(lease.id), dict(record))
        self._get(started.about.remote(), _CREATE_S)

    def prepare(self, lease_id: str, order: RunnerOrder, copied: Any, given: Mapping[str, str]) -> RunnerSaid:
        """`copied` refers to values that another node has read; they go from there to here, unseen by others."""
        return self._said(lease_id, "prepare", dict(order), copied, dict(given))

    def note(self, lease_id: str, changes: RunnerRecord) -> RunnerSaid:
        return self._said(lease_id, "note", dict(changes))

    def go(self, lease_id: str) -> RunnerSaid:
        return self._said(lease_id, "go", within_s=_CREATE_S)

    def about(self, lease_id: str) -> RunnerSaid | None:
        try:
            return self._said(lease_id, "about")
        except ray.exceptions.GetTimeoutError:
            return None

    def read(self, lease_id: str, begin: int) -> LogPiece:
        return cast("LogPiece", self._ask(lease_id, "read", begin))

    def end(self, lease_id: str, grace_s: float, within_s: float) -> RunnerSaid:
        return self._said(lease_id, "end", grace_s, within_s, within_s=within_s + _ANSWER_S)

    def remove(self, lease_id: str) -> None:
        if (actor := find(_name(lease_id))) is not None:
            ray.kill(actor, no_restart=True)

    def known(self) -> list[str]:
        return [name.removeprefix(_PREFIX) for name in names(_PREFIX)]

    def _said(self, lease_id: str, method: str, *args: Any, within_s: float = _ANSWER_S) -> RunnerSaid:
        said: RunnerSaid = self._ask(lease_id, method, *args, within_s=within_s)
        return said

    def _ask(self, lease_id: str, method: str, *args: Any, within_s: float = _ANSWER_S) -> Any:
        actor = find(_name(lease_id))
        if actor is None:
            raise RunnerGone(lease_id)
        return self._get(getattr(actor, method).remote(*args), within_s)

    def _get(self, reference: Any, within_s: float) -> Any:
        try:
            return ray.get(reference, timeout=within_s)
        except ray.exceptions.GetTimeoutError:
            raise
        except ray.exceptions.RayError as error:  # the actor died, or its arguments were not available
            raise RunnerGone(why_gone(error)) from error


def _name(lease_id: str) -> str:
    return f"{_PREFIX}{lease_id}"


LOST: Final = (
    ray.exceptions.RayActorError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.ActorUnschedulableError,
    ray.exceptions.ObjectLostError,
)
"""Ray's words when a node or a placement group is gone, as opposed to a failure of the work itself."""


def host_function(group: str, needs: ResourceVector, bundle: int = 1) -> Any:
    """An actor for a function of an executor, in the place that the scheduler found for it."""
    return _in_place(_function_host(), group, needs, bundle).remote(folders_to_search())


def host_command(group: str, needs: ResourceVector, name: str, bundle: int = 1) -> Any:
    """An actor for a command of an executor."""
    return _in_place(_command_host(), group, needs, bundle).remote(name, {})


def run_function(actor: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A reference to the function's result."""
    return actor.run.remote(packed(function), args, dict(kwargs))


def _in_place(host: Any, group: str, needs: ResourceVector, bundle: int, /, **named: str) -> Any:
    return host.options(
        max_restarts=0,
        max_task_retries=0,
        max_concurrency=_AT_ONCE,
        scheduling_strategy=inside(group, bundle),
        **asking_for(needs),
        **named,
    )


@cache
def _function_host() -> Any:
    return ray.remote(on_node_function.FunctionHost)


@cache
def _command_host() -> Any:
    return ray.remote(on_node_runner.Runner)
