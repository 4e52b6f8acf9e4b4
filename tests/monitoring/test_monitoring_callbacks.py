"""Changes of pressure are told as the controller's events come, whatever else happens."""

import asyncio
from typing import Any

import pytest

from distributed_grid.errors import Unavailable
from distributed_grid.monitoring import resource_metrics
from distributed_grid.monitoring.resource_metrics import ControllerSource


class Client:
    """Answers the first look with an error, and each later one with one event more."""

    def __init__(self, error: Exception) -> None:
        self._error: Exception | None = error
        self._events: list[dict[str, Any]] = []

    def events(self, _after: int) -> list[dict[str, Any]]:
        error, self._error = self._error, None
        if error is not None:
            raise error
        details = {"resource_type": "cpu", "value": 0.9}
        number = len(self._events) + 1
        self._events.append({"event": "pressure_high", "node": f"n{number}", "number": number, "details": details})
        return self._events


@pytest.mark.parametrize("error", [Unavailable("away"), RuntimeError("unforeseen")])
def test_an_error_of_the_controller_or_of_a_callback_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(resource_metrics, "LOOK_EVERY_S", 0.01)

    async def main() -> list[str]:
        reported: list[str] = []
        enough = asyncio.Event()

        def tell(change: Any) -> None:
            reported.append(change.node)
            if len(reported) == 1:
                raise RuntimeError("the callback fails")
            if len(reported) == 3:
                enough.set()

        client: Any = Client(error)
        telling = asyncio.create_task(ControllerSource(client, 0).changes(tell))
        async with asyncio.timeout(10):
            await enough.wait()
        telling.cancel()
        return reported

    assert asyncio.run(main()) == ["n1", "n2", "n3"]
