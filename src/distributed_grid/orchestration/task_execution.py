"""One attempt at a task, in the place that it was given: started, followed, ended."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

from distributed_grid.errors import GridError
from distributed_grid.model.scheduling import SchedulingDecision
from distributed_grid.orchestration.backend import Backend
from distributed_grid.orchestration.executed_task import ExecutedTask
from distributed_grid.orchestration.logs import logger

log = logger()

_FOLLOW_S: Final = 0.1
_RENEW_S: Final = 30.0
_UP_TO_S: Final = 300.0
"""What is given to a lease at each renewal: if this process dies, that is how long its place stays taken."""


class Lost(Exception):
    """The node, or the lease, is gone; the work itself has done nothing wrong."""


async def attempt(task: ExecutedTask, decision: SchedulingDecision, backend: Backend, name: str) -> None:
    """Run it to its end; the outcome is in the task. Raises `Lost`, or what the function raised."""
    from distributed_grid.execution import task_actors

    group = decision.members[0].placement_group
    assert group is not None, "every place is part of a group"
    async with _renewing(decision.lease_id, backend):
        if task.work.command:
            task.actor = task_actors.host_command(group, task.needs, name)
        else:
            task.actor = task_actors.host_function(group, task.needs)
        try:
            await (_command if task.work.command else _function)(task, backend, name)
        except task_actors.LOST as error:
            raise Lost(str(error).strip().splitlines()[0]) from error
        finally:
            await _keep_what_it_printed(task)
            _end(task)


async def _function(task: ExecutedTask, backend: Backend, name: str) -> None:
    import ray

    from distributed_grid.execution import task_actors

    work = task.work
    assert work.function is not None
    reference = task_actors.run_function(task.actor, work.function, work.args, work.kwargs)
    await backend.task_started(name)
    try:
        task.result = await reference
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(getattr(error, "cause", None), Exception) else error from None


async def _command(task: ExecutedTask, backend: Backend, name: str) -> None:
    """Its result is its exit code."""
    work = task.work
    order = {"command": list(work.command), "cwd": work.cwd, "stdin": None, "stdout": None, "stderr": None}
    await task.actor.prepare.remote(order, dict(work.env), {})
    said = await task.actor.go.remote()
    await backend.task_started(name)
    while said["state"] == "running":
        await asyncio.sleep(_FOLLOW_S)
        said = await task.actor.about.remote()
    if said["state"] == "failed":
        raise RuntimeError(said["why"])
    task.exit_code = task.result = said["exit_code"]


async def printed_by(task: ExecutedTask) -> str:
    """All that it has printed so far."""
    if task.actor is None or task.is_over:
        return task.printed
    return await read_all(task.actor.read.remote)


async def read_all(read: Callable[[int], Awaitable[Mapping[str, Any]]]) -> str:
    """A log that is read in pieces, each from where the one before ended."""
    pieces: list[str] = []
    begin = 0
    while (piece := await read(begin))["text"]:
        pieces.append(piece["text"])
        begin = piece["next"]
    return "".join(pieces)


async def _keep_what_it_printed(task: ExecutedTask) -> None:
    import ray

    with contextlib.suppress(ray.exceptions.RayError, asyncio.CancelledError):
        task.printed = await asyncio.wait_for(printed_by(task), 5.0)


def _end(task: ExecutedTask) -> None:
    import ray

    actor, task.actor = task.actor, None
    if actor is not None:
        ray.kill(actor)


@contextlib.asynccontextmanager
async def _renewing(lease_id: str | None, backend: Backend) -> AsyncIterator[None]:
    """A lease that was made for the task lasts as long as it; a boost lasts as long as its owner wants."""
    if lease_id is None:
        yield
        return
    renewal = asyncio.create_task(_renew(lease_id, backend))
    try:
        yield
    finally:
        renewal.cancel()


async def _renew(lease_id: str, backend: Backend) -> None:
    while True:
        await asyncio.sleep(_RENEW_S)
        try:
            await backend.renew(lease_id, _UP_TO_S)
        except GridError as error:
            log.warning("a task's lease cannot be renewed", lease=lease_id, message=error.message)
