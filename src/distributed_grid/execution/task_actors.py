"""The actors that run an executor's tasks, each in the place that the scheduler found for it."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import ray

from distributed_grid.execution.groups import asking_for, inside
from distributed_grid.execution.packing import on_node_function, on_node_runner, packed_whole
from distributed_grid.model.resources import ResourceVector

LOST: Final = (
    ray.exceptions.RayActorError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.ActorUnschedulableError,
    ray.exceptions.ObjectLostError,
)
"""Ray's words when a node or a placement group is gone, as opposed to a failure of the work itself."""
_AT_ONCE: Final = 4
"""A client may read its output while it runs."""


def host_function(group: str, needs: ResourceVector) -> Any:
    """An actor for a function."""
    return _in_place(_function_host(), group, needs).remote()


def host_command(group: str, needs: ResourceVector, name: str) -> Any:
    """An actor for a command."""
    return _in_place(_command_host(), group, needs).remote(name, {})


def run_function(actor: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A reference to the function's result."""
    return actor.run.remote(packed_whole(function), args, dict(kwargs))


def _in_place(host: Any, group: str, needs: ResourceVector) -> Any:
    return host.options(
        max_restarts=0,
        max_task_retries=0,
        max_concurrency=_AT_ONCE,
        scheduling_strategy=inside(group),
        **asking_for(needs),
    )


@cache
def _function_host() -> Any:
    return ray.remote(on_node_function.FunctionHost)


@cache
def _command_host() -> Any:
    return ray.remote(on_node_runner.Runner)
