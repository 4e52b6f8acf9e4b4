"""The measurements of a running controller, read over HTTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from distributed_grid.client import GridClient
from distributed_grid.decide.monitoring.pressure import PressureCallback, PressureChange
from distributed_grid.errors import GridError
from distributed_grid.loops import Loop
from distributed_grid.model.codec import ANSWERS, PLAIN
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.series import Accuracy, Forecast, ResourceTrend
from distributed_grid.model.snapshots import NodeSnapshot, Pressure
from distributed_grid.model.times import parse_instant
from distributed_grid.monitoring.views import snapshots_from

if TYPE_CHECKING:
    from distributed_grid.wire.audit import Event
    from distributed_grid.wire.nodes import NodeForecast, NodePressure

LOOK_EVERY_S: Final = 1.0
_EVENTS: Final = {"pressure_high": True, "pressure_low": False}


class ControllerSource:
    def __init__(self, client: GridClient, after: int) -> None:
        """`after`: the number of the last event that need not be reported."""
        self._client = client
        self._after = after

    @classmethod
    async def start(cls, client: GridClient) -> ControllerSource:
        """Events from now on are reported."""
        events = await asyncio.to_thread(client.events)
        return cls(client, events[-1]["number"] if events else 0)

    def snapshots(self) -> dict[NodeName, NodeSnapshot]:
        return snapshots_from(self._client.nodes())

    def trend(self, name: NodeName, kind: str) -> ResourceTrend:
        found = self._client.node(name)
        pressure = found["pressure"] if found["state"] == "ok" else None
        return ResourceTrend(
            name,
            kind,
            current=None if pressure is None else _own(pressure, kind),
            per_minute={window: one["per_minute"] for window, one in found["trends"].get(kind, {}).items()},
            forecast=_forecast(found["forecast"].get(kind), found["measured_at"]),
        )

    def waiting(self) -> int:
        return sum(one["count"] for one in self._client.demand()["demand"])

    async def changes(self, tell: PressureCallback) -> None:
        await Loop("looking for changes of pressure", lambda: self._tell_news(tell), lambda: LOOK_EVERY_S).run()

    async def _tell_news(self, tell: PressureCallback) -> None:
        # Ask for one event more than is new. A controller that does not have it is a new one, and numbers from the
        # beginning.
        try:
            events = await asyncio.to_thread(self._client.events, max(0, self._after - 1))
        except GridError:
            return  # the controller may be restarting
        if not events:
            self._after = 0
        for event in events:
            if event["number"] > self._after:
                self._after = event["number"]
                self._tell(event, tell)

    def _tell(self, event: Event, tell: PressureCallback) -> None:
        if event["event"] in _EVENTS and event["node"] is not None:
            kind, value = event["details"]["resource_type"], event["details"]["value"]
            tell(PressureChange(event["node"], kind, value, is_high=_EVENTS[event["event"]]))

    async def close(self) -> None:
        self._client.close()


def _forecast(data: NodeForecast | None, measured_at: str | None) -> Forecast | None:
    if data is None or measured_at is None:
        return None
    accuracy = data["accuracy"]
    return Forecast(
        made_at=parse_instant(measured_at).timestamp(),
        horizon_s=data["horizon_seconds"],
        value=data["value"],
        low=data["low"],
        high=data["high"],
        confidence=data["confidence"],
        accuracy=None if accuracy is None else PLAIN.decode(Accuracy, accuracy),
        enough_history=data["enough_history"],
    )


def _own(pressure: NodePressure, kind: str) -> float | None:
    """The value that trends are computed from; see `Pressure.own`."""
    return ANSWERS.decode(Pressure, pressure).own(kind)
