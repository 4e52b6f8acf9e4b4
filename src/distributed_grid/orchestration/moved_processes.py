"""Processes that an executor has let the controller move, seen as tasks of its."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from distributed_grid.errors import RequestNotFound
from distributed_grid.model.offloading import OffloadingRecommendation
from distributed_grid.model.offloads import OffloadState
from distributed_grid.orchestration.backend import Backend
from distributed_grid.orchestration.executed_task import TaskState
from distributed_grid.orchestration.offload_view import recommendation_from
from distributed_grid.orchestration.task_execution import read_all

_LOOK_AGAIN_S: Final = 0.3
_GRACE_S: Final = 10.0
_STATES: Final[Mapping[str, TaskState]] = {
    OffloadState.MOVING: TaskState.SUBMITTED,
    OffloadState.RUNNING: TaskState.RUNNING,
    OffloadState.CANCELLED: TaskState.CANCELLED,
    OffloadState.FAILED: TaskState.FAILED,
    OffloadState.LOST: TaskState.FAILED,
}


async def recommendations(backend: Backend, node: str | None) -> list[OffloadingRecommendation]:
    """The processes that could move, the surest first."""
    return [recommendation_from(one) for one in (await backend.offload_candidates(node))["candidates"]]


class MovedProcesses:
    """By the ids that the controller has given them."""

    def __init__(self) -> None:
        self._ids: list[str] = []

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._ids

    async def move(self, given: OffloadingRecommendation, backend: Backend) -> str:
        """The very process that was recommended, and no later one with its number."""
        assert given.process is not None
        process = given.process
        body = {
            "pid": process.pid,
            "node": process.node,
            "created_at": process.created_at,
            "to": given.destination or "auto",
        }
        moved = str((await backend.offload(body))["offload"]["offload_id"])
        self._ids.append(moved)
        return moved

    async def status(self, task_id: str, backend: Backend) -> dict[str, Any]:
        found = await self._find(task_id, backend)
        code = found["exit_code"]
        state = _STATES.get(found["state"]) or (TaskState.FAILED if code else TaskState.DONE)
        return {
            "task_id": task_id,
            "state": str(state),
            "label": found["label"],
            "target_node": found["from_node"],
            "node": found["to_node"],
            "runs_on": found["to_node"],
            "kept_on_target": False,
            "offloaded": True,
            "lease_id": task_id,
            "exit_code": code,
            "error": found["why"],
        }

    async def result(self, task_id: str, backend: Backend) -> int | None:
        """Its exit code, once it has ended."""
        while not _is_over(found := await self._find(task_id, backend)):  # noqa: ASYNC110 - it has to be asked
            await asyncio.sleep(_LOOK_AGAIN_S)
        code: int | None = found["exit_code"]
        return code

    async def printed(self, task_id: str, backend: Backend) -> str:
        return await read_all(lambda begin: backend.offload_log(task_id, begin))

    async def cancel(self, task_id: str, backend: Backend) -> bool:
        if _is_over(await self._find(task_id, backend)):
            return False
        await backend.cancel_offload(task_id, _GRACE_S)
        return True

    async def _find(self, task_id: str, backend: Backend) -> dict[str, Any]:
        for one in (await backend.offloads())["offloads"]:
            if one["offload_id"] == task_id:
                return dict(one)
        raise RequestNotFound(f"The controller knows no moved process {task_id!r} any more", try_next="grid audit log")


def _is_over(found: Mapping[str, Any]) -> bool:
    return OffloadState(found["state"]).is_over
