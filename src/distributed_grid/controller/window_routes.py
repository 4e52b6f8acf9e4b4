"""Windows over HTTP: created, shown and cancelled."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Final, cast

from fastapi import APIRouter, Query

from distributed_grid.controller.access import Asker, needs
from distributed_grid.decide.leases.ownership import owned_window
from distributed_grid.decide.queue.admission import Verdict
from distributed_grid.engine.engine import Engine
from distributed_grid.model.leases import Lease
from distributed_grid.model.principals import Scope
from distributed_grid.model.requests import Occurrence
from distributed_grid.model.resources import amount_of
from distributed_grid.model.times import instant
from distributed_grid.model.windows import Window
from distributed_grid.queue.ownership import check_change
from distributed_grid.wire import windows as wire
from distributed_grid.wire.boosts import RequestedBoost

_NEXT_SHOWN: Final = 3
_PLANNED: Final = timedelta(days=8)
"""The next occurrence of every window that repeats is in this time."""


def add_window_routes(api: APIRouter, engine: Engine) -> None:
    p, service = engine.parts, engine.service

    @api.post("/windows", status_code=201)
    @needs(Scope.LEND)
    async def create_window(body: wire.WindowRequest, asker: Asker) -> wire.Window:
        """Promise capacity from now on, at the times that the window names."""
        boost = {key: value for key, value in body.items() if key not in ("name", "at", "time_zone")}
        ask = engine.ask_of(cast("RequestedBoost", boost), caller=asker)
        window = await service.queue.windows.create(
            body["name"], ask, body["at"], body.get("time_zone"), who=asker.name
        )
        return (await shown([window]))[0]

    @api.get("/windows")
    @needs(Scope.VIEW)
    async def all_windows() -> wire.WindowList:
        """Every window, with its next times and what the queue's plan says about them."""
        return {"windows": await shown(list(p.sharing.windows.values()))}

    @api.get("/windows/{name}")
    @needs(Scope.VIEW)
    async def one_window(name: str) -> wire.Window:
        return (await shown([service.queue.windows.find(name)]))[0]

    @api.delete("/windows/{name}")
    @needs(Scope.LEND)
    async def cancel_window(name: str, asker: Asker, release: Annotated[bool, Query()] = False) -> wire.CancelledWindow:
        """End a window's promise. The boost that it has now stays until it ends, unless `release` gives it back."""
        window = service.queue.windows.find(name)
        check_change(p, asker, owned_window(window), f"cancel the window {name}")
        lease = await service.queue.cancel_window(window, who=asker.name)
        if lease is not None and release:
            lease = await service.release(lease.id, who=asker.name)
        return {
            "name": name,
            "boost_id": None if lease is None else lease.id,
            "boost_state": None if lease is None else lease.state.shown,
            "expires_at": None if lease is None else instant(lease.expires_at),
        }

    async def shown(found: list[Window]) -> list[wire.Window]:
        """Windows with the queue's plan of this moment."""
        nodes, now = await p.look_to_decide(), p.now()
        begins = [begin for window in found if (begin := window.next_begin(now)) is not None]
        until = min(max(begins, default=now), now + _PLANNED) + timedelta.resolution
        planned = service.queue.promises(nodes, until)
        begun = {verdict.waiting.id: verdict for verdict in service.queue.verdicts()}
        return [
            _window_dict(window, service.queue.windows.lease_of(window), planned, begun, engine) for window in found
        ]


def _window_dict(
    window: Window, lease: Lease | None, planned: Mapping[str, Verdict], begun: Mapping[str, Verdict], engine: Engine
) -> wire.Window:
    ask, now = window.ask, engine.parts.now()
    current = None if window.begun_at is None else window.id_of(window.begun_at)
    waits = current if lease is None and current in engine.parts.sharing.waiting else None
    verdict = begun.get(waits or "")
    next_ones: list[tuple[Occurrence, Verdict | None]] = []
    since = now
    while len(next_ones) < _NEXT_SHOWN and (begin := window.next_begin(since)) is not None:
        occurrence = Occurrence(window.name, begin, begin + window.length, window.created_at)
        next_ones.append((occurrence, planned.get(window.id_of(begin))))
        since = begin
    return {
        "name": window.name,
        "at": window.at,
        "time_zone": window.zone,
        "duration_seconds": ask.duration_s,
        "target_node": ask.target,
        "resource_type": ask.kind,
        "amount": amount_of(ask.kind, ask.units),
        "along": {kind: amount_of(kind, units) for kind, units in ask.along},
        "priority": str(ask.priority),
        "source_nodes": list(ask.sources),
        "delivery": ask.delivery,
        "requester": ask.requester,
        "team": ask.team,
        "created_at": instant(window.created_at),
        "state": "waiting" if waits else "promised" if lease is None else lease.state.shown,
        "boost_id": waits if lease is None else lease.id,
        "reason": None if verdict is None else verdict.reason,
        "missed": window.missed,
        "next": [_occurrence_dict(occurrence, verdict) for occurrence, verdict in next_ones],
    }


def _occurrence_dict(occurrence: Occurrence, verdict: Verdict | None) -> wire.WindowOccurrence:
    start = None if verdict is None else verdict.expected_start
    return {
        "begin": instant(occurrence.begin),
        "end": instant(occurrence.end),
        "expected_start": None if start is None else instant(start),
        "expected_sources": [] if verdict is None else list(verdict.expected_sources),
        "is_on_time": start is not None and start <= occurrence.begin,
        "reason": "it is planned when it comes nearer" if verdict is None else verdict.reason,
    }
