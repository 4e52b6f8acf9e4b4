"""Boosts from Python say and show what the API says and shows."""

import asyncio
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from pydantic import TypeAdapter

from distributed_grid.execution import ray_gateway
from distributed_grid.leases.view import boost_dict
from distributed_grid.model.leases import WATCHED, Delivery, Idle, Notice, Share
from distributed_grid.sdk.backend import Backend
from distributed_grid.sdk.boosts import (
    Callbacks,
    IdleNotice,
    ReclaimNotice,
    ReclaimWatch,
    ResourceBoost,
    ResourceBoostRequest,
    ResourceType,
)
from distributed_grid.wire.boosts import Boost, BoostRequest
from tests.support.builders import NOON, cpu, lease


def test_a_request_can_state_every_key_of_the_api() -> None:
    everything: dict[str, Any] = {each.name: "1" for each in fields(ResourceBoostRequest)}
    everything |= {"amount": "1..4", "on_capacity": None}
    everything |= {"sources": ["gpu1"], "max_sources": 2, "members": 1}
    everything |= {"along": {"memory": 8}, "own_too": True, "wait_seconds": 2.0}
    everything |= {"on_reclaim": None, "on_idle": None}
    body = ResourceBoostRequest(**everything).body()
    assert TypeAdapter(BoostRequest).validate_python(body) == body
    assert body.keys() == BoostRequest.__annotations__.keys()


def test_what_a_request_leaves_open_is_not_sent() -> None:
    body = ResourceBoostRequest("gpu-master", ResourceType.CPU, 2, preferred_source="gpu1").body()
    assert (body["amount"], body["resource_type"], body["source_node"]) == ("2", "cpu", "gpu1")
    assert not {"delivery", "grace_seconds", "reclaim_url", "idempotency_key", "auto_renew"} & body.keys()


def test_a_callback_watches_for_its_notices() -> None:
    asked = ResourceBoostRequest("gpu-master", "cpu", 2, reclaim_url="http://a", on_reclaim=lambda _: None)
    assert asked.body()["reclaim_url"] == WATCHED


def test_a_boost_shows_every_key_of_the_api() -> None:
    known = {each.name for each in fields(ResourceBoost)} - {"placement_group_id"} | {"placement_group"}
    assert known == Boost.__annotations__.keys() == boost_dict(lease()).keys()


def test_a_boost_of_a_later_controller_is_read_all_the_same() -> None:
    shown: Any = {**boost_dict(lease(label="train.py", requester="ann")), "colour": "green"}
    boost = ResourceBoost.from_dict(shown)
    assert (boost.boost_id, boost.label, boost.requester) == ("b1", "train.py", "ann")


class _FailsOnce:
    """A backend whose first answer fails with an unexpected error."""

    def __init__(self) -> None:
        self._looks = 0

    async def ask(self, _call: object) -> dict[str, Any]:
        self._looks += 1
        if self._looks == 1:
            raise RuntimeError("an answer that cannot be read")
        return {"boosts": [boost_dict(lease(notice=Notice(10_000, "", NOON, NOON)))], "cut": False}


def test_an_unexpected_error_does_not_end_the_watch_for_reclaim_notices() -> None:
    async def watching() -> None:
        backend, heard = _FailsOnce(), asyncio.Event()

        async def ready() -> Backend:
            return cast(Backend, backend)

        async def asked(notice: ReclaimNotice) -> bool:
            heard.set()
            return False

        watch = ReclaimWatch(ready, every_s=0.01)
        watch.add("b1", Callbacks(on_reclaim=asked))
        try:
            async with asyncio.timeout(5):
                await heard.wait()
        finally:
            await watch.stop()

    asyncio.run(watching())


class _Idle:
    """A backend with a boost that is idle at these looks, one after another; the last answer stays."""

    def __init__(self, *since: datetime | None) -> None:
        self.is_over = asyncio.Event()
        self._looks = 0
        self._since = since

    async def ask(self, _call: object) -> dict[str, Any]:
        since = self._since[min(self._looks, len(self._since) - 1)]
        self._looks += 1
        if self._looks > 2 * len(self._since):
            self.is_over.set()
        return {"boosts": [boost_dict(lease(idle=since and Idle(since, yields=True)))], "cut": False}


def test_an_idle_callback_hears_of_each_idle_time_once() -> None:
    later, heard = NOON + timedelta(hours=1), []

    async def watching() -> None:
        backend = _Idle(None, NOON, NOON, None, later, later)

        async def ready() -> Backend:
            return cast(Backend, backend)

        async def hears(idle: IdleNotice) -> None:
            heard.append(idle.idle_since)

        watch = ReclaimWatch(ready, every_s=0.01)
        watch.add("b1", Callbacks(on_idle=hears))
        async with asyncio.timeout(5):
            await backend.is_over.wait()
        await watch.stop()

    asyncio.run(watching())
    assert heard == [NOON, later]


@pytest.mark.parametrize(("delivery", "node"), [(Delivery.TRANSFER, "gpu-master"), (Delivery.RESERVE, "gpu1")])
def test_work_goes_to_the_node_that_has_the_capacity(
    delivery: Delivery, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_gateway, "selector_of", lambda name: {"node": name})
    boost = ResourceBoost.from_dict(boost_dict(lease("b1", "gpu1", "gpu-master", delivery=delivery)))
    assert boost.options(num_cpus=2) == {"label_selector": {"node": node}, "num_cpus": 2}


def _divided(delivery: Delivery, *lenders: str) -> ResourceBoost:
    shares = tuple(Share(name, 10_000, cpu(1), "the rest", number) for number, name in enumerate(lenders, start=1))
    of = {"delivery": delivery, "shares": shares, "held_by": None if delivery is Delivery.TRANSFER else "ab" * 18}
    return ResourceBoost.from_dict(boost_dict(lease("b1", lenders[0], "gpu-master", **of)))


def test_a_request_names_who_may_lend_it_and_how_many_together() -> None:
    body = ResourceBoostRequest("gpu-master", ResourceType.CPU, 2, sources=("gpu1", "gpu2"), max_sources=2).body()
    assert (body["source_nodes"], body["max_sources"]) == (["gpu1", "gpu2"], 2)
    assert not {"source_nodes", "max_sources"} & ResourceBoostRequest("gpu-master", ResourceType.CPU, 2).body().keys()


def test_a_boost_shows_what_each_of_its_lenders_lends() -> None:
    boost = _divided(Delivery.TRANSFER, "gpu1", "gpu2")
    assert [(part["source_node"], part["amount"], part["reason"]) for part in boost.parts] == [
        ("gpu1", 1, "the rest"),
        ("gpu2", 1, "the rest"),
    ]
    assert ResourceBoost.from_dict(boost_dict(lease())).parts == ()


@pytest.mark.parametrize(("lenders", "index"), [(["gpu1", "gpu2"], -1), (["gpu2"], -1), ([], 0)])
def test_work_in_a_reservation_of_several_lenders_goes_into_any_bundle(lenders: list[str], index: int) -> None:
    """Also into those that are left once a lender is lost: the first bundle may be the lost one."""
    boost = _divided(Delivery.RESERVE, *lenders) if lenders else _alone()
    placed = boost.options(num_cpus=1)
    assert placed["num_cpus"] == 1
    assert placed["scheduling_strategy"].placement_group_bundle_index == index
    assert placed["scheduling_strategy"].placement_group_capture_child_tasks


def _alone() -> ResourceBoost:
    return ResourceBoost.from_dict(boost_dict(lease("b1", delivery=Delivery.RESERVE, held_by="ab" * 18)))


def test_a_transfer_of_several_lenders_is_used_on_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_gateway, "selector_of", lambda name: {"node": name})
    assert _divided(Delivery.TRANSFER, "gpu1", "gpu2").options() == {"label_selector": {"node": "gpu-master"}}
