"""What an executor asks of the scheduler; that the work then runs is shown on a real cluster."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from distributed_grid.errors import InvalidRequest, NoCapacity, RequestNotFound
from distributed_grid.model.offload import OffloadingRecommendation
from distributed_grid.orchestration.enhanced_offloading_executor import EnhancedOffloadingExecutor, OffloadingMode
from distributed_grid.sdk.execution import read_all


class Controller:
    """Says of every task that it waits, and then that there is no place for it; knows whether the head is under
    pressure, and for what."""

    def __init__(self, *pressed: str) -> None:
        self._pressed = list(pressed)
        self.asked: list[dict[str, Any]] = []
        self.completed: list[str] = []

    async def ask(self, call: Callable[..., Any], *args: Any, **more: Any) -> Any:
        return await getattr(self, call.__name__)(*args, **more)

    async def cluster_status(self) -> dict[str, Any]:
        return {"nodes": [{"name": "head", "is_head": True, "pressed": self._pressed}]}

    async def schedule_task(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body)
        return self._decision(body["task_id"], queued=True, position=1)

    async def task(self, task_id: str) -> dict[str, Any]:
        return self._decision(task_id, queued=False, position=None)

    async def complete_task(self, task_id: str) -> dict[str, Any]:
        self.completed.append(task_id)
        return {"task_id": task_id, "completed": True}

    async def close(self) -> None: ...

    def _decision(self, task_id: str, **more: Any) -> dict[str, Any]:
        return {
            "task_id": task_id, "accepted": False, "confidence": 0.0, "reasons": ["head: 0 of 2 CPUs free"],
            "members": [], "alternatives": [], "node": None, "delivery": None, "lease_id": None, "boost_id": None,
            "placement_group": None, **more,
        }  # fmt: skip


def asked(controller: Controller, use: Callable[[EnhancedOffloadingExecutor], Any], **options: Any) -> dict[str, Any]:
    """What the scheduler was asked, for work that then finds no place."""

    async def run() -> None:
        async with EnhancedOffloadingExecutor(backend=controller, **options) as executor:
            task_id = await use(executor)
            with pytest.raises(NoCapacity):
                await executor.get_result(task_id)
            status = await executor.get_task_status(task_id)
            assert (status["state"], status["reasons"]) == ("rejected", ["head: 0 of 2 CPUs free"])
            assert [task["task_id"] for task in await executor.get_history()] == [task_id]
            assert controller.completed == [task_id]  # it waits no longer

    asyncio.run(run())
    [body] = controller.asked
    return body


@pytest.mark.parametrize(
    ("mode", "pressed", "strategy"),
    [
        ("share_and_offload", ["cpu"], "local_first"),
        ("dynamic_balancing", [], "local_first"),
        ("dynamic_balancing", ["memory"], "load_balanced"),
        ("offload_only", [], "local_first"),
    ],
)
def test_the_mode_says_where_work_may_go(mode: str, pressed: list[str], strategy: str) -> None:
    body = asked(Controller(*pressed), lambda executor: executor.submit(print, 1), mode=mode)
    assert body["strategy"] == strategy
    leaves = (body["anti_affinity"] or {}).get("nodes")
    assert bool(leaves) == (mode == "offload_only")


def test_needs_priority_deadline_and_a_better_place_are_passed_on() -> None:
    body = asked(
        Controller(),
        lambda executor: executor.run_command(
            ["x"], target="head", cpu=2, memory=1.5, gpu=1, priority="high", deadline=9
        ),
    )
    assert (body["cpu"], body["memory"], body["gpu"], body["target"]) == (2, 1.5, 1, "head")
    assert (body["priority"], body["deadline_seconds"], body["wait"]) == ("high", 9, True)

    recommended = OffloadingRecommendation("head", cpu=1.0, memory=0, destination="gpu2", command=("x",))
    body = asked(Controller(), lambda executor: executor.execute_offloading(recommended))
    assert (list(body["affinity"]["nodes"]), body["affinity"]["required"]) == (["gpu2"], False)


def test_what_makes_no_sense_is_said_at_once() -> None:
    async def run() -> None:
        async with EnhancedOffloadingExecutor(backend=Controller()) as executor:  # type: ignore[arg-type]
            for wrong in (
                {"target_node": "head", "cpu": 1.0, "memory": 0},
                {"target_node": "head", "cpu": 1.0, "memory": 0, "command": ("x",), "function": print},
                {"target_node": "head", "cpu": 1.0, "memory": 0, "command": ()},
            ):
                with pytest.raises(InvalidRequest):
                    await executor.execute_offloading(wrong)
            with pytest.raises(RequestNotFound):
                await executor.get_task_status("nobody's")
        with pytest.raises(InvalidRequest):
            EnhancedOffloadingExecutor(mode="sometimes")
        assert EnhancedOffloadingExecutor(None, None).mode is OffloadingMode.DYNAMIC_BALANCING

    asyncio.run(run())


def test_work_that_is_cancelled_before_it_begins_is_cancelled_and_has_no_result() -> None:
    async def run() -> None:
        controller = Controller()
        async with EnhancedOffloadingExecutor(backend=controller) as executor:  # type: ignore[arg-type]
            task_id = await executor.submit(print, 1)
            assert await executor.cancel_task(task_id)
            assert (await executor.get_task_status(task_id))["state"] == "cancelled"
            assert [task["task_id"] for task in await executor.get_history()] == [task_id]
            with pytest.raises(asyncio.CancelledError):
                await executor.get_result(task_id)
        assert controller.asked == []

    asyncio.run(run())


def test_a_log_is_read_to_where_it_ended_though_its_process_goes_on_writing() -> None:
    async def read(begin: int) -> dict[str, object]:
        return {"text": "x", "next": begin + 1, "more": begin < 2}

    assert asyncio.run(read_all(read)) == "xxx"


def test_a_function_on_several_nodes_is_a_gang_in_one_lease_with_each_member_on_a_node_of_its_own() -> None:
    body = asked(Controller(), lambda executor: executor.submit(print, 1, nodes=3, cpu=2), mode="share_and_offload")
    assert (body["count"], body["own_lease"], body["cpu"]) == (3, True, 2)
    assert body["anti_affinity"]["tasks"] == [body["task_id"]]

    away = asked(Controller(), lambda executor: executor.submit(print, 1, nodes=2), mode="offload_only")
    assert (away["anti_affinity"]["tasks"], away["anti_affinity"]["nodes"]) == ([away["task_id"]], ["head"])
